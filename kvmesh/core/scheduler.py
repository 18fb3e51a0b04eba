"""The decision in one synchronous turn: overlaps, loads, cost, choice, booking."""

from collections.abc import Mapping, Sequence
from typing import Protocol

import msgspec

from kvmesh.core.cost import Candidate, Cost, Weights, cost_named, survey
from kvmesh.core.decision import (
    Decision,
    Hashes,
    RouteRequest,
    RouterOptions,
    Trust,
)
from kvmesh.core.events import WorkerId
from kvmesh.core.membership import Membership
from kvmesh.core.selection import (
    Random,
    choose_least,
    choose_softmax,
    next_in_turn,
    pick,
    two_of,
)
from kvmesh.core.sequences import ActiveSequences, Booking, Demand
from kvmesh.core.worker_registry import WorkerRegistry
from kvmesh.errors import NoWorkerError

_PRIOR_MS_PER_TOKEN = 0.05


class GroupIndex(Protocol):
    """What the scheduler asks of an index: `core.index.PrefixIndex` is one."""

    def find_groups(self, hashes: Hashes) -> list[tuple[int, tuple[WorkerId, ...]]]:
        """Return disjoint (depth in blocks, workers) groups, deepest first."""
        ...


class RoutedIndex(GroupIndex, Protocol):
    """An index fed by the router's own decisions."""

    def record(self, worker: WorkerId, hashes: Sequence[int], now: float, ttl_s: float) -> None:
        """Believe `hashes` (from the root on) cached at `worker` for `ttl_s` seconds."""
        ...

    def remove_worker(self, worker: WorkerId) -> None:
        """Forget everything believed of `worker`."""
        ...


class SchedulerStatistics(msgspec.Struct, frozen=True):
    """Counts since the start."""

    decisions: int
    refused: int
    overlap_blocks: int
    request_blocks: int


class _FirstOf:
    """The rng of a dry run: draws nothing, so that asking changes no later decision."""

    def random(self) -> float:
        return 0.0


