"""Naive model of kvmesh/native/decide/terms.c: the terms of one request's cost at each worker."""

from collections.abc import Mapping, Sequence
from typing import Final

import msgspec

from kvmesh._native import Speeds, WorkerState
from kvmesh.bounds import clamped
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.graded import key_count, key_depth
from kvmesh.core.cost.formulas import PREDICTED_TIME, Cost, score_of
from kvmesh.core.cost.own import OwnFormula
from kvmesh.core.cost.terms import Brought, Candidate, Fleet, survey
from kvmesh.core.cost.weights import Weights
from kvmesh.core.index.block_table import Groups
from kvmesh.core.members.loads import MOST_TOKENS

DEFAULT_COST: Final = PREDICTED_TIME
"""What decides where a formula of one's own fails."""

MEMORY_MARGIN: Final = 0.95
"""Share of an engine's KV blocks above which it is taken to queue or preempt."""


class Weighed(msgspec.Struct, frozen=True, gc=False):
    """Candidates weighed in full and what the formula gave each."""

    candidates: tuple[Candidate, ...]
    scores: tuple[float, ...]
    fleet: Fleet


class Weighing(msgspec.Struct, frozen=True, gc=False):
    """What one request's costs depend on besides the worker.

    `overlaps` are cached prefixes in blocks, `keys` as `ActiveSequences.sharing_keys` gives them
    for the deepest; `output_blocks` is what the answer is expected to take, `answer_tokens` its
    tokens, an answer's fixed time counted in; `arrivals_per_ms` are all requests over the workers
    that may take this; `blocks` are the prompt's sequence hashes, at least up to the first that no
    worker holds. `reported` is what events tell, by depth, `routed` what decisions do. `brought`:
    what workers would bring to their devices first, of those that would. `prefilled`: nothing is
    left to prefill. `cold`: how long the request's LoRA adapter takes to load, ms, at workers that
    do not hold it ready. `instead_of`: why another formula does not decide. `seed`: what finds the
    home of its key, 0: it has none.
    """

    now: float
    policy: str
    cost: Cost
    block_size: int
    prompt_tokens: int
    request_blocks: int
    output_blocks: int
    overlaps: Mapping[WorkerId, int]
    keys: Sequence[int]
    weights: Weights
    speeds: Speeds
    arrivals_per_ms: float
    answer_tokens: float = 0.0
    blocks: Sequence[int] = ()
    brought: Mapping[WorkerId, Brought] = {}
    prefilled: bool = False
    reported: Groups = []
    routed: Groups = []
    cold: Mapping[WorkerId, float] = {}
    instead_of: str = ""
    seed: int = 0

    def candidate(self, state: WorkerState, cached_blocks: int) -> Candidate:
        """Return every term for one worker. About 1.5 us."""
        overlap = self.overlaps.get(state.worker, 0)
        loads, capacity = state.loads, state.capacity_blocks
        uncached = self.prompt_tokens - overlap * self.block_size
        brought = self.brought.get(state.worker) if self.brought else None
        if brought is not None:
            uncached = max(0, uncached - brought.fetched_tokens) + brought.worth_tokens
        decode_blocks = loads.active_blocks + self.request_blocks
        if self.keys and overlap:
            decode_blocks -= shared_blocks(loads.shared, self.keys, overlap)
        ms_per_token = self.speeds.fleet_ms_per_token * state.prefill.factor
        adapter_ms = self.cold.get(state.worker, 0.0) if self.cold else 0.0
        if adapter_ms:
            uncached = max(0, uncached) + load_tokens(adapter_ms, ms_per_token)
        step_tokens = self.speeds.steps.step_tokens
        usage = memory_wait_ms = 0.0
        if capacity:
            usage = min(1.0, max(state.report.used_blocks, loads.active_blocks) / capacity)
            needed = decode_blocks + self.output_blocks + loads.expected_blocks
            if needed / capacity > MEMORY_MARGIN:
                memory_wait_ms = self.memory_wait_ms(state, decode_blocks)
        return Candidate(
            worker=state.worker,
            block_size=self.block_size,
            prompt_tokens=self.prompt_tokens,
            overlap_blocks=overlap,
            request_blocks=self.request_blocks,
            uncached_tokens=0 if self.prefilled or uncached < 0 else uncached,
            prefill_tokens=loads.prefill_tokens,
            active_blocks=loads.active_blocks,
            decode_blocks=decode_blocks,
            active_requests=loads.active_requests,
            outstanding_tokens=loads.prompt_tokens,
            waiting_requests=state.report.waiting_requests,
            cache_usage=usage,
            capacity_blocks=capacity,
            cached_blocks=cached_blocks,
            wait_ms=loads.wait_ms(ms_per_token, self.now, step_tokens)
            if loads.prefill_tokens
            else 0.0,
            ms_per_token=ms_per_token,
            step_tokens=step_tokens,
            arrivals_per_ms=self.arrivals_per_ms,
            memory_wait_ms=memory_wait_ms,
            failure_share=state.failure_share,
            failure_ms=self.failure_ms(state) if state.failure_share else 0.0,
            fetch_ms=0.0 if brought is None else brought.ms,
            fetch_from="" if brought is None else brought.source or "",
            adapter_ms=adapter_ms,
            lost_tokens=self.lost_tokens(state),
            slow_ms=state.prefill.slow_ms * self.answer_tokens,
        )

    def memory_wait_ms(self, state: WorkerState, decode_blocks: int) -> float:
        """Return how long the request will wait for others to leave, ms: 0 below the margin.

        The worker's capacity must be known.
        """
        needed = decode_blocks + self.output_blocks + state.loads.expected_blocks
        usage = needed / state.capacity_blocks
        if usage <= MEMORY_MARGIN:
            return 0.0
        return (usage - MEMORY_MARGIN) * self.speeds.residence_ms(state.worker)

    def lost_tokens(self, state: WorkerState) -> float:
        """Return how many tokens of the overlap are expected to be evicted before its turn comes.

        What is prefilled until then takes the blank blocks, then evicts what no request holds:
        each such block equally likely, for in which order the engine does is not known here. What
        requests hold stays, what was sent there lately, and what is brought from slower memory is
        no loss. 0 where the engine's size is not known.
        """
        overlap, loads = self.overlaps.get(state.worker, 0), state.loads
        if self.brought and (brought := self.brought.get(state.worker)) is not None:
            overlap -= brought.own_tokens() // self.block_size
        if not overlap or not loads.prefill_tokens or not state.capacity_blocks:
            return 0.0
        pending = loads.prefill_tokens / self.block_size
        evicted = pending - state.blank_blocks
        if evicted <= 0.0:
            return 0.0
        idle = state.capacity_blocks - state.blank_blocks - loads.active_blocks
        share = evicted / max(idle + pending, 1.0)
        held = max(
            shared_blocks(loads.shared, self.keys, overlap), self._routed_blocks(state.worker)
        )
        return self.block_size * (max(0, overlap - held) * min(share, 1.0))

    def _routed_blocks(self, worker: WorkerId) -> int:
        return max([depth for depth, workers in self.routed if worker in workers], default=0)

    def failure_ms(self, state: WorkerState) -> float:
        """Return what this request loses by failures there on average, ms: what has gone by when
        it fails, and its whole prefill elsewhere.
        """
        tokens = self.prompt_tokens + self.speeds.steps.step_tokens
        return state.failure_share * (state.lost_ms + self.speeds.fleet_ms_per_token * tokens)


