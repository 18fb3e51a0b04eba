"""What a worker says of itself, and how far its cache is known."""

from enum import Enum
from math import isfinite
from typing import Final

import msgspec

from kvmesh.bounds import MAX_COUNT, clamped


class Trust(Enum):
    """How far the event-fed index may be believed about one worker.

    `ESTIMATED` is no state of its events, but what is said of one whose events are all known and
    whose predictions miss nevertheless (`core.insight.predictions`); nothing is decided by it.
    """

    __hash__ = object.__hash__  # that of Enum is a Python call

    EXACT = "exact"
    ESTIMATED = "estimated"
    CATCHING_UP = "catching-up"
    DEGRADED = "degraded"
    APPROX = "approx"


class BusyThresholds(msgspec.Struct, frozen=True):
    """Load above which a worker gets nothing new; None is off. Either one suffices.

    `active_decode_blocks` is a fraction of the worker's capacity, `active_prefill_tokens` a count.
    """

    active_decode_blocks: float | None = None
    active_prefill_tokens: int | None = None


NO_THRESHOLDS: Final = BusyThresholds()


class WorkerInfo(msgspec.Struct, frozen=True):
    """What a worker says of itself. No `models`: it serves any. `total_blocks` 0: unknown.

    It takes only requests that tolerate all its `taints` and ask for none but its `labels`.
    `caches_late`: its cache counts a prompt once it is prefilled, not from when it is scheduled.
    `block_size`: tokens of its KV blocks, `total_blocks` and those of its load reports; 0: as many
    as the router's have.
    """

    models: tuple[str, ...] = ()
    total_blocks: int = 0
    trust: Trust = Trust.EXACT
    labels: frozenset[str] = frozenset()
    taints: frozenset[str] = frozenset()
    caches_late: bool = False
    block_size: int = 0


def as_share(reported: float) -> float:
    """Return what an engine says as a share, 0..1: 0 for what is none."""
    return min(max(0.0, reported), 1.0) if isfinite(reported) else 0.0


def as_count(reported: int) -> int:
    """Return what an engine says as a count, 0 to `MAX_COUNT`."""
    return clamped(reported, 0, MAX_COUNT)


class AdapterReport(msgspec.Struct, frozen=True):
    """What an engine tells of its adapters: how many it holds ready at a time, 0 for untold, and
    the `names` of those that requests use now.
    """

    slots: int = 0
    names: tuple[str, ...] = ()


NO_ADAPTERS: Final = AdapterReport()


class LoadReport(msgspec.Struct, frozen=True):
    """An engine's own figures, as its sidecar pushed them.

    `waiting_tokens` are uncached prompt tokens not yet begun, None when not told;
    `prefilled_tokens` and the `prefill_busy_us` they took are totals since the engine's start, 0
    when not told. Of a prompt's tokens the share `prefix_hit_rate` was cached, 0..1; at most
    `total_slots` requests run at a time; 0 when not told. `adapters` is what it tells of LoRA.
    Each of its `prompt_slots` keeps one prompt, of `slot_tokens` at most; 0: it has none.
    """

    running_requests: int = 0
    waiting_requests: int = 0
    used_blocks: int = 0
    total_blocks: int = 0
    waiting_tokens: int | None = None
    prefilled_tokens: int = 0
    prefill_busy_us: int = 0
    total_slots: int = 0
    prefix_hit_rate: float = 0.0
    adapters: AdapterReport = NO_ADAPTERS
    prompt_slots: int = 0
    slot_tokens: int = 0

    def blocks(self, block_size: int) -> int:
        """Return how many blocks of that size the engine keeps, 0: it does not say."""
        return self.total_blocks or self.prompt_slots * self.slot_tokens // block_size

    def size(self) -> "LoadReport":
        """Return what of it does not grow old: how much the engine keeps."""
        slots, tokens = self.prompt_slots, self.slot_tokens
        return LoadReport(total_blocks=self.total_blocks, prompt_slots=slots, slot_tokens=tokens)
