"""How callers use the client; mypy checks that its types fit, and nothing runs it."""

from __future__ import annotations

from kvconductor import AsyncClient, Client, ConductorError, QueryArguments, Registration, RoutedArguments, Row


def best(client: Client, tokens: list[int]) -> Row | None:
    rows = client.query("m", 16, tokens, tenant="blue", top=8, detail=True)
    return max(rows, key=lambda row: row.longest, default=None)


def batch(client: Client, tokens: list[int]) -> list[list[Row]]:
    queries: list[QueryArguments] = [{"model": "m", "block_size": 16, "tokens": tokens, "salt": "s"}]
    return [answer for answer in client.query_batch(queries) if not isinstance(answer, ConductorError)]


def send(client: Client, tokens: list[int]) -> bool:
    rows = client.query("m", 16, tokens, expected=True)
    to = max(rows, key=lambda row: row.expected)
    warnings = client.routed("m", 16, tokens, instance=to.instance, rank=None, ttl=2.5, request_id="r-1", salt="s")
    reports: list[RoutedArguments] = [{"model": "m", "block_size": 16, "tokens": tokens, "instance": to.instance, "rank": 0}]
    refused = [e.known for e in client.routed_batch(reports).errors if e is not None]
    client.take_back("r-1", tenant="blue")
    return not warnings and not refused


async def follow(client: AsyncClient) -> bool:
    await client.register(Registration("tcp://engine:5557", "vLLM", "m", "engine", 16))
    rows: list[Row] = await client.query("m", 16, seq_hashes=[1, 2])
    return bool(rows) and await client.ready()