def load_tokens(adapter_ms: float, ms_per_token: float) -> int:
    """Return the prompt tokens that could be computed while an adapter is loaded."""
    return clamped(adapter_ms / ms_per_token, 0, MOST_TOKENS) if ms_per_token > 0.0 else 0


def weigh_all(candidates: tuple[Candidate, ...], weighing: Weighing) -> Weighed:
    """Return the candidates with what a published formula gives each."""
    cost, weights = weighing.cost, weighing.weights
    fleet = survey(candidates, weights)
    function = cost.formula.function
    scores = [
        score_of(cost, one, fleet, weights) if one.failure_share else function(one, fleet, weights)
        for one in candidates
    ]
    return Weighed(candidates, tuple(scores), fleet)


def by_default(weighing: Weighing, failed: OwnFormula) -> Weighing:
    """Return `weighing` by the default formula, as the one that it has fails."""
    cost = DEFAULT_COST
    return msgspec.structs.replace(
        weighing,
        cost=cost,
        weights=cost.weights.default,
        policy=cost.name if weighing.policy == weighing.cost.name else weighing.policy,
        instead_of=failed.problem,
    )


def shared_blocks(shared: Mapping[int, int], keys: Sequence[int], overlap: int) -> int:
    """Return how many of the first `overlap` blocks a worker's active requests already hold, as the
    sharing keys that are `Loads.shared` there tell.

    Active requests hold whole prefixes, so presence is monotonic in depth: O(log keys).
    """
    high = min(len(keys), key_count(overlap))
    if not shared or not high or keys[0] not in shared:
        return 0
    low = 1
    while low < high:
        middle = (low + high + 1) >> 1
        if keys[middle - 1] in shared:
            low = middle
        else:
            high = middle - 1
    return key_depth(low)
