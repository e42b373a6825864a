"""The clients: one for threads, one for asyncio, over the same requests."""

from __future__ import annotations

import array
import asyncio
import base64
import json
import random
import sys
import time
from typing import Any, Callable, Iterable, Mapping, Sequence

import httpx

from ._types import ConductorError, Registration, Row

_PAUSE = 0.05  # seconds before the first retry


class _Request:
    """A request, and how its answer is read."""

    def __init__(self, method: str, path: str, body: Mapping[str, Any] | None = None, read: Callable[[Any], Any] = lambda answer: answer):
        self.method, self.path, self.body, self.read = method, path, body, read


def _query(
    model: str,
    block_size: int,
    tokens: Sequence[int] | None = None,
    *,
    seq_hashes: Sequence[int] | None = None,
    tenant: str = "",
    adapter: str = "",
    salt: str = "",
    instance: str = "",
    min_matched: int = 0,
    top: int = 0,
    detail: bool = False,
) -> _Request:
    body: dict[str, Any] = {"model": model, "block_size": block_size}
    given = {"tenant_id": tenant, "lora_name": adapter, "cache_salt": salt, "instance_id": instance, "min_matched": min_matched, "top": top}
    body.update({name: value for name, value in given.items() if value})
    path = "/conductor/v1/query"
    if seq_hashes is not None:
        path += "_by_hash"
        body["seq_hashes"] = list(seq_hashes)
    else:
        body["token_ids_b64"] = _pack(tokens or ())
    return _Request("POST", path + ("?detail=1" if detail else ""), body, _rows)


def _pack(tokens: Iterable[int]) -> str:
    """Packs token ids as the server reads them fastest: little-endian, in base64."""
    packed = array.array("I", tokens)
    if sys.byteorder == "big":
        packed.byteswap()
    return base64.b64encode(packed.tobytes()).decode()


def _rows(answer: Mapping[str, Mapping[str, Any]]) -> list[Row]:
    rows = [Row.read(name, row) for instances in answer.values() for name, row in instances.items()]
    return sorted(rows, key=lambda row: row.instance)


def _batch(queries: Sequence[Mapping[str, Any]]) -> _Request:
    items = []
    for i, query in enumerate(queries):
        request = _query(**query)
        if not request.path.startswith("/conductor/v1/query?") and request.path != "/conductor/v1/query":
            raise ValueError(f"query {i} of the batch has seq_hashes: a batch takes tokens")
        items.append(request.body)
    detail = "?detail=1" if queries and queries[0].get("detail") else ""

    def read(answer: Mapping[str, Any]) -> list[list[Row] | ConductorError]:
        return [ConductorError(400, a) if isinstance(a.get("error"), str) else _rows(a) for a in answer["answers"]]

    return _Request("POST", "/conductor/v1/query_batch" + detail, {"queries": items}, read)


def _unregister(instance: str, rank: int, tenant: str) -> _Request:
    body: dict[str, Any] = {"instance_id": instance, "dp_rank": rank}
    if tenant:
        body["tenant_id"] = tenant
    return _Request("POST", "/conductor/v1/unregister", body)


def _feedback(instance: str, matched: int, cached: int, medium: str, tenant: str) -> _Request:
    body: dict[str, Any] = {"instance_id": instance, "matched_tokens": matched, "cached_tokens": cached}
    body.update({k: v for k, v in {"medium": medium, "tenant_id": tenant}.items() if v})
    return _Request("POST", "/conductor/v1/feedback", body)


_SERVICES = _Request("GET", "/conductor/v1/services", read=lambda answer: answer["services"])


class _Base:
    """What both clients share: the HTTP client's settings, codec, and when to ask again."""

    def __init__(self, base_url: str, token: str | None, timeout: float, retries: int):
        if not base_url.startswith(("http://", "https://")):
            raise ValueError(f"{base_url!r} is no base URL such as http://conductor:13333")
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._timeout, self._retries = timeout, retries
        self._settings: dict[str, Any] = {"base_url": base_url.rstrip("/"), "headers": headers, "timeout": timeout, "follow_redirects": False}

    @staticmethod
    def _encode(request: _Request) -> dict[str, Any]:
        if request.body is None:
            return {}
        return {"content": json.dumps(request.body).encode(), "headers": {"Content-Type": "application/json"}}

    @staticmethod
    def _decode(request: _Request, response: httpx.Response) -> Any:
        if response.status_code == 200:
            return request.read(response.json())
        try:
            body = response.json()
        except ValueError:
            body = {"error": response.reason_phrase}
        after = response.headers.get("Retry-After", "")
        raise ConductorError(response.status_code, body if isinstance(body, dict) else {}, float(after) if after.isdigit() else None)

    def _pause(self, attempt: int, begun: float, error: Exception) -> float | None:
        """Returns how long to wait before the next attempt, None for no further one."""
        if isinstance(error, ConductorError) and error.status != 503 or attempt >= self._retries:
            return None
        pause = _PAUSE * 2**attempt * random.uniform(0.5, 1.5)
        if isinstance(error, ConductorError) and error.retry_after is not None:
            pause = max(pause, error.retry_after)
        return pause if time.monotonic() + pause < begun + self._timeout else None


