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
from typing import TYPE_CHECKING, Any, AsyncIterator, Callable, Generic, Iterable, Iterator, Mapping, Sequence, TypeVar

import httpx

from ._types import (
    Candidate,
    Candidates,
    CandidatesOptions,
    ConductorError,
    Instance,
    QueryArguments,
    QueryOptions,
    Registration,
    RoutedAnswer,
    RoutedArguments,
    RoutedOptions,
    Row,
)

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
    _check(str, instance=instance)
    _check(int, min_matched=min_matched, top=top)
    _check(bool, detail=detail, expected=expected)
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


def _candidates(
    model: str,
    tokens: Sequence[int] | None = None,
    *,
    block_size: int = 0,
    seq_hashes: Sequence[int] | None = None,
    hash_kind: str = "",
    tenant: str = "",
    adapter: str = "",
    salt: str = "",
    min_matched: int = 0,
    top: int = 0,
) -> _Request[Candidates]:
    _check(int, min_matched=min_matched, top=top)
    body, packed = _prompt(model, block_size, tokens, seq_hashes, hash_kind, tenant, adapter, salt)
    if not block_size:
        del body["block_size"], packed["block_size"]
    more = {name: value for name, value in {"min_matched": min_matched, "top": top}.items() if value}

    def read(answer: Mapping[str, Any]) -> Candidates:
        rows = sorted((Candidate.read(name, row) for name, row in answer["candidates"].items()), key=lambda row: row.instance)
        return Candidates(
            answer.get("id", ""), answer["model"], answer["lora_name"], answer["block_size"], tuple(rows), bool(answer.get("truncated", False))
        )

    return _Request("POST", "/conductor/v1/candidates", body | more, read, packed | more)


def _prompt(
    model: str, block_size: int, tokens: Sequence[int] | None, seq_hashes: Sequence[int] | None, hash_kind: str, tenant: str, adapter: str, salt: str
) -> tuple[dict[str, Any], dict[str, Any]]:
    """Returns what a body says of a prompt, in JSON and in msgpack.

    It raises TypeError for an argument of the wrong type, and ValueError for a token id or hash that is out of range.
    """
    _check(str, model=model, hash_kind=hash_kind, tenant=tenant, adapter=adapter, salt=salt)
    _check(int, block_size=block_size)
    if (tokens is None) == (seq_hashes is None):
        raise TypeError("a prompt is either tokens or seq_hashes, and " + ("both are given" if tokens is not None else "neither is given"))
    fields: dict[str, Any] = {"model": model, "block_size": block_size}
    given = {"tenant_id": tenant, "lora_name": adapter, "cache_salt": salt}
    fields.update({name: value for name, value in given.items() if value})
    if seq_hashes is None:
        numbers = _little_endian("tokens", "I", tokens or ())
        return fields | {"token_ids_b64": base64.b64encode(numbers).decode()}, fields | {"token_ids": numbers}
    if hash_kind:
        fields["hash"] = hash_kind
    packed = _little_endian("seq_hashes", "Q", seq_hashes)
    return fields | {"seq_hashes": [int(number) for number in seq_hashes]}, fields | {"seq_hashes": packed}


def _check(kind: type, **arguments: object) -> None:
    """Raises TypeError for the first argument that is of another type; a bool is no int here."""
    for name, value in arguments.items():
        if not isinstance(value, kind) or (kind is int and isinstance(value, bool)):
            raise TypeError(f"{name} must be {_KINDS[kind]}, got {value!r}")


_KINDS = {str: "a str", int: "an int", bool: "a bool"}


def _little_endian(name: str, code: str, numbers: Sequence[int]) -> bytes:
    """Packs numbers as the server reads them fastest."""
    try:
        # array reads the bytes of a text or of bytes as numbers, and iterates over the keys of a dict.
        if isinstance(numbers, (str, bytes, bytearray, dict)):
            raise TypeError
        packed = array.array(code, numbers)
    except TypeError:
        raise TypeError(f"{name} must be a sequence of int, got {_culprit(numbers)}") from None
    except OverflowError:
        raise ValueError(f"{name} must be from 0 to {2 ** (8 * array.array(code).itemsize) - 1}, got {_culprit(numbers, code)}") from None
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def _culprit(numbers: object, code: str = "") -> str:
    """Says which element of numbers does not fit, or how numbers itself looks if it is no sequence."""
    if not isinstance(numbers, (str, bytes, bytearray, dict)) and isinstance(numbers, Iterable):
        for i, number in enumerate(numbers):
            try:
                array.array(code or "Q", [number])
            except TypeError:
                return f"{number!r} at index {i}"
            except OverflowError:
                if code:
                    return f"{number!r} at index {i}"
    return type(numbers).__name__


