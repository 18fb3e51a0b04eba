"""What SGLang says of its load, over HTTP and on its load stream, beside /metrics.

Source: sglang/srt/managers/scheduler_components/load_publisher.py `LoadStat` and
sglang/srt/managers/load_snapshot.py `LoadSnapshot`, 0.5.8 to 0.5.23.
"""

from collections.abc import Mapping
from typing import Annotated, Final, cast

import msgspec
from msgspec import Meta

from kvmesh.bounds import MAX_COUNT
from kvmesh.core.engines.load import MAX_RANKS, EngineFigures, Gauge, LoadStream
from kvmesh.errors import CodecError

Rank = Annotated[int, Meta(ge=0, lt=MAX_RANKS)]

LOADS: Final = "/v1/loads"
"""More than /metrics, and there without --enable-metrics."""

GAUGES: Final = {
    "sglang:num_running_reqs": (Gauge("running"),),
    "sglang:num_queue_reqs": (Gauge("waiting"),),
    "sglang:token_usage": (Gauge("usage"),),
    "sglang:max_total_num_tokens": (Gauge("total_tokens"),),
    "sglang:page_size": (Gauge("block_size"),),
    "sglang:lora_pool_slots_total": (Gauge("adapter_slots"),),
    "sglang:realtime_tokens_total": (Gauge("computed"),),
}


class LoadStat(msgspec.Struct, array_like=True, tag="LoadStat", frozen=True):
    """One message of the stream, by position; versions append fields, 0.5.19 had the first five."""

    running: int
    waiting: int
    used_tokens: int
    total_tokens: int
    rank: Rank | None = None
    waiting_tokens: int | None = None
    queued_tokens: int = 0
    running_limit: int = 0
    prefilled_tokens: int = 0
    prefill_busy_us: int = 0


class _Snapshot(msgspec.Struct):
    num_running_reqs: int = 0
    num_waiting_reqs: int = 0
    num_used_tokens: int = 0
    max_total_num_tokens: int = 0
    dp_rank: Rank = 0
    num_waiting_uncached_tokens: int | None = None
    total_prefill_uncached_tokens: int = 0
    total_prefill_busy_us: int = 0
    decode_moments: list[float] | None = None
    max_running_requests: int = 0
    cache_hit_rate: float = 0.0
    lora: object = None

    def adapter_slots(self) -> int:
        """Return the LoRA adapters in memory at a time, 0 where nothing is told of them."""
        if not isinstance(self.lora, dict):
            return 0
        slots = cast("Mapping[str, object]", self.lora).get("slots_total")
        return slots if isinstance(slots, int) else 0


class _Loads(msgspec.Struct):
    loads: Annotated[list[_Snapshot], Meta(max_length=MAX_RANKS)]


_stats = msgspec.msgpack.Decoder(LoadStat)
_pages = msgspec.json.Decoder(_Loads)


def _computed(prefilled: int, used: int, moments: list[float] | None = None) -> int | None:
    """Return what changes with each step, None for what is no count: tokens prefilled, cache slots
    in use, of which decoding takes some, and the decode steps (the first of the `moments`).
    """
    steps = moments[0] if moments else 0.0
    if not 0.0 <= steps < MAX_COUNT:
        return None
    computed = prefilled + used + int(steps)
    return computed if 0 <= computed < MAX_COUNT else None


def decode_load_stat(payload: bytes) -> EngineFigures:
    """Return the figures in one message of the load stream. Raises `CodecError`."""
    try:
        stat = _stats.decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CodecError(f"engine load of {len(payload)} bytes: {error}") from error
    return EngineFigures(
        running_requests=stat.running,
        waiting_requests=stat.waiting,
        used_tokens=stat.used_tokens,
        total_tokens=stat.total_tokens,
        rank=stat.rank or 0,
        waiting_tokens=stat.waiting_tokens,
        prefilled_tokens=stat.prefilled_tokens,
        prefill_busy_us=stat.prefill_busy_us,
        total_slots=stat.running_limit,
        computed_tokens=_computed(stat.prefilled_tokens, stat.used_tokens),
    )


def decode_loads(page: bytes) -> dict[int, EngineFigures]:
    """Return the figures of each rank in an answer of `/v1/loads`. Raises `CodecError`."""
    try:
        loads = _pages.decode(page).loads
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise CodecError(f"engine loads of {len(page)} bytes: {error}") from error
    return {
        one.dp_rank: EngineFigures(
            running_requests=one.num_running_reqs,
            waiting_requests=one.num_waiting_reqs,
            used_tokens=one.num_used_tokens,
            total_tokens=one.max_total_num_tokens,
            rank=one.dp_rank,
            waiting_tokens=one.num_waiting_uncached_tokens,
            prefilled_tokens=one.total_prefill_uncached_tokens,
            prefill_busy_us=one.total_prefill_busy_us,
            total_slots=one.max_running_requests,
            prefix_hit_rate=one.cache_hit_rate,
            adapter_slots=one.adapter_slots(),
            computed_tokens=_computed(
                one.total_prefill_uncached_tokens, one.num_used_tokens, one.decode_moments
            ),
        )
        for one in loads
    }


STREAM: Final = LoadStream("load", decode_load_stat)