class Scheduler:
    """Chooses a worker per request and books it in the same turn; deterministic given `rng`.

    `membership` says who is alive, `workers` adds what they say of themselves.
    `index` is the event-fed view (None without events), `routed` the view fed by decisions.
    A peer replica's bookings go straight into `sequences` under the peer's name as owner.
    """

    def __init__(
        self,
        options: RouterOptions,
        rng: Random,
        *,
        membership: Membership,
        sequences: ActiveSequences,
        index: GroupIndex | None = None,
        routed: RoutedIndex | None = None,
    ) -> None:
        self.options = options
        self.sequences = sequences
        self.workers = WorkerRegistry(membership, sequences)
        self._rng = rng
        self._index = index
        self._routed = routed
        self._cost = cost_named(options.cost)
        self._weights = msgspec.structs.replace(
            options.weights, overlap_score_weight=options.overlap_score_weight
        )
        self._last_turn = ""
        self._decisions = 0
        self._refused = 0
        self._overlap_blocks = 0
        self._request_blocks = 0

    def remove_worker(self, worker: WorkerId) -> list[Booking]:
        """Forget a worker that left; return the bookings released with it."""
        self.workers.remove(worker)
        if self._routed is not None:
            self._routed.remove_worker(worker)
        return self.sequences.remove_worker(worker)

    def schedule(self, request: RouteRequest, now: float) -> Decision:
        """Choose a worker and book the request there. Raises `NoWorkerError` with the reasons."""
        try:
            decision = self._decide(request, now, self._rng)
        except NoWorkerError:
            self._refused += 1
            raise
        self._book(request, decision, now)
        return decision

    def explain(self, request: RouteRequest, now: float) -> Decision:
        """Return the likeliest decision with every candidate weighed; change nothing."""
        return self._decide(msgspec.structs.replace(request, temperature=0.0), now, _FirstOf())

    def first_token(self, request_id: str, now: float) -> None:
        """Note that a request's prefill is done."""
        self.sequences.first_token(request_id, now)

    def grow(self, request_id: str, output_tokens: int, now: float) -> None:
        """Note a request's output so far, in tokens."""
        self.sequences.grow(request_id, output_tokens, now)

    def finish(self, request_id: str, now: float) -> None:  # noqa: ARG002 - residence is learned from it
        """Release a request, however it ended."""
        self.sequences.finish(request_id)

    def statistics(self) -> SchedulerStatistics:
        """Return the counts since the start."""
        return SchedulerStatistics(
            self._decisions, self._refused, self._overlap_blocks, self._request_blocks
        )

    def _decide(self, request: RouteRequest, now: float, rng: Random) -> Decision:
        names = self.workers.eligible(request, now)
        mode = request.mode or self.options.mode
        if mode == "direct" and request.pinned_worker is None:
            raise NoWorkerError(
                f"request {request.request_id}: mode direct needs a worker to be named"
            )
        cost = cost_named(request.cost) if request.cost else self._cost
        weights = self._weights_for(request)
        overlaps = self._overlaps(request.hashes) if mode == "kv" else {}
        keys = self._known_keys(request.hashes, overlaps)
        candidates = [self._candidate(name, request, overlaps.get(name, 0), keys) for name in names]
        fleet = survey(candidates, weights)
        scores = [cost.formula(one, fleet, weights) for one in candidates]
        if mode == "kv":
            temperature = request.temperature
            if temperature is None:
                temperature = self.options.temperature
            chosen = self._choose(cost, scores, candidates, temperature, rng)
        else:
            chosen = self._choose_blind(mode, candidates, rng)
        return Decision(
            request_id=request.request_id,
            worker=candidates[chosen].worker,
            overlap_blocks=candidates[chosen].overlap_blocks,
            total_blocks=candidates[chosen].request_blocks,
            policy=cost.name if mode == "kv" else mode,
            score=scores[chosen],
            considered=len(candidates),
            candidates=tuple(candidates),
            scores=tuple(scores),
            cost=cost,
            fleet=fleet,
            weights=weights,
        )

    def _choose(
        self,
        cost: Cost,
        scores: Sequence[float],
        candidates: Sequence[Candidate],
        temperature: float,
        rng: Random,
    ) -> int:
        costs = [-score for score in scores] if cost.maximise else scores
        if temperature > 0.0:
            return choose_softmax(costs, temperature, rng)
        if self.options.smallest_tree_ties:
            return choose_least(costs, rng, [one.cached_blocks for one in candidates])
        return choose_least(costs, rng)

    def _choose_blind(self, mode: str, candidates: Sequence[Candidate], rng: Random) -> int:
        if mode == "round-robin":
            names = [one.worker for one in candidates]
            return names.index(WorkerId(next_in_turn(names, self._last_turn)))
        if mode == "random":
            return pick(len(candidates), rng)
        requests = [one.active_requests for one in candidates]
        if mode == "power-of-two" and len(requests) > 1:
            first, second = two_of(len(requests), rng)
            return first if requests[first] <= requests[second] else second
        return choose_least(requests, rng)

    def _weights_for(self, request: RouteRequest) -> Weights:
        if request.overlap_score_weight is None:
            return self._weights
        return msgspec.structs.replace(
            self._weights, overlap_score_weight=request.overlap_score_weight
        )

    def _overlaps(self, hashes: Hashes) -> Mapping[WorkerId, int]:
        overlaps: dict[WorkerId, int] = {}
        if self._index is not None:
            for depth, workers in self._index.find_groups(hashes):
                overlaps.update(dict.fromkeys(workers, depth))
            for worker in self.workers.distrusted:
                overlaps.pop(worker, None)
        if self._routed is not None:
            for depth, workers in self._routed.find_groups(hashes):
                for worker in workers:
                    if depth > overlaps.get(worker, 0):
                        overlaps[worker] = depth
        return overlaps

    def _known_keys(self, hashes: Hashes, overlaps: Mapping[WorkerId, int]) -> Sequence[int]:
        return self.sequences.sharing_keys(hashes.upto(max(overlaps.values(), default=0)))

    def _candidate(
        self, worker: WorkerId, request: RouteRequest, overlap: int, keys: Sequence[int]
    ) -> Candidate:
        size = self.options.block_size
        loads = self.sequences.loads(worker)
        report = self.workers.last_report(worker)
        blocks = -(-request.prompt_tokens // size)
        shared = loads.shared_blocks(keys, self.sequences.stride) if overlap else 0
        capacity = self.workers.capacity_blocks(worker)
        used = max(report.used_blocks, loads.active_blocks)
        return Candidate(
            worker=worker,
            block_size=size,
            prompt_tokens=request.prompt_tokens,
            overlap_blocks=overlap,
            request_blocks=blocks,
            uncached_tokens=max(0, request.prompt_tokens - overlap * size),
            prefill_tokens=loads.prefill_tokens,
            active_blocks=loads.active_blocks,
            decode_blocks=loads.active_blocks + blocks - shared,
            active_requests=loads.active_requests,
            outstanding_tokens=loads.prompt_tokens,
            waiting_requests=report.waiting_requests,
            cache_usage=min(1.0, used / capacity) if capacity else 0.0,
            capacity_blocks=capacity,
            wait_ms=loads.prefill_tokens * _PRIOR_MS_PER_TOKEN,
            ms_per_token=_PRIOR_MS_PER_TOKEN,
        )

    def _book(self, request: RouteRequest, decision: Decision, now: float) -> None:
        worker = decision.worker
        hashes = request.hashes
        kv = (request.mode or self.options.mode) == "kv"
        known = hashes.upto(len(hashes) if kv and self._routed is not None else 0)
        if known and self._routed is not None:
            exact = self._index is not None and self.workers.info(worker).trust is Trust.EXACT
            ttl_s = self.options.predict_ttl_s if exact else self.options.approx_ttl_s
            if ttl_s > 0.0:
                self._routed.record(worker, known, now, ttl_s)
        if not known:
            known = hashes.upto(decision.overlap_blocks)
        overlap_tokens = decision.overlap_blocks * self.options.block_size
        self.sequences.add(
            request.request_id,
            worker,
            Demand(
                prompt_tokens=request.prompt_tokens,
                uncached_tokens=request.prompt_tokens - overlap_tokens,
                expected_output_tokens=request.expected_output_tokens,
                keys=tuple(self.sequences.sharing_keys(known)),
            ),
            now,
        )
        self.workers.membership.mark_chosen(worker, now)
        if decision.policy == "round-robin":
            self._last_turn = worker
        self._decisions += 1
        self._overlap_blocks += decision.overlap_blocks
        self._request_blocks += decision.total_blocks
