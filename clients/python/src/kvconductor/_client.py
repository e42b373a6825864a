"""The clients: one for threads, one for asyncio, over the same requests."""

from __future__ import annotations

import array
import asyncio
import base64
import json
import random
import sys
import time
import urllib.parse
from typing import TYPE_CHECKING, Any, Callable, Generic, Mapping, Sequence, TypeVar

import httpx

from ._types import ConductorError, QueryArguments, QueryOptions, Registration, RoutedAnswer, RoutedArguments, RoutedOptions, Row

if TYPE_CHECKING:
    from typing_extensions import Unpack

_PAUSE = 0.05  # seconds before the first retry
_JSON, _MSGPACK = "application/json", "application/msgpack"

T = TypeVar("T")


class _Request(Generic[T]):
    """A request, and how its answer is read. packed is its body in msgpack, at packed_path; None if it has none."""

    def __init__(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | None,
        read: Callable[[Any], T],
        packed: Mapping[str, Any] | None = None,
        packed_path: str = "",
    ):
        self.method, self.path, self.body, self.read, self.packed = method, path, body, read, packed
        self.packed_path = packed_path or path


def _nothing(_: Any) -> None:
    """Reads an answer that says no more than that it is a success."""


def _query(
    model: str,
    block_size: int,
    tokens: Sequence[int] | None = None,
    *,
    seq_hashes: Sequence[int] | None = None,
    hash_kind: str = "",
    tenant: str = "",
    adapter: str = "",
    salt: str = "",
    instance: str = "",
    min_matched: int = 0,
    top: int = 0,
    detail: bool = False,
    expected: bool = False,
) -> _Request[list[Row]]:
    body, packed = _prompt(model, block_size, tokens, seq_hashes, hash_kind, tenant, adapter, salt)
    given = {"instance_id": instance, "min_matched": min_matched, "top": top}
    more = {name: value for name, value in given.items() if value}
    path = "/conductor/v1/query" + ("_by_hash" if seq_hashes is not None else "")
    # The dialect of msgpack has none of these fields.
    plain = not (detail or min_matched or top)
    return _Request(
        "POST",
        path + ("?detail=1" if detail else ""),
        body | more | ({"expected": True} if expected else {}),
        _rows,
        packed | more if plain else None,
        path + ("?expected=1" if expected else ""),
    )


