"""What inference engines say about their KV caches, brought into one form.

This is the dialect that all known engines share; a kind with another brings its own decoder.
They publish msgpack `[timestamp, [event, ...], dp_rank]`. An event is an array (tag, then fields by
position) in older versions and a map (`type`, then fields by name) in newer ones; one table of
field orders covers all fourteen published schemas.
Source: vllm/distributed/kv_events.py 0.9.0 to 0.32.0, sglang/srt/disaggregation/kv_events.py 0.4.7
to 0.5.23, tensorrt_llm/_torch/pyexecutor/kv_cache_events.py.
"""

from collections.abc import Callable, Mapping
from typing import Final, cast

import msgspec

from kvmesh.core.engines.engine_events import (
    EngineBatch,
    EngineCleared,
    EngineEvent,
    EngineRemoved,
    EngineStored,
)
from kvmesh.core.engines.kv_events.dialect_fields import (
    as_list,
    block_hash,
    block_hashes,
    extras,
    non_negative,
    optional_text,
    text,
    tokens,
    told,
)
from kvmesh.core.engines.registry import ENGINES, engine_of
from kvmesh.errors import CodecError

_STORED: Final = "BlockStored"
_REMOVED: Final = "BlockRemoved"
_CLEARED: Final = "AllBlocksCleared"

_ARRAY_FIELDS: Final[Mapping[str, tuple[str, ...]]] = {
    _STORED: (
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
        "kv_cache_spec_sliding_window",
    ),
    _REMOVED: ("block_hashes", "medium", "group_idx"),
    _CLEARED: (),
}
"""Position of each field after the tag; every published array schema is a prefix of this."""

_MAP_FIELDS: Final[Mapping[str, frozenset[str]]] = {
    _STORED: frozenset(_ARRAY_FIELDS[_STORED])
    | {"locality", "ownership", "session_id", "cache_salt", "mm_keys", "type"},
    _REMOVED: frozenset(_ARRAY_FIELDS[_REMOVED]) | {"locality", "ownership", "type"},
    _CLEARED: frozenset({"type"}),
}

TIERS: Final[Mapping[str, int]] = {
    "GPU": 0,
    "CPU": 1,
    "CPU_PINNED": 1,
    "STORAGE": 2,
    "DISK": 2,
    "EXTERNAL": 2,
    **{name: tier for engine in ENGINES.values() for name, tier in engine.tiers.items()},
}
"""How far a medium, in capitals, is from the device."""

FARTHEST_TIER: Final = 2
"""Where an unknown medium is taken to be."""

_decoder = msgspec.msgpack.Decoder()
_ENVELOPE_FIELDS: Final = 3


def decoder_of(kind: str) -> Callable[[bytes], EngineBatch]:
    """Return what reads batches of that kind of engine: its own, or `decode_engine_batch`."""
    return engine_of(kind).decode_events or decode_engine_batch


def decode_engine_batch(payload: bytes) -> EngineBatch:
    """Return the batch in an engine's message, whatever version wrote it.

    Unknown tags and fields are skipped and counted. O(bytes), about 20 us for a 1,024-token store.
    Raises `CodecError` when a known event lacks what is needed to follow the cache: after that the
    worker's state is unknown and must be resynced.
    """
    try:
        envelope = cast("object", _decoder.decode(payload))
    except (msgspec.MsgspecError, ValueError, RecursionError, OverflowError) as error:
        raise CodecError(f"engine batch of {len(payload)} bytes: {error}") from error
    if not isinstance(envelope, list) or len(cast("list[object]", envelope)) < _ENVELOPE_FIELDS - 1:
        raise CodecError(f"engine batch of {len(payload)} bytes is not [timestamp, events, rank]")
    parts = cast("list[object]", envelope)
    timestamp_s, events, rank = parts[0], parts[1], parts[2] if len(parts) > 2 else None  # noqa: PLR2004 - the third element, absent in the oldest
    if not isinstance(timestamp_s, int | float) or not isinstance(events, list):
        raise CodecError("engine batch does not start with a timestamp and a list of events")
    if rank is not None and not isinstance(rank, int):
        raise CodecError(f"engine batch has the data-parallel rank {told(rank)}")
    try:
        decoded, unknown_fields, unknown_tags = _events(cast("list[object]", events))
    except (RecursionError, TypeError, ValueError) as error:
        raise CodecError(f"engine batch of {len(payload)} bytes: {error}") from error
    return EngineBatch(
        timestamp_s=float(timestamp_s),
        dp_rank=rank,
        events=tuple(decoded),
        unknown_fields=unknown_fields + max(0, len(parts) - _ENVELOPE_FIELDS),
        unknown_tags=unknown_tags,
    )