def _rows(answer: Mapping[str, Any]) -> list[Row]:
    """Reads rows by tenant, or in msgpack by the word instances. With details there may be a list of warnings beside them."""
    rows = [Row.read(name, row) for instances in answer.values() if isinstance(instances, dict) for name, row in instances.items()]
    return sorted(rows, key=lambda row: row.instance)


# Statuses of HTTP for the reasons that are not faults of the input.
_STATUSES = {
    "forbidden": 403,
    "not_found": 404,
    "unknown_answer": 404,
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
        try:
            request = _query(**query)
        except (TypeError, ValueError) as error:
            raise type(error)(f"query {i}: {error}") from None
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
    _check(str, instance=instance, request_id=request_id)
    if rank is not None:
        _check(int, rank=rank)
    body, packed = _prompt(model, block_size, tokens, seq_hashes, hash_kind, tenant, adapter, salt)
    more: dict[str, Any] = {"instance_id": instance, "dp_rank": rank, "ttl": ttl, "request_id": request_id or None}
    more = {name: value for name, value in more.items() if value is not None}
    return _Request("POST", "/conductor/v1/routed", body | more, _warnings, packed | more)


def _report_answer(answer_id: str, instance: str, rank: int | None, ttl: float | None, request_id: str) -> _Request[tuple[str, ...]]:
    _check(str, answer_id=answer_id, instance=instance, request_id=request_id)
    if rank is not None:
        _check(int, rank=rank)
    body: dict[str, Any] = {"answer_id": answer_id, "instance_id": instance, "dp_rank": rank, "ttl": ttl, "request_id": request_id or None}
    body = {name: value for name, value in body.items() if value is not None}
    return _Request("POST", "/conductor/v1/routed", body, _warnings, body)


def _warnings(answer: Mapping[str, Any]) -> tuple[str, ...]:
    return tuple(answer.get("warnings") or ())


def _reports(reports: Sequence[RoutedArguments]) -> _Request[RoutedAnswer]:
    requests = []
    for i, report in enumerate(reports):
        try:
            requests.append(_report(**report))
        except (TypeError, ValueError) as error:
            raise type(error)(f"report {i}: {error}") from None

    def read(answer: Mapping[str, Any]) -> RoutedAnswer:
        errors: list[ConductorError | None] = [None] * len(requests)
        for e in answer.get("errors") or ():
            errors[e["prompt"]] = _refused(e)
        return RoutedAnswer(tuple(errors), _warnings(answer))

    return _Request("POST", "/conductor/v1/routed", {"prompts": [r.body for r in requests]}, read, {"prompts": [r.packed for r in requests]})


def _take_back(request_id: str, tenant: str) -> _Request[None]:
    _check(str, request_id=request_id, tenant=tenant)
    # A path of dots would be another path.
    path = "/conductor/v1/routed/" + urllib.parse.quote(request_id, safe="").replace(".", "%2E")
    return _Request("DELETE", path + ("?" + urllib.parse.urlencode({"tenant_id": tenant}) if tenant else ""), None, _nothing)


def _register(registration: Registration) -> _Request[None]:
    if not isinstance(registration, Registration):
        raise TypeError(f"registration must be a Registration, got {registration!r}")
    return _Request("POST", "/conductor/v1/register", registration.body(), _nothing)


def _unregister(instance: str, rank: int, tenant: str) -> _Request[None]:
    _check(str, instance=instance, tenant=tenant)
    _check(int, rank=rank)
    body: dict[str, Any] = {"instance_id": instance, "dp_rank": rank}
    if tenant:
        body["tenant_id"] = tenant
    return _Request("POST", "/conductor/v1/unregister", body, _nothing)


def _feedback(instance: str, matched: int, cached: int, medium: str, tenant: str) -> _Request[dict[str, Any]]:
    _check(str, instance=instance, medium=medium, tenant=tenant)
    _check(int, matched=matched, cached=cached)
    body: dict[str, Any] = {"instance_id": instance, "matched_tokens": matched, "cached_tokens": cached}
    body.update({k: v for k, v in {"medium": medium, "tenant_id": tenant}.items() if v})
    return _Request("POST", "/conductor/v1/feedback", body, dict)


def _services(answer: Mapping[str, Any]) -> list[dict[str, Any]]:
    return list(answer["services"])


_SERVICES = _Request("GET", "/conductor/v1/services", None, _services)


def _instances(answer: Mapping[str, Any]) -> tuple[Instance, ...]:
    return tuple(Instance.read(row) for row in answer["instances"])


_INSTANCES_PATH = "/conductor/v1/instances"
_INSTANCES = _Request("GET", _INSTANCES_PATH, None, _instances)

# The server shows every 15 seconds that it is there, so a watch that is silent for longer has lost it.
_SILENCE = 45.0  # seconds
_WATCH_PAUSE = 5.0  # seconds between two attempts at most
_WATCH_HEADERS = {"Accept": "text/event-stream"}


class _Watch:
    """What a watch of instances knows, fed with the lines of its stream."""

    def __init__(self) -> None:
        self._known: dict[tuple[str, str, int, str], Instance] = {}
        self._event = ""
        self._failures = 0  # attempts since the last event

    def feed(self, line: str) -> tuple[Instance, ...] | None:
        """Takes a line, and returns all instances if they have changed."""
        if line.startswith("event: "):
            self._event = line[len("event: ") :]
        if not line.startswith("data: ") or self._event not in ("instances", "changes"):
            return None  # a comment, the end of an event, or an event of a later server
        data = json.loads(line[len("data: ") :])
        if self._event == "instances":
            self._known.clear()
        for body in [*data.get("instances", ()), *data.get("changed", ())]:
            instance = Instance.read(body)
            self._known[instance.tenant, instance.model, instance.block_size, instance.instance] = instance
        for body in data.get("gone", ()):
            self._known.pop((body["tenant_id"], body["model"], body["block_size"], body["instance_id"]), None)
        self._failures = 0
        return tuple(self._known[key] for key in sorted(self._known))

    def pause(self, error: ConductorError | None) -> float:
        """Returns how long to wait before the next attempt. It raises an error that will not go away."""
        if error is not None and error.status not in (0, 429) and error.status < 500:
            raise error
        self._failures += 1
        longest: float = min(_PAUSE * 2 ** min(self._failures, 10), _WATCH_PAUSE)
        return longest * random.uniform(0.5, 1.0)


class _Base:
    """What both clients share: the HTTP client's settings, codecs, and when to ask again."""

    def __init__(self, base_url: str, token: str | None, timeout: float, retries: int, msgpack: bool):
        if not isinstance(base_url, str) or not base_url.lower().startswith(("http://", "https://")) or set(base_url) & set("?# "):
            raise ValueError(f"{base_url!r} is no base URL such as http://conductor:13333")
        if msgpack:
            try:
                import msgpack as codec  # type: ignore[import-untyped]
            except ImportError:
                raise ImportError("msgpack=True needs the package msgpack: install kvconductor with the extra, as in kvconductor[msgpack]") from None

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

    def _pause(self, attempt: int, begun: float, error: ConductorError) -> float | None:
        """Returns how long to wait before the next attempt, None for no further one."""
        if error.status not in (0, 503) or attempt >= self._retries:
            return None
        pause = _PAUSE * 2**attempt * random.uniform(0.5, 1.5)
        if error.retry_after is not None:
            pause = max(pause, error.retry_after)
        return pause if time.monotonic() + pause < begun + self._timeout else None

    def _unanswered(self, error: httpx.TransportError) -> ConductorError:
        """Returns the error of a server that gave no answer."""
        what = f"no answer within {self._timeout:g} s" if isinstance(error, httpx.TimeoutException) else str(error) or type(error).__name__
        return ConductorError(0, {"error": f"{self._settings['base_url']}: {what}", "reason": "unreachable"})


class Client(_Base):
    """Asks one server. It keeps connections open and may be used by several threads.

    timeout is how many seconds a call may take, retries included. With msgpack, which needs
    kvconductor[msgpack], reports and queries without detail, min_matched and top go in msgpack; rows
    then have longest, ranks, expected, approximate and upper_bound alone.
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
                try:
                    response = self._http.request(request.method, self._path(request), timeout=self._left(begun), **self._encode(request))
                except httpx.TransportError as error:
                    raise self._unanswered(error) from error
                return self._decode(request, response)
            except ConductorError as error:
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

    def candidates(self, model: str, tokens: Sequence[int] | None = None, **options: Unpack[CandidatesOptions]) -> Candidates:
        """Asks where a prompt may go. model may be an alias or the name of an adapter.

        A model that nobody serves is a ConductorError with status 404 and reason unknown_model, a block size that no engine of it has
        one with status 400 and reason unknown_block_size; both have known.
        """
        return self._do(_candidates(model, tokens, **options))

    def routed_answer(
        self, answer_id: str, *, instance: str, rank: int | None = None, ttl: float | None = None, request_id: str = ""
    ) -> tuple[str, ...]:
        """Reports that the prompt of a Candidates goes to an instance, without the prompt. Returns warnings.

        An answer that the server has forgotten is a ConductorError with status 404 and reason unknown_answer; then call routed.
        """
        return self._do(_report_answer(answer_id, instance, rank, ttl, request_id))

    def instances(self) -> tuple[Instance, ...]:
        """Returns the instances of the tenants that the token may name."""
        return self._do(_INSTANCES)

    def watch_instances(self) -> Iterator[tuple[Instance, ...]]:
        """Yields all instances, and again whenever one of them has changed, for as long as the caller iterates.

        It connects again if the connection breaks or the server refuses for a while, and raises ConductorError if the server always
        will, as it does without the right token.
        """
        watch = _Watch()
        while True:
            failed: ConductorError | None = None
            try:
                with self._http.stream("GET", _INSTANCES_PATH, headers=_WATCH_HEADERS, timeout=_SILENCE) as response:
                    if response.status_code == 200:
                        for line in response.iter_lines():
                            if (now := watch.feed(line)) is not None:
                                yield now
                    else:
                        response.read()
                        self._decode(_INSTANCES, response)
            except ConductorError as error:
                failed = error
            except (httpx.TransportError, ValueError, KeyError):
                pass  # it broke, or an event cannot be read: a new stream has the whole list
            time.sleep(watch.pause(failed))

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
        """Tells whether routers may rely on the answers. It asks once, and raises ConductorError if the server does not answer."""
        try:
            return self._http.get("/ready").status_code == 200
        except httpx.TransportError as error:
            raise self._unanswered(error) from error


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
                try:
                    response = await self._http.request(request.method, self._path(request), timeout=self._left(begun), **self._encode(request))
                except httpx.TransportError as error:
                    raise self._unanswered(error) from error
                return self._decode(request, response)
            except ConductorError as error:
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

    async def candidates(self, model: str, tokens: Sequence[int] | None = None, **options: Unpack[CandidatesOptions]) -> Candidates:
        """Asks where a prompt may go. model may be an alias or the name of an adapter.

        A model that nobody serves is a ConductorError with status 404 and reason unknown_model, a block size that no engine of it has
        one with status 400 and reason unknown_block_size; both have known.
        """
        return await self._do(_candidates(model, tokens, **options))

    async def routed_answer(
        self, answer_id: str, *, instance: str, rank: int | None = None, ttl: float | None = None, request_id: str = ""
    ) -> tuple[str, ...]:
        """Reports that the prompt of a Candidates goes to an instance, without the prompt. Returns warnings.

        An answer that the server has forgotten is a ConductorError with status 404 and reason unknown_answer; then call routed.
        """
        return await self._do(_report_answer(answer_id, instance, rank, ttl, request_id))

    async def instances(self) -> tuple[Instance, ...]:
        """Returns the instances of the tenants that the token may name."""
        return await self._do(_INSTANCES)

    async def watch_instances(self) -> AsyncIterator[tuple[Instance, ...]]:
        """Yields all instances, and again whenever one of them has changed, for as long as the caller iterates.

        It connects again if the connection breaks or the server refuses for a while, and raises ConductorError if the server always
        will, as it does without the right token.
        """
        watch = _Watch()
        while True:
            failed: ConductorError | None = None
            try:
                async with self._http.stream("GET", _INSTANCES_PATH, headers=_WATCH_HEADERS, timeout=_SILENCE) as response:
                    if response.status_code == 200:
                        async for line in response.aiter_lines():
                            if (now := watch.feed(line)) is not None:
                                yield now
                    else:
                        await response.aread()
                        self._decode(_INSTANCES, response)
            except ConductorError as error:
                failed = error
            except (httpx.TransportError, ValueError, KeyError):
                pass  # it broke, or an event cannot be read: a new stream has the whole list
            await asyncio.sleep(watch.pause(failed))

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
        """Tells whether routers may rely on the answers. It asks once, and raises ConductorError if the server does not answer."""
        try:
            return (await self._http.get("/ready")).status_code == 200
        except httpx.TransportError as error:
            raise self._unanswered(error) from error
