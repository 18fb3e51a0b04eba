"""KV events in the bytes of vLLM 0.30 to 0.32: maps, fields in vLLM's order, defaults left out.

Source: vllm/distributed/kv_events.py, v1/core/block_pool.py `_build_block_stored_event` (0.32).
"""

from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from kvmesh.core.blocks.events import ROOT
from kvmesh.core.prompts.media_tokens import media_keys
from kvmesh_lab.mocker.model.cache_group import split_key
from kvmesh_lab.mocker.model.request import (
    BlocksRemoved,
    BlocksStored,
    EngineEvent,
    EngineRequest,
    GroupStored,
)

MEDIUM_GPU: Final = "GPU"
FULL_ATTENTION: Final = "full_attention"
SLIDING_WINDOW: Final = "sliding_window"
MAMBA: Final = "mamba"
_MASK: Final = (1 << 64) - 1
_FACTOR: Final = 0x9E3779B97F4A7C15
"""Odd, so that multiplying by it is one to one modulo 2^64; the golden ratio, as in splitmix64."""

ExtraKeys = list[tuple[str | tuple[str, int], ...] | None] | None


class _Stored(msgspec.Struct, tag="BlockStored", omit_defaults=True):
    """The fields without a default are always there; `lora_id` and `medium` as None if unset."""

    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None
    medium: str | None
    lora_name: str | None
    extra_keys: ExtraKeys = None
    group_idx: int | None = None
    kv_cache_spec_kind: str | None = None
    kv_cache_spec_sliding_window: int | None = None
    locality: str | None = None
    ownership: str | None = None
    session_id: str | None = None


class _Removed(msgspec.Struct, tag="BlockRemoved", omit_defaults=True):
    block_hashes: list[int]
    medium: str | None
    group_idx: int | None = None


class _Cleared(msgspec.Struct, tag="AllBlocksCleared"):
    pass


class _Batch(msgspec.Struct, array_like=True):
    ts: float
    events: list[_Stored | _Removed | _Cleared]
    data_parallel_rank: int | None


_encoder = msgspec.msgpack.Encoder()


def engine_hash(sequence_hash: int) -> int:
    """Return the id this engine gives a block: one to one, but not kvmesh's own hash.

    So that nothing works by mistaking the one for the other.
    """
    return (sequence_hash * _FACTOR + 1) & _MASK


def encode_events(
    events: Iterable[EngineEvent],
    timestamp_s: float,
    dp_rank: int,
    block_size: int,
    groups: int = 0,
) -> bytes:
    """Return the payload of one batch. `timestamp_s` is seconds since 1970.

    vLLM tells each evicted block in an event of its own. About 26 us for a 1,024-token store.
    Full attention is the last group, behind `groups` others, as in vLLM's Gemma 3.
    """
    wire: list[_Stored | _Removed | _Cleared] = []
    for event in events:
        match event:
            case BlocksStored():
                wire.append(_stored(event, block_size, groups))
            case GroupStored():
                wire.append(_group_stored(event, block_size))
            case BlocksRemoved():
                wire += [_removed(key, groups) for key in event.hashes]
            case _:
                wire.append(_Cleared())
    return _encoder.encode(_Batch(timestamp_s, wire, dp_rank))


def _stored(event: BlocksStored, block_size: int, groups: int) -> _Stored:
    request, first, count = event.request, event.first_block, len(event.hashes)
    return _Stored(
        block_hashes=[engine_hash(h) for h in event.hashes],
        parent_block_hash=None if event.parent == ROOT else engine_hash(event.parent),
        token_ids=list(request.content.block_tokens(first, count)),
        block_size=block_size,
        lora_id=request.labels.lora_id,
        medium=MEDIUM_GPU,
        lora_name=request.labels.lora_name,
        extra_keys=_extra_keys(request, range(first, first + count), block_size),
        group_idx=groups,
        kv_cache_spec_kind=FULL_ATTENTION,
        session_id=request.labels.session_id,
    )


def _group_stored(event: GroupStored, block_size: int) -> _Stored:
    """Return what vLLM says of a group that skips blocks: their tokens stay, their hashes do not.

    Of none it has no extra keys either.
    """
    whole = BlocksStored(event.request, event.first_block, event.parent, [0] * event.blocks)
    return msgspec.structs.replace(
        _stored(whole, block_size, event.group.number - 1),
        block_hashes=[engine_hash(h) for h in event.hashes],
        extra_keys=_extra_keys(event.request, event.places, block_size) if event.places else None,
        kv_cache_spec_kind=SLIDING_WINDOW if event.group.window else MAMBA,
        kv_cache_spec_sliding_window=event.group.window or None,
    )


def _removed(key: int, groups: int) -> _Removed:
    number, sequence_hash = split_key(key)
    return _Removed([engine_hash(sequence_hash)], MEDIUM_GPU, number - 1 if number else groups)


def _extra_keys(request: EngineRequest, places: Sequence[int], block_size: int) -> ExtraKeys:
    """Return one entry a block: LoRA name, the names of media and where they begin, and the cache
    salt for the sequence's first block.
    """
    labels = request.labels
    lora = (labels.lora_name,) if labels.lora_name else ()
    media = media_keys(labels.media, block_size, places[-1] + 1) if labels.media else {}
    salt = (labels.cache_salt,) if places[0] == 0 and labels.cache_salt else ()
    keys = [(*lora, *media.get(place, ())) or None for place in places]
    if salt:
        keys[0] = (*(keys[0] or ()), *salt)
    return keys
