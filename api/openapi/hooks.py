"""Bodies that schemathesis has no code for."""

from typing import Any

import msgpack
import schemathesis


@schemathesis.serializer("application/msgpack")
def pack(_: Any, value: Any) -> bytes:
    return msgpack.packb(_packable(value))


def _packable(value: Any) -> Any:
    """Returns value as msgpack has it.

    A number that msgpack has no place for becomes a text, as either is refused. A list of numbers that
    is given as a text is a bin of whole numbers.
    """
    if isinstance(value, dict):
        packed = {key: _packable(v) for key, v in value.items()}
        for key in ("token_ids", "seq_hashes"):
            if isinstance(text := packed.get(key), str):
                data = text.encode(errors="replace")
                packed[key] = data[: len(data) // 8 * 8]
        return packed
    if isinstance(value, list):
        return [_packable(v) for v in value]
    if isinstance(value, int) and not -(1 << 63) <= value < 1 << 64:
        return str(value)
    return value


@schemathesis.hook
def before_call(_: Any, case: Any, kwargs: Any) -> None:
    """Leaves strict out, which has unknown fields refused, and what queries in msgpack do not have."""
    query = case.query or {}
    if query.get("strict") in ("", "1", "t", "T", "true", "TRUE", "True"):
        del query["strict"]
    if case.media_type == "application/msgpack" and case.path.startswith("/query"):
        for name in ("detail", "strict", "min_matched", "top"):
            query.pop(name, None)


@schemathesis.deserializer("application/msgpack")
def unpack(_: Any, response: Any) -> Any:
    return msgpack.unpackb(response.content, strict_map_key=False)


@schemathesis.deserializer("application/x-ndjson")
def text(_: Any, response: Any) -> Any:
    return response.text


@schemathesis.serializer("application/vnd.conductor.grpc")
def plain(_: Any, value: Any) -> bytes:
    return value if isinstance(value, bytes) else str(value).encode()