class Client(_Base):
    """Asks one server. It keeps connections open and may be used by several threads."""

    def __init__(self, base_url: str, *, token: str | None = None, timeout: float = 5.0, retries: int = 2, **httpx_options: Any):
        super().__init__(base_url, token, timeout, retries)
        self._http = httpx.Client(**(self._settings | httpx_options))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        self._http.close()

    def _do(self, request: _Request) -> Any:
        begun = time.monotonic()
        for attempt in range(self._retries + 1):
            try:
                return self._decode(request, self._http.request(request.method, request.path, **self._encode(request)))
            except (ConductorError, httpx.TransportError) as error:
                pause = self._pause(attempt, begun, error)
                if pause is None:
                    raise
                time.sleep(pause)

    def query(self, model: str, block_size: int, tokens: Sequence[int] | None = None, **options: Any) -> list[Row]:
        """Returns one row for each instance registered for the model, block size and adapter.

        Options: seq_hashes, tenant, adapter, salt, instance, min_matched, top, detail.
        """
        return self._do(_query(model, block_size, tokens, **options))

    def query_batch(self, queries: Sequence[Mapping[str, Any]]) -> list[list[Row] | ConductorError]:
        """Asks up to 256 queries, each the arguments of query, and returns answers in order."""
        return self._do(_batch(queries))

    def register(self, registration: Registration) -> None:
        """Starts a source. The same registration twice is a success."""
        self._do(_Request("POST", "/conductor/v1/register", registration.body()))

    def unregister(self, instance: str, rank: int = 0, tenant: str = "") -> None:
        """Ends a source and drops its blocks."""
        self._do(_unregister(instance, rank, tenant))

    def services(self) -> list[dict[str, Any]]:
        """Returns the sources that the token may see."""
        return self._do(_SERVICES)

    def feedback(self, instance: str, *, matched: int, cached: int, medium: str = "", tenant: str = "") -> dict[str, Any]:
        """Reports how many tokens an answer promised of an instance, and how many it found."""
        return self._do(_feedback(instance, matched, cached, medium, tenant))

    def ready(self) -> bool:
        """Tells whether routers may rely on the answers."""
        return self._http.get("/ready").status_code == 200


class AsyncClient(_Base):
    """Client for asyncio."""

    def __init__(self, base_url: str, *, token: str | None = None, timeout: float = 5.0, retries: int = 2, **httpx_options: Any):
        super().__init__(base_url, token, timeout, retries)
        self._http = httpx.AsyncClient(**(self._settings | httpx_options))

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        await self._http.aclose()

    async def _do(self, request: _Request) -> Any:
        begun = time.monotonic()
        for attempt in range(self._retries + 1):
            try:
                return self._decode(request, await self._http.request(request.method, request.path, **self._encode(request)))
            except (ConductorError, httpx.TransportError) as error:
                pause = self._pause(attempt, begun, error)
                if pause is None:
                    raise
                await asyncio.sleep(pause)

    async def query(self, model: str, block_size: int, tokens: Sequence[int] | None = None, **options: Any) -> list[Row]:
        return await self._do(_query(model, block_size, tokens, **options))

    async def query_batch(self, queries: Sequence[Mapping[str, Any]]) -> list[list[Row] | ConductorError]:
        return await self._do(_batch(queries))

    async def register(self, registration: Registration) -> None:
        await self._do(_Request("POST", "/conductor/v1/register", registration.body()))

    async def unregister(self, instance: str, rank: int = 0, tenant: str = "") -> None:
        await self._do(_unregister(instance, rank, tenant))

    async def services(self) -> list[dict[str, Any]]:
        return await self._do(_SERVICES)

    async def feedback(self, instance: str, *, matched: int, cached: int, medium: str = "", tenant: str = "") -> dict[str, Any]:
        return await self._do(_feedback(instance, matched, cached, medium, tenant))

    async def ready(self) -> bool:
        return (await self._http.get("/ready")).status_code == 200
