"""The two usual costs without a `Candidate`: the same numbers to the last bit, ten times sooner.

Each comes with a bound under it, a straight line over the prompt's uncached tokens that changes
only with a worker's own load and speed: most workers are ruled out by their line alone.
"""

from collections.abc import Callable, Mapping
from typing import Final, cast

import msgspec

from kvmesh.compiled import NATIVE, Native
from kvmesh.core.cost import Weights
from kvmesh.core.events import WorkerId
from kvmesh.core.load_bounds import Extent, Line
from kvmesh.core.selection import tie_limit
from kvmesh.core.weighing import MEMORY_MARGIN, Weighing
from kvmesh.core.worker_state import WorkerState

Costing = Callable[[WorkerState], float]
"""Worker -> what the formula gives its `Candidate`."""

Measure = Callable[[int], Extent]
"""Overlap -> the prompt's share in the bound of a worker with that overlap.

Less overlap never lowers a bound.
"""


FindTies = Callable[
    [tuple[WorkerState, ...], Mapping[WorkerId, WorkerState], Weighing], list[WorkerId]
]
"""Workers (at least one), the same by name, perhaps with others -> those whose cost counts as
least, in order: all are looked at.
"""


class QuickCost(msgspec.Struct, frozen=True):
    """One formula of `core.cost`, prepared for many workers; its weights must not be negative.

    `line(worker, weights, block_size, fleet_ms_per_token)` may change only when the worker's loads
    or its measured speed do, or, at most in proportion, with the fleet's. `alike`: workers whose
    lines have nothing but a slope cost the same with the same overlap.
    """

    line: Callable[[WorkerState, Weights, int, float], Line]
    alike: bool
    costing: Callable[[Weighing], Costing]
    measure: Callable[[Weighing], Measure]
    find_ties: FindTies


def prefill_decode_line(
    state: WorkerState, weights: Weights, block_size: int, fleet_ms_per_token: float
) -> Line:
    """Return what the load alone costs, in blocks; all that is active might be shared."""
    del fleet_ms_per_token
    loads, per_token = state.loads, weights.overlap_score_weight / block_size
    return Line(
        per_token * loads.prefill_tokens + loads.active_blocks, per_token, loads.active_blocks
    )


def prefill_decode_costing(weighing: Weighing) -> Costing:
    """Return `cost.prefill_decode` for one request."""
    weight = weighing.weights.overlap_score_weight
    size, prompt, blocks = weighing.block_size, weighing.prompt_tokens, weighing.request_blocks
    overlap_of, keys, stride = weighing.overlaps.get, weighing.keys, weighing.stride

    def cost(state: WorkerState) -> float:
        loads = state.loads
        uncached, needed = prompt, loads.active_blocks + blocks
        overlap = overlap_of(state.worker)
        if overlap:
            uncached = prompt - overlap * size
            if loads.shared:
                needed -= loads.shared_blocks(keys, stride, overlap)
        work = loads.prefill_tokens + (uncached if uncached > 0 else 0)  # noqa: FURB136  # 60 ns sooner
        return weight * (work / size) + needed

    return cost


