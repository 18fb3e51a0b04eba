"""The two usual costs without a `Candidate`: the same numbers to the last bit, ten times sooner."""

from collections.abc import Callable, Mapping
from typing import Final, cast

from kvmesh.compiled import NATIVE, Native
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.cost.formulas import LEAST_MS_PER_TOKEN
from kvmesh.core.cost.selection import tie_limit
from kvmesh.core.cost.weighing import MEMORY_MARGIN, Weighing
from kvmesh.core.workers.state import WorkerState

Costing = Callable[[WorkerState], float]
"""Worker -> what the formula gives its `Candidate`."""

FindTies = Callable[
    [tuple[WorkerState, ...], Mapping[WorkerId, WorkerState], Weighing], list[WorkerId]
]
"""Workers (at least one), the same by name, perhaps with others -> those whose cost counts as
least, in order: all are looked at.
"""


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
        price = weight * (work / size) + needed
        if not state.failure_share:
            return price
        rate = weighing.speeds.fleet_ms_per_token * state.prefill.factor
        rate = max(rate, LEAST_MS_PER_TOKEN)
        return price + weighing.failure_ms(state) / rate / size

    return cost


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
            busy += weighing.memory_wait_of(state)
        return busy + weighing.failure_ms(state) if state.failure_share else busy

    return cost


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
            weighing.speeds.fleet_ms_per_token,
            weighing.speeds.steps.step_tokens,
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


COSTINGS: Final[Mapping[str, Callable[[Weighing], Costing]]] = {
    "prefill-decode": prefill_decode_costing,
    "predicted-time": predicted_time_costing,
}
"""By the name of the formula; the weights must not be negative."""

PURE_COSTS: Final[Mapping[str, FindTies]] = {
    name: pure_find_ties(costing) for name, costing in COSTINGS.items()
}

QUICK_COSTS: Final[Mapping[str, FindTies]] = (
    PURE_COSTS
    if NATIVE is None
    else {
        "prefill-decode": native_prefill_decode_ties(NATIVE),
        "predicted-time": native_predicted_time_ties(NATIVE),
    }
)
"""The same, compiled where there is a compiled core."""