def _events(events: list[object]) -> tuple[list[EngineEvent], int, int]:
    """Return the events of a batch, and how many fields and tags in it are unknown."""
    decoded: list[EngineEvent] = []
    unknown_fields = unknown_tags = 0
    for raw in events:
        tag, fields, unknown = _fields(raw)
        unknown_fields += unknown
        if tag == _STORED:
            decoded.append(_stored(fields))
        elif tag == _REMOVED:
            decoded.append(_removed(fields))
        elif tag == _CLEARED:
            decoded.append(EngineCleared())
        else:
            unknown_tags += 1
    return decoded, unknown_fields, unknown_tags


def _fields(raw: object) -> tuple[str, Mapping[str, object], int]:
    """Return an event's tag, its fields by name, and how many of them are unknown."""
    items = as_list(raw)
    if items:
        tag = text(items[0], "an event's tag")
        names = _ARRAY_FIELDS.get(tag)
        if names is None:
            return tag, {}, 0
        return tag, dict(zip(names, items[1:], strict=False)), max(0, len(items) - 1 - len(names))
    if isinstance(raw, dict):
        named = cast("Mapping[str, object]", raw)
        tag = text(named.get("type"), "an event's type")
        known = _MAP_FIELDS.get(tag)
        return tag, named, 0 if known is None else sum(name not in known for name in named)
    raise CodecError(f"engine event is neither an array nor a map: {told(raw)}")


def _stored(fields: Mapping[str, object]) -> EngineStored:
    hashes = block_hashes(fields.get("block_hashes"))
    block_size = non_negative(fields.get("block_size"), "block_size")
    packed = tokens(fields.get("token_ids"))
    if len(packed) != len(hashes) * block_size * 4 and packed:
        raise CodecError(
            f"BlockStored: {len(hashes)} blocks of {block_size} tokens but {len(packed) // 4} ids"
        )
    parent = fields.get("parent_block_hash")
    lora = _lora(fields)
    salt = optional_text(fields.get("cache_salt"), "cache_salt")
    opaque: tuple[int, ...] = ()
    keys = fields.get("extra_keys")
    if keys is not None:
        key_salt, opaque = extras(keys, len(hashes), lora=lora, first=parent is None)
        salt = salt if salt is not None else key_salt
    if fields.get("mm_keys") is not None:
        _, opaque = extras(fields["mm_keys"], len(hashes), lora=None, first=False)
    return EngineStored(
        hashes=hashes,
        parent=None if parent is None else block_hash(parent),
        tokens=packed,
        block_size=block_size,
        tier=_tier(fields),
        group=_group(fields),
        kind=optional_text(fields.get("kv_cache_spec_kind"), "kv_cache_spec_kind"),
        lora=lora,
        salt=salt,
        extras=opaque,
    )


def _removed(fields: Mapping[str, object]) -> EngineRemoved:
    return EngineRemoved(block_hashes(fields.get("block_hashes")), _tier(fields), _group(fields))


def _lora(fields: Mapping[str, object]) -> str | None:
    """Return the adapter's name; versions without names gave only a number, kept as `#number`."""
    name = optional_text(fields.get("lora_name"), "lora_name")
    number = fields.get("lora_id")
    if name is None and number is not None:
        return f"#{non_negative(number, 'lora_id')}"
    return name


def _group(fields: Mapping[str, object]) -> int:
    group = fields.get("group_idx")
    return 0 if group is None else non_negative(group, "group_idx")


def _tier(fields: Mapping[str, object]) -> int:
    """Return how far the blocks are from the device; an unknown medium counts as the farthest."""
    if fields.get("locality") == "REMOTE":
        return FARTHEST_TIER
    medium = optional_text(fields.get("medium"), "medium")
    return 0 if medium is None else TIERS.get(medium.upper(), FARTHEST_TIER)
