"""What inference engines say about their KV caches, brought into one form.

This is the dialect that all known engines share; a kind with another brings its own decoder.
They publish msgpack `[timestamp, [event, ...], dp_rank]` (`envelope`). An event is an array (tag,
then fields by position) in older versions and a map (`type`, then fields by name) in newer ones;
one table of field orders covers all published schemas.
Source: vllm/distributed/kv_events.py 0.9.0 to 0.33.0, sglang/srt/disaggregation/kv_events.py 0.4.7
to 0.5.23, tensorrt_llm/_torch/pyexecutor/kv_cache_events.py.
"""

from collections.abc import Callable, Mapping
from math import inf
from typing import Final, cast

from kvmesh.core.blocks.hashing import TOKEN_BYTES
from kvmesh.core.engines.engine_events import (
    FULL_ATTENTION,
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
    lookahead,
    non_negative,
    optional_text,
    reason_of,
    text,
    text_of,
    tokens,
    with_metadata,
)
from kvmesh.core.engines.kv_events.envelope import open_envelope
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
    | {"locality", "ownership", "session_id", "cache_salt", "mm_keys", "type"}
    | {"lookahead_token_ids"},
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


def decoder_of(kind: str) -> Callable[[bytes], EngineBatch]:
    """Return what reads batches of that kind of engine: its own, or `decode_engine_batch`."""
    return engine_of(kind).decode_events or decode_engine_batch


def decode_engine_batch(payload: bytes) -> EngineBatch:
    """Return the batch in an engine's message, whatever version wrote it.

    Unknown tags and fields are skipped and counted, an event that cannot be read is left out and
    its reason given: blocks that it stored are then not known. O(bytes), about 20 us for a
    1,024-token store.
    Raises `CodecError` for bytes that are no batch, and for a removal that cannot be read: blocks
    that are gone would be taken for held. After that the worker's state must be resynced.
    """
    envelope = open_envelope(payload)
    read = _Read()
    for event in envelope.events:
        read.take(event)
    return EngineBatch(
        timestamp_s=envelope.timestamp_s,
        dp_rank=envelope.rank,
        events=tuple(read.events),
        unknown_fields=read.unknown_fields + envelope.unknown,
        unknown_tags=read.unknown_tags,
        odd=tuple(read.odd),
    )


class _Read:
    """The events of a batch, what is unknown of them, and why some were left out."""

    def __init__(self) -> None:
        self.events: list[EngineEvent] = []
        self.odd: list[str] = []
        self.unknown_fields = self.unknown_tags = 0

    def take(self, raw: object) -> None:
        """Read one event. Raises `CodecError` for a removal that cannot be read."""
        tag = ""
        try:
            tag, fields, unknown = _fields(raw)
            event = _event(tag, fields)
        except (CodecError, RecursionError, TypeError, ValueError) as error:
            if tag == _REMOVED:
                raise CodecError(f"{_REMOVED} that cannot be read: {error}") from error
            self.odd.append(reason_of(error))
            return
        self.unknown_fields += unknown
        if event is None:
            self.unknown_tags += 1
        else:
            self.events.append(event)


def _event(tag: str, fields: Mapping[str, object]) -> EngineEvent | None:
    """Return the event of that tag; None for a tag that is unknown."""
    if tag == _STORED:
        return _stored(fields)
    if tag == _REMOVED:
        return _removed(fields)
    return EngineCleared() if tag == _CLEARED else None


def _fields(raw: object) -> tuple[str, Mapping[str, object], int]:
    """Return an event's tag, its fields by name, and how many of them are unknown."""
    items = as_list(raw)
    if items:
        tag = text(items[0], "an event's tag")
        names = _ARRAY_FIELDS.get(tag)
        if names is None:
            return tag, {}, 0
        fields = with_metadata(dict(zip(names, items[1:], strict=False)))
        return tag, fields, max(0, len(items) - 1 - len(names))
    if isinstance(raw, dict):
        named = cast("Mapping[str, object]", raw)
        tag = text(named.get("type"), "an event's type")
        known = _MAP_FIELDS.get(tag)
        return tag, named, 0 if known is None else sum(name not in known for name in named)
    raise CodecError(f"engine event is neither an array nor a map: {text_of(raw)}")


def _stored(fields: Mapping[str, object]) -> EngineStored:
    hashes = block_hashes(fields.get("block_hashes"))
    block_size = non_negative(fields.get("block_size"), "block_size")
    packed = tokens(fields.get("token_ids"))
    kind = optional_text(fields.get("kv_cache_spec_kind"), "kv_cache_spec_kind")
    is_whole = _is_whole(packed, len(hashes), block_size, kind)
    parent = fields.get("parent_block_hash")
    lora = _lora(fields)
    salt = optional_text(fields.get("cache_salt"), "cache_salt")
    opaque: tuple[int, ...] = ()
    ahead = lookahead(fields.get("lookahead_token_ids"), len(hashes))
    keys = fields.get("extra_keys")
    if keys is not None:
        first = parent is None and is_whole
        within = block_size if ahead else inf
        key_salt, opaque = extras(keys, len(hashes), lora=lora, first=first, within=within)
        salt = salt if salt is not None else key_salt
    if fields.get("mm_keys") is not None:
        _, opaque = extras(fields["mm_keys"], len(hashes), lora=None, first=False)
    window = fields.get("kv_cache_spec_sliding_window")
    return EngineStored(
        hashes=hashes,
        parent=None if parent is None else block_hash(parent),
        tokens=packed,
        block_size=block_size,
        tier=_tier(fields),
        group=_group(fields),
        kind=kind,
        lora=lora,
        salt=salt,
        extras=opaque,
        window=None if window is None else non_negative(window, "kv_cache_spec_sliding_window"),
        lookahead=ahead,
    )


def _is_whole(packed: bytes, hashes: int, block_size: int, kind: str | None) -> bool:
    """Return whether a store has a hash for each block of its tokens, or no tokens.

    Groups other than full attention may leave blocks out. Raises `CodecError` for what is neither.
    """
    width = block_size * TOKEN_BYTES
    if not packed or len(packed) == hashes * width:
        return True
    if kind in FULL_ATTENTION or not width or len(packed) % width or hashes * width > len(packed):
        raise CodecError(
            f"BlockStored: {hashes} blocks of {block_size} tokens but {len(packed) // TOKEN_BYTES}"
            " ids"
        )
    return False


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