def prefill_decode_measure(weighing: Weighing) -> Measure:
    """Return own prefill, own blocks, and what whole sharing keys of the overlap can share."""
    size, prompt, stride = weighing.block_size, weighing.prompt_tokens, weighing.stride
    blocks = weighing.request_blocks

    def measure(overlap: int) -> Extent:
        return Extent(max(0, prompt - overlap * size), overlap // stride * stride, blocks)

    return measure


def predicted_time_line(
    state: WorkerState, weights: Weights, block_size: int, fleet_ms_per_token: float
) -> Line:
    """Return the cost in ms as if the oldest prefill were about to end, and that of a token."""
    del block_size
    loads, rate = state.loads, fleet_ms_per_token * state.prefill.factor
    waiting = loads.prefill_tokens
    if loads.prefilling:
        waiting -= next(iter(loads.prefilling.values())).uncached_tokens
    slowed = rate * (1.0 + weights.contention * loads.active_requests)
    outstanding = weights.decode_weight * rate * loads.prompt_tokens
    return Line(waiting * slowed + outstanding, slowed, 0.0, waiting * rate)


def predicted_time_costing(weighing: Weighing) -> Costing:
    """Return `cost.predicted_time` for one request."""
    weights, speeds, now = weighing.weights, weighing.speeds, weighing.now
    weight, contention = weights.overlap_score_weight, weights.contention
    decode_weight, step_tokens = weights.decode_weight, speeds.steps.step_tokens
    followers = weights.followers * weighing.arrivals_per_ms
    size, prompt, overlap_of = weighing.block_size, weighing.prompt_tokens, weighing.overlaps.get
    fleet = speeds.fleet_ms_per_token
    blocks = weighing.request_blocks + weighing.output_blocks

    def cost(state: WorkerState) -> float:
        loads, capacity = state.loads, state.capacity_blocks
        rate = fleet * state.prefill.factor
        uncached = prompt - overlap_of(state.worker, 0) * size
        own = weight * rate * ((uncached if uncached > 0 else 0) + step_tokens)  # noqa: FURB136  # 60 ns sooner
        wait = loads.wait_ms(rate, now, step_tokens) if loads.prefill_tokens else 0.0
        delayed = 1.0 + contention * loads.active_requests + followers * own
        slowed = (wait + own) * delayed
        busy = slowed + decode_weight * rate * loads.prompt_tokens
        most_blocks = loads.active_blocks + loads.expected_blocks + blocks
        if capacity and most_blocks / capacity > MEMORY_MARGIN:
            return busy + weighing.memory_wait_of(state)
        return busy

    return cost


def predicted_time_measure(weighing: Weighing) -> Measure:
    """Return own prefill, and how many will come meanwhile at the fastest worker."""
    weight, step_tokens = weighing.weights.overlap_score_weight, weighing.speeds.steps.step_tokens
    size, prompt = weighing.block_size, weighing.prompt_tokens
    rate = weighing.speeds.least_ms_per_token()
    followers = weighing.weights.followers * weighing.arrivals_per_ms * rate

    def measure(overlap: int) -> Extent:
        own = weight * (max(0, prompt - overlap * size) + step_tokens)
        return Extent(own, 0.0, rate * own * followers * own, followers * own)

    return measure


def pure_find_ties(costing: Callable[[Weighing], Costing]) -> FindTies:
    """Return what weighs worker by worker with `costing`."""

    def find_ties(
        states: tuple[WorkerState, ...], known: Mapping[WorkerId, WorkerState], weighing: Weighing
    ) -> list[WorkerId]:
        del known
        costs = list(map(costing(weighing), states))
        limit = tie_limit(min(costs), weighing.cost.margin)
        return [one.worker for one, cost in zip(states, costs, strict=True) if cost <= limit]

    return find_ties


def native_prefill_decode_ties(native: Native) -> FindTies:
    """Return the compiled `prefill_decode_costing`, asked for all workers at once."""

    def find_ties(
        states: tuple[WorkerState, ...], known: Mapping[WorkerId, WorkerState], weighing: Weighing
    ) -> list[WorkerId]:
        terms = (
            weighing.block_size,
            weighing.prompt_tokens,
            weighing.request_blocks,
            weighing.stride,
            weighing.weights.overlap_score_weight,
            weighing.cost.margin,
        )
        ties = native.prefill_decode_ties(states, known, weighing.overlaps, terms, weighing.keys)
        return cast("list[WorkerId]", ties)

    return find_ties


def native_predicted_time_ties(native: Native) -> FindTies:
    """Return the compiled `predicted_time_costing`, asked for all workers at once."""

    def find_ties(
        states: tuple[WorkerState, ...], known: Mapping[WorkerId, WorkerState], weighing: Weighing
    ) -> list[WorkerId]:
        weights, speeds = weighing.weights, weighing.speeds
        terms = (
            weighing.block_size,
            weighing.prompt_tokens,
            weighing.request_blocks + weighing.output_blocks,
            weighing.now,
            speeds.fleet_ms_per_token,
            weights.overlap_score_weight,
            weights.contention,
            weights.followers * weighing.arrivals_per_ms,
            weights.decode_weight,
            speeds.steps.step_tokens,
            weighing.cost.margin,
        )
        waits = weighing.memory_wait_of
        return cast(
            "list[WorkerId]",
            native.predicted_time_ties(states, known, weighing.overlaps, terms, waits),
        )

    return find_ties


QUICK_COSTS: Final[Mapping[str, QuickCost]] = {
    "prefill-decode": QuickCost(
        prefill_decode_line,
        True,
        prefill_decode_costing,
        prefill_decode_measure,
        native_prefill_decode_ties(NATIVE) if NATIVE else pure_find_ties(prefill_decode_costing),
    ),
    "predicted-time": QuickCost(
        predicted_time_line,
        False,
        predicted_time_costing,
        predicted_time_measure,
        native_predicted_time_ties(NATIVE) if NATIVE else pure_find_ties(predicted_time_costing),
    ),
}
"""By the name of the formula."""
