"""What engines put their events into: one message of a publisher, taken apart.

vLLM, SGLang and TensorRT-LLM send `[timestamp, [event, …], rank]`. One development commit of vLLM
(0181ea31) sends a map with the same three by name. NVIDIA Dynamo's `RouterEvent`, of which a
message of its event plane is made, is told apart and refused: it names blocks by hashes of their
tokens, whose seed differs between versions of Dynamo, and never by token ids.
"""

from collections.abc import Mapping
from typing import Final, cast

import msgspec

from kvmesh.core.engines.kv_events.dialect_fields import as_list, text_of
from kvmesh.errors import CodecError

_decoder = msgspec.msgpack.Decoder()
_LEAST: Final = 2
_PARTS: Final = 3
_NAMES: Final = frozenset({"ts", "events", "data_parallel_rank", "attn_dp_rank"})
_ROUTER_EVENT: Final = frozenset({"worker_id", "event"})
_TIERS: Final = frozenset({"device", "host_pinned", "disk", "external"})
_REFUSED: Final = (
    "is a RouterEvent of NVIDIA Dynamo, which names blocks by hashes of its own and has no token "
    "ids: follow the engine's own KV events (--kv-events-endpoint, the endpoint that the Dynamo "
    "worker reads), or route by what was sent (--no-kv-events)"
)


class Envelope(msgspec.Struct, frozen=True):
    """One message: its events, undecoded. `unknown` counts parts that nobody here knows."""

    timestamp_s: float
    events: list[object]
    rank: int | None = None
    unknown: int = 0


def open_envelope(payload: bytes) -> Envelope:
    """Return the parts of a message. Raises `CodecError` for what is none that can be followed."""
    size = f"engine batch of {len(payload)} bytes"
    try:
        message = cast("object", _decoder.decode(payload))
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
        if _is_json(payload):
            raise CodecError(f"{size} {_REFUSED}") from error
        raise CodecError(f"{size}: {error}") from error
    if _is_router_event(message):
        raise CodecError(f"{size} {_REFUSED}")
    if isinstance(message, dict):
        named = cast("Mapping[object, object]", message)
        rank = named.get("data_parallel_rank", named.get("attn_dp_rank"))
        unknown = sum(name not in _NAMES for name in named)
        return _checked(named.get("ts"), named.get("events"), rank, unknown)
    parts = as_list(message)
    if parts is None or len(parts) < _LEAST:
        raise CodecError(f"{size} is not [timestamp, events, rank]")
    rank = parts[_LEAST] if len(parts) > _LEAST else None
    return _checked(parts[0], parts[1], rank, max(0, len(parts) - _PARTS))


def _checked(timestamp_s: object, events: object, rank: object, unknown: int) -> Envelope:
    inside = as_list(events)
    if not isinstance(timestamp_s, int | float) or inside is None:
        raise CodecError("engine batch does not start with a timestamp and a list of events")
    if rank is not None and not isinstance(rank, int):
        raise CodecError(f"engine batch has the data-parallel rank {text_of(rank)}")
    return Envelope(float(timestamp_s), inside, rank, unknown)


def _is_router_event(message: object) -> bool:
    """Return whether it is one, by name or by position, or a list that begins with one."""
    parts = as_list(message)
    if not parts:
        return _is_one(message)
    return _is_one(parts) or _is_one(parts[0])


def _is_one(message: object) -> bool:
    if isinstance(message, dict):
        return cast("Mapping[object, object]", message).keys() >= _ROUTER_EVENT
    parts = as_list(message)
    if parts is None or len(parts) < _LEAST or not isinstance(parts[0], int):
        return False
    return isinstance(parts[1], str) and parts[1] in _TIERS


def _is_json(payload: bytes) -> bool:
    """Return whether it is a RouterEvent as Dynamo sent them over NATS."""
    try:
        return payload[:1] in b"[{" and _is_router_event(msgspec.json.decode(payload))
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
