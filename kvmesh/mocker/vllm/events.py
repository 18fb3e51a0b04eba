"""KV events in the bytes of vLLM 0.30 to 0.32: maps, fields in vLLM's order, defaults left out.

Source: vllm/distributed/kv_events.py, v1/core/block_pool.py `_build_block_stored_event` (0.32).
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from kvmesh.core.blocks.events import ROOT
from kvmesh.mocker.model.request import (
    BlocksRemoved,
    BlocksStored,
    EngineEvent,
    EngineRequest,
)

MEDIUM_GPU: Final = "GPU"
FULL_ATTENTION: Final = "full_attention"
_MASK: Final = (1 << 64) - 1
_FACTOR: Final = 0x9E3779B97F4A7C15
"""Odd, so that multiplying by it is one to one modulo 2^64; the golden ratio, as in splitmix64."""

ExtraKeys = list[tuple[str, ...] | None] | None


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
    events: Iterable[EngineEvent], timestamp_s: float, dp_rank: int, block_size: int
) -> bytes:
    """Return the payload of one batch. `timestamp_s` is seconds since 1970.

    vLLM tells each evicted block in an event of its own. About 26 us for a 1,024-token store.
    """
    wire: list[_Stored | _Removed | _Cleared] = []
    for event in events:
        match event:
            case BlocksStored():
                wire.append(_stored(event, block_size))
            case BlocksRemoved():
                wire += [_Removed([engine_hash(h)], MEDIUM_GPU, 0) for h in event.hashes]
            case _:
                wire.append(_Cleared())
    return _encoder.encode(_Batch(timestamp_s, wire, dp_rank))


def _stored(event: BlocksStored, block_size: int) -> _Stored:
    request, count = event.request, len(event.hashes)
    return _Stored(
        block_hashes=[engine_hash(h) for h in event.hashes],
        parent_block_hash=None if event.parent == ROOT else engine_hash(event.parent),
        token_ids=list(request.content.block_tokens(event.first_block, count)),
        block_size=block_size,
        lora_id=request.labels.lora_id,
        medium=MEDIUM_GPU,
        lora_name=request.labels.lora_name,
        extra_keys=_extra_keys(request, event.first_block, count),
        group_idx=0,
        kv_cache_spec_kind=FULL_ATTENTION,
        session_id=request.labels.session_id,
    )


def _extra_keys(request: EngineRequest, first_block: int, count: int) -> ExtraKeys:
    """Return one entry a block: LoRA name, and the cache salt for the sequence's first block."""
    labels = request.labels
    lora = (labels.lora_name,) if labels.lora_name else ()
    keys: list[tuple[str, ...] | None] = [lora or None] * count
    if first_block == 0 and labels.cache_salt:
        keys[0] = (*lora, labels.cache_salt)
    return keys
