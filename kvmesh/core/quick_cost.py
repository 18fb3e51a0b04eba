"""The two usual costs without a `Candidate`: the same numbers to the last bit, ten times sooner.

Each comes with a floor under it that depends only on a worker's own load, so that workers kept in
the order of that load need not all be looked at.
"""

from collections.abc import Callable, Mapping
from typing import Final

import msgspec

from kvmesh.core.cost import Weights
from kvmesh.core.speeds import FLEET_TOKENS
from kvmesh.core.weighing import MEMORY_MARGIN, Weighing
from kvmesh.core.worker_registry import WorkerState

Costing = Callable[[WorkerState], float]
"""Worker -> what the formula gives its `Candidate`."""

Floor = Callable[[float, int], float]
"""(load key, overlap) -> no worker with that key or more and that overlap or less costs less."""

_TYPICAL_TOKENS: Final = 4096.0
_ROUNDING: Final = 1.0 - 1e-9


class QuickCost(msgspec.Struct, frozen=True):
    """One formula of `core.cost`, prepared for many workers.

    `load_key(worker, weights, block_size)` must only change when the worker's loads do;
    `floor(weighing, most_requests)` is for a fleet where no worker has more requests than that.
    """

    load_key: Callable[[WorkerState, Weights, int], float]
    costing: Callable[[Weighing], Costing]
    floor: Callable[[Weighing, int], Floor]


def prefill_decode_key(state: WorkerState, weights: Weights, block_size: int) -> float:
    """Return what the load alone costs, in blocks."""
    loads = state.loads
    return weights.overlap_score_weight * loads.prefill_tokens / block_size + loads.active_blocks


def prefill_decode_costing(weighing: Weighing) -> Costing:
    """Return `cost.prefill_decode` for one request."""
    weight = weighing.weights.overlap_score_weight
    size, prompt, blocks = weighing.block_size, weighing.prompt_tokens, weighing.request_blocks
    overlaps, keys, stride = weighing.overlaps, weighing.keys, weighing.stride

    def cost(state: WorkerState) -> float:
        loads = state.loads
        overlap = overlaps.get(state.worker, 0)
        shared = loads.shared_blocks(keys, stride, overlap) if overlap else 0
        uncached = prompt - overlap * size
        work = loads.prefill_tokens + (max(0, uncached))
        return weight * (work / size) + (loads.active_blocks + blocks - shared)

    return cost


def prefill_decode_floor(weighing: Weighing, most_requests: int) -> Floor:
    """Return load + own prefill + own blocks, all of the overlap taken for shared."""
    del most_requests
    weight, size = weighing.weights.overlap_score_weight, weighing.block_size
    prompt, blocks = weighing.prompt_tokens, weighing.request_blocks

    def floor(key: float, overlap: int) -> float:
        own = weight * max(0, prompt - overlap * size) / size
        return (key + own + blocks - overlap) * _ROUNDING

    return floor


def predicted_time_key(state: WorkerState, weights: Weights, block_size: int) -> float:
    """Return the cost of a typical prompt there in prefilled tokens, waiting as if just begun."""
    del block_size
    loads = state.loads
    waiting = loads.prefill_tokens
    if loads.prefilling:
        waiting -= next(iter(loads.prefilling.values())).uncached_tokens
    slowed = (waiting + _TYPICAL_TOKENS) * (1.0 + weights.contention * loads.active_requests)
    return slowed + weights.decode_weight * loads.prompt_tokens


def predicted_time_costing(weighing: Weighing) -> Costing:
    """Return `cost.predicted_time` for one request."""
    weights, speeds, now = weighing.weights, weighing.speeds, weighing.now
    weight, contention = weights.overlap_score_weight, weights.contention
    decode_weight = weights.decode_weight
    size, prompt, overlaps = weighing.block_size, weighing.prompt_tokens, weighing.overlaps
    fleet = FLEET_TOKENS * speeds.fleet_ms_per_token
    blocks = weighing.request_blocks + weighing.output_blocks

    def cost(state: WorkerState) -> float:
        loads, ratio, capacity = state.loads, state.prefill, state.capacity_blocks
        rate = (ratio.ms + fleet) / (ratio.tokens + FLEET_TOKENS)
        uncached = prompt - overlaps.get(state.worker, 0) * size
        own = weight * rate * (max(0, uncached))
        wait = loads.wait_ms(rate, now) if loads.prefill_tokens else 0.0
        slowed = (wait + own) * (1.0 + contention * loads.active_requests)
        busy = slowed + decode_weight * rate * loads.prompt_tokens
        most_blocks = loads.active_blocks + loads.expected_blocks + blocks
        if capacity and most_blocks / capacity > MEMORY_MARGIN:
            return busy + weighing.memory_wait_of(state)
        return busy

    return cost


def predicted_time_floor(weighing: Weighing, most_requests: int) -> Floor:
    """Return the key's cost at the fastest worker's speed, moved to this prompt's length."""
    weights = weighing.weights
    rate = weighing.speeds.least_ms_per_token() * _ROUNDING
    most_slowed = 1.0 + weights.contention * most_requests
    weight, size, prompt = (
        weights.overlap_score_weight,
        weighing.block_size,
        weighing.prompt_tokens,
    )

    def floor(key: float, overlap: int) -> float:
        own = weight * max(0, prompt - overlap * size)
        more = own - _TYPICAL_TOKENS
        return rate * max(0.0, key + (more if more > 0.0 else more * most_slowed))

    return floor


QUICK_COSTS: Final[Mapping[str, QuickCost]] = {
    "prefill-decode": QuickCost(prefill_decode_key, prefill_decode_costing, prefill_decode_floor),
    "predicted-time": QuickCost(predicted_time_key, predicted_time_costing, predicted_time_floor),
}
"""By the name of the formula."""