def _prompt(
    model: str, block_size: int, tokens: Sequence[int] | None, seq_hashes: Sequence[int] | None, hash_kind: str, tenant: str, adapter: str, salt: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns what a body says of a prompt, in JSON and in msgpack."""
    fields: dict[str, Any] = {"model": model, "block_size": block_size}
    given = {"tenant_id": tenant, "lora_name": adapter, "cache_salt": salt}
    fields.update({name: value for name, value in given.items() if value})
    if seq_hashes is None:
        numbers = _little_endian("I", tokens or ())
        return fields | {"token_ids_b64": base64.b64encode(numbers).decode()}, fields | {"token_ids": numbers}
    if hash_kind:
        fields["hash"] = hash_kind
    return fields | {"seq_hashes": list(seq_hashes)}, fields | {"seq_hashes": _little_endian("Q", seq_hashes)}


def _little_endian(code: str, numbers: Sequence[int]) -> bytes:
    """Packs numbers as the server reads them fastest."""
    packed = array.array(code, numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _rows(answer: Mapping[str, Any]) -> list[Row]:
    """Reads rows by tenant, or in msgpack by the word instances. With details there may be a list of warnings beside them."""
    rows = [Row.read(name, row) for instances in answer.values() if isinstance(instances, dict) for name, row in instances.items()]
    return sorted(rows, key=lambda row: row.instance)


# Statuses of HTTP for the reasons that are not faults of the input.
_STATUSES = {
    "forbidden": 403,
    "not_found": 404,
    "too_many_requests": 429,
    "internal": 500,
    "busy": 503,
    "memory": 503,
    "replicas": 503,
    "shutting_down": 503,
    "unserved": 503,
}


def _refused(error: Mapping[str, Any]) -> ConductorError:
    """Returns the error of one query or report among several, which the server sends without a status."""
    return ConductorError(_STATUSES.get(error.get("reason", ""), 400), error)


def _batch(queries: Sequence[QueryArguments]) -> _Request[list[list[Row] | ConductorError]]:
    items = []
    for i, query in enumerate(queries):
        request = _query(**query)
        if query.get("seq_hashes") is not None:
            raise ValueError(f"query {i} of the batch has seq_hashes: a batch takes tokens")
        items.append(request.body)
    detail = "?detail=1" if queries and queries[0].get("detail") else ""

    def read(answer: Mapping[str, Any]) -> list[list[Row] | ConductorError]:
        return [_refused(a) if isinstance(a.get("error"), str) else _rows(a) for a in answer["answers"]]

    return _Request("POST", "/conductor/v1/query_batch" + detail, {"queries": items}, read)


def _report(
    model: str,
    block_size: int,
    tokens: Sequence[int] | None = None,
    *,
    instance: str,
    rank: int | None = None,
    ttl: float | None = None,
    request_id: str = "",
    seq_hashes: Sequence[int] | None = None,
    hash_kind: str = "",
    tenant: str = "",
    adapter: str = "",
    salt: str = "",
) -> _Request[tuple[str, ...]]:
    body, packed = _prompt(model, block_size, tokens, seq_hashes, hash_kind, tenant, adapter, salt)
    more: dict[str, Any] = {"instance_id": instance, "dp_rank": rank, "ttl": ttl, "request_id": request_id or None}
    more = {name: value for name, value in more.items() if value is not None}
    return _Request("POST", "/conductor/v1/routed", body | more, _warnings, packed | more)


def _warnings(answer: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(answer.get("warnings") or ())


def _reports(reports: Sequence[RoutedArguments]) -> _Request[RoutedAnswer]:
    requests = [_report(**r) for r in reports]

    def read(answer: Mapping[str, Any]) -> RoutedAnswer:
        errors: list[ConductorError | None] = [None] * len(requests)
        for e in answer.get("errors") or ():
            errors[e["prompt"]] = _refused(e)
        return RoutedAnswer(tuple(errors), _warnings(answer))

    return _Request("POST", "/conductor/v1/routed", {"prompts": [r.body for r in requests]}, read, {"prompts": [r.packed for r in requests]})


def _take_back(request_id: str, tenant: str) -> _Request[None]:
    # A path of dots would be another path.
    path = "/conductor/v1/routed/" + urllib.parse.quote(request_id, safe="").replace(".", "%2E")
    return _Request("DELETE", path + ("?" + urllib.parse.urlencode({"tenant_id": tenant}) if tenant else ""), None, _nothing)


def _register(registration: Registration) -> _Request[None]:
    return _Request("POST", "/conductor/v1/register", registration.body(), _nothing)


def _unregister(instance: str, rank: int, tenant: str) -> _Request[None]:
    body: dict[str, Any] = {"instance_id": instance, "dp_rank": rank}
    if tenant:
        body["tenant_id"] = tenant
    return _Request("POST", "/conductor/v1/unregister", body, _nothing)


def _feedback(instance: str, matched: int, cached: int, medium: str, tenant: str) -> _Request[dict[str, Any]]:
    body: dict[str, Any] = {"instance_id": instance, "matched_tokens": matched, "cached_tokens": cached}
    body.update({k: v for k, v in {"medium": medium, "tenant_id": tenant}.items() if v})
    return _Request("POST", "/conductor/v1/feedback", body, dict)


def _services(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list(answer["services"])


_SERVICES = _Request("GET", "/conductor/v1/services", None, _services)


class _Base:
    """What both clients share: the HTTP client's settings, codecs, and when to ask again."""

    def __init__(self, base_url: str, token: str | None, timeout: float, retries: int, msgpack: bool):
        if not base_url.startswith(("http://", "https://")):
            raise ValueError(f"{base_url!r} is no base URL such as http://conductor:13333")
        if msgpack:
            import msgpack as codec  # type: ignore[import-untyped]  # the extra "msgpack" of the package

            self._pack, self._unpack = codec.packb, codec.unpackb
        self._timeout, self._retries, self._msgpack = timeout, retries, msgpack
        headers = {"Authorization": f"Bearer {token}"} if token else {}
        self._settings: dict[str, Any] = {"base_url": base_url.rstrip("/"), "headers": headers, "timeout": timeout, "follow_redirects": False}

    def _encode(self, request: _Request[T]) -> dict[str, Any]:
        if self._msgpack and request.packed is not None:
            return {"content": self._pack(request.packed), "headers": {"Content-Type": _MSGPACK, "Accept": _MSGPACK}}
        if request.body is None:
            return {"headers": {"Accept": _JSON}}
        return {"content": json.dumps(request.body).encode(), "headers": {"Content-Type": _JSON, "Accept": _JSON}}

    def _path(self, request: _Request[T]) -> str:
        return request.packed_path if self._msgpack and request.packed is not None else request.path

    def _decode(self, request: _Request[T], response: httpx.Response) -> T:
        if response.status_code == 204:
            return request.read({})
        try:
            packed = response.headers.get("Content-Type", "").startswith(_MSGPACK)
            body = self._unpack(response.content) if packed else response.json()
        except ValueError:
            body = {"error": response.reason_phrase}
            if response.status_code == 200:
                raise
        if response.status_code == 200:
            return request.read(body)
        after = response.headers.get("Retry-After", "")
        raise ConductorError(response.status_code, body if isinstance(body, dict) else {}, float(after) if after.isdigit() else None)

    def _left(self, begun: float) -> float:
        """Returns the seconds left to a call: each attempt gets what those before it left."""
        return max(begun + self._timeout - time.monotonic(), 0.001)

    def _pause(self, attempt: int, begun: float, error: Exception) -> float | None:
        """Returns how long to wait before the next attempt, None for no further one."""
        if isinstance(error, ConductorError) and error.status != 503 or attempt >= self._retries:
            return None
        pause = _PAUSE * 2**attempt * random.uniform(0.5, 1.5)
        if isinstance(error, ConductorError) and error.retry_after is not None:
            pause = max(pause, error.retry_after)
        return pause if time.monotonic() + pause < begun + self._timeout else None


class Client(_Base):
    """Asks one server. It keeps connections open and may be used by several threads.

    timeout is how many seconds a call may take, retries included. With msgpack, which needs
    kvconductor[msgpack], reports and queries without detail, min_matched and top go in msgpack; rows
    then have longest, ranks, expected and approximate alone.
    """

    def __init__(
        self, base_url: str, *, token: str | None = None, timeout: float = 5.0, retries: int = 2, msgpack: bool = False, **httpx_options: Any
    ):
        super().__init__(base_url, token, timeout, retries, msgpack)
        self._http = httpx.Client(**(self._settings | httpx_options))

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def _do(self, request: _Request[T]) -> T:
        begun, attempt = time.monotonic(), 0
        while True:
            try:
                response = self._http.request(request.method, self._path(request), timeout=self._left(begun), **self._encode(request))
                return self._decode(request, response)
            except (ConductorError, httpx.TransportError) as error:
                pause = self._pause(attempt, begun, error)
                if pause is None:
                    raise
            time.sleep(pause)
            attempt += 1

    def query(self, model: str, block_size: int, tokens: Sequence[int] | None = None, **options: Unpack[QueryOptions]) -> list[Row]:
        """Returns one row for each instance registered for the model, block size and adapter."""
        return self._do(_query(model, block_size, tokens, **options))

    def query_batch(self, queries: Sequence[QueryArguments]) -> list[list[Row] | ConductorError]:
        """Asks up to 256 queries, each the arguments of query, and returns answers in order."""
        return self._do(_batch(queries))

    def routed(
        self, model: str, block_size: int, tokens: Sequence[int] | None = None, *, instance: str, **options: Unpack[RoutedOptions]
    ) -> tuple[str, ...]:
        """Reports that a prompt goes to an instance, which is then expected to have its blocks soon. Returns warnings.

        A model, an instance or a rank that is not registered is a ConductorError with status 404 and known.
        """
        return self._do(_report(model, block_size, tokens, instance=instance, **options))

    def routed_batch(self, reports: Sequence[RoutedArguments]) -> RoutedAnswer:
        """Makes up to 256 reports at once, each the arguments of routed."""
        return self._do(_reports(reports))

    def take_back(self, request_id: str, tenant: str = "") -> None:
        """Takes the report of a request back, because the engine refused it or its client left."""
        self._do(_take_back(request_id, tenant))

    def register(self, registration: Registration) -> None:
        """Starts a source. The same registration twice is a success."""
        self._do(_register(registration))

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

    def __init__(
        self, base_url: str, *, token: str | None = None, timeout: float = 5.0, retries: int = 2, msgpack: bool = False, **httpx_options: Any
    ):
        super().__init__(base_url, token, timeout, retries, msgpack)
        self._http = httpx.AsyncClient(**(self._settings | httpx_options))

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the connections."""
        await self._http.aclose()

    async def _do(self, request: _Request[T]) -> T:
        begun, attempt = time.monotonic(), 0
        while True:
            try:
                response = await self._http.request(request.method, self._path(request), timeout=self._left(begun), **self._encode(request))
                return self._decode(request, response)
            except (ConductorError, httpx.TransportError) as error:
                pause = self._pause(attempt, begun, error)
                if pause is None:
                    raise
            await asyncio.sleep(pause)
            attempt += 1

    async def query(self, model: str, block_size: int, tokens: Sequence[int] | None = None, **options: Unpack[QueryOptions]) -> list[Row]:
        """Returns one row for each instance registered for the model, block size and adapter."""
        return await self._do(_query(model, block_size, tokens, **options))

    async def query_batch(self, queries: Sequence[QueryArguments]) -> list[list[Row] | ConductorError]:
        """Asks up to 256 queries, each the arguments of query, and returns answers in order."""
        return await self._do(_batch(queries))

    async def routed(
        self, model: str, block_size: int, tokens: Sequence[int] | None = None, *, instance: str, **options: Unpack[RoutedOptions]
    ) -> tuple[str, ...]:
        """Reports that a prompt goes to an instance, which is then expected to have its blocks soon. Returns warnings.

        A model, an instance or a rank that is not registered is a ConductorError with status 404 and known.
        """
        return await self._do(_report(model, block_size, tokens, instance=instance, **options))

    async def routed_batch(self, reports: Sequence[RoutedArguments]) -> RoutedAnswer:
        """Makes up to 256 reports at once, each the arguments of routed."""
        return await self._do(_reports(reports))

    async def take_back(self, request_id: str, tenant: str = "") -> None:
        """Takes the report of a request back, because the engine refused it or its client left."""
        await self._do(_take_back(request_id, tenant))

    async def register(self, registration: Registration) -> None:
        """Starts a source. The same registration twice is a success."""
        await self._do(_register(registration))

    async def unregister(self, instance: str, rank: int = 0, tenant: str = "") -> None:
        """Ends a source and drops its blocks."""
        await self._do(_unregister(instance, rank, tenant))

    async def services(self) -> list[dict[str, Any]]:
        """Returns the sources that the token may see."""
        return await self._do(_SERVICES)

    async def feedback(self, instance: str, *, matched: int, cached: int, medium: str = "", tenant: str = "") -> dict[str, Any]:
        """Reports how many tokens an answer promised of an instance, and how many it found."""
        return await self._do(_feedback(instance, matched, cached, medium, tenant))

    async def ready(self) -> bool:
        """Tells whether routers may rely on the answers."""
        return (await self._http.get("/ready")).status_code == 200
