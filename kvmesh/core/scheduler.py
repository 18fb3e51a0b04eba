"""The decision in one synchronous turn: overlaps, loads, cost, choice, booking."""

from collections.abc import Sequence

import msgspec

from kvmesh.core.cost import Candidate, Cost, Weights, cost_named, survey
from kvmesh.core.decision import Decision, RouteRequest, RouterMode, RouterOptions
from kvmesh.core.events import WorkerId
from kvmesh.core.loads import Booking, Demand
from kvmesh.core.membership import Membership
from kvmesh.core.overlaps import OverlapView, RoutedIndex, SizedIndex
from kvmesh.core.selection import Random, choose_least, choose_softmax, next_in_turn, pick, two_of
from kvmesh.core.sequences import ActiveSequences
from kvmesh.core.speeds import Speeds
from kvmesh.core.worker_registry import WorkerRegistry
from kvmesh.errors import NoWorkerError

_MEMORY_MARGIN = 0.95


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
    A peer replica's bookings go straight into `sequences` under the peer's name as owner; its
    first tokens, growth and ends may come through here, so that speeds are learned from all.
    """

    def __init__(
        self,
        options: RouterOptions,
        rng: Random,
        *,
        membership: Membership,
        sequences: ActiveSequences,
        index: SizedIndex | None = None,
        routed: RoutedIndex | None = None,
    ) -> None:
        self.options = options
        self.sequences = sequences
        self.speeds = Speeds()
        self.workers = WorkerRegistry(membership, sequences)
        self.overlaps = OverlapView(
            index,
            routed,
            self.workers.distrusted,
            predict_ttl_s=options.predict_ttl_s,
            approx_ttl_s=options.approx_ttl_s,
        )
        self._rng = rng
        self._cost = cost_named(options.cost)
        self._weights = msgspec.structs.replace(
            options.weights, overlap_score_weight=options.overlap_score_weight
        )
        self._last_turn = ""
        self._decisions = 0
        self._refused = 0
        self._overlap_blocks = 0
        self._request_blocks = 0

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
        booking = self.sequences.first_token(request_id, now)
        if booking is not None:
            self.speeds.first_token(booking.worker, booking.service_tokens, booking.service_s, now)

    def grow(self, request_id: str, output_tokens: int, now: float) -> None:
        """Note a request's output so far, in tokens. Once per block of output is often enough."""
        booking = self.sequences.booking(request_id)
        if booking is not None:
            tokens, elapsed_s = output_tokens - booking.output_tokens, now - booking.output_s
            if not booking.prefilling:
                self.speeds.output(booking.worker, tokens, elapsed_s)
            self.sequences.grow(request_id, output_tokens, now)

    def finish(self, request_id: str, now: float) -> None:
        """Release a request, however it ended."""
        booking = self.sequences.finish(request_id)
        if booking is not None:
            self.speeds.finished(booking.worker, now - booking.booked_s)

    def remove_worker(self, worker: WorkerId) -> list[Booking]:
        """Forget a worker that left; return the bookings released with it."""
        self.workers.remove(worker)
        self.overlaps.remove_worker(worker)
        self.speeds.remove_worker(worker)
        return self.sequences.remove_worker(worker)

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
        self.sequences.settle(now, self.speeds.ms_per_token)
        candidates = self._candidates(names, request, mode, now)
        fleet = survey(candidates, weights)
        scores = [cost.formula(one, fleet, weights) for one in candidates]
        if mode == "kv":
            chosen = self._choose(request, cost, scores, candidates, rng)
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
        request: RouteRequest,
        cost: Cost,
        scores: Sequence[float],
        candidates: Sequence[Candidate],
        rng: Random,
    ) -> int:
        costs = [-score for score in scores] if cost.maximise else scores
        temperature = request.temperature
        if temperature is None:
            temperature = self.options.temperature
        if temperature > 0.0:
            return choose_softmax(costs, temperature, rng)
        if self.options.smallest_tree_ties:
            return choose_least(costs, rng, [one.cached_blocks for one in candidates])
        return choose_least(costs, rng)

    def _choose_blind(self, mode: RouterMode, candidates: Sequence[Candidate], rng: Random) -> int:
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

    def _candidates(
        self, names: Sequence[WorkerId], request: RouteRequest, mode: RouterMode, now: float
    ) -> list[Candidate]:
        overlaps = self.overlaps.find_matches(request.hashes) if mode == "kv" else {}
        deepest = max(overlaps.values(), default=0)
        keys = self.sequences.sharing_keys(request.hashes.upto(deepest))
        return [self._candidate(name, request, overlaps.get(name, 0), keys, now) for name in names]

    def _candidate(
        self,
        worker: WorkerId,
        request: RouteRequest,
        overlap: int,
        keys: Sequence[int],
        now: float,
    ) -> Candidate:
        size = self.options.block_size
        loads = self.sequences.loads(worker)
        report = self.workers.last_report(worker)
        blocks = -(-request.prompt_tokens // size)
        shared = loads.shared_blocks(keys, self.sequences.stride) if overlap else 0
        decode_blocks = loads.active_blocks + blocks - shared
        capacity = self.workers.capacity_blocks(worker)
        ms_per_token = self.speeds.ms_per_token(worker)
        memory_wait_ms = 0.0
        if capacity:
            output_blocks = -(-request.expected_output_tokens // size) + loads.expected_blocks
            over = (decode_blocks + output_blocks) / capacity - _MEMORY_MARGIN
            memory_wait_ms = max(0.0, over) * self.speeds.residence_ms(worker)
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
            decode_blocks=decode_blocks,
            active_requests=loads.active_requests,
            outstanding_tokens=loads.prompt_tokens,
            waiting_requests=report.waiting_requests,
            cache_usage=min(1.0, used / capacity) if capacity else 0.0,
            capacity_blocks=capacity,
            cached_blocks=self.overlaps.cached_blocks(worker),
            wait_ms=loads.wait_ms(ms_per_token, now),
            ms_per_token=ms_per_token,
            memory_wait_ms=memory_wait_ms,
        )

    def _book(self, request: RouteRequest, decision: Decision, now: float) -> None:
        worker, hashes = decision.worker, request.hashes
        if (request.mode or self.options.mode) == "kv":
            self.overlaps.record(worker, hashes, now)
        overlap_tokens = decision.overlap_blocks * self.options.block_size
        known = hashes.upto(decision.overlap_blocks)
        self.sequences.add(
            request.request_id,
            worker,
            Demand(
                prompt_tokens=request.prompt_tokens,
                uncached_tokens=request.prompt_tokens - overlap_tokens,
                expected_output_tokens=request.expected_output_tokens,
                keys=tuple(self.sequences.sharing_keys(known)),
                streams=request.streams,
            ),
            now,
        )
        self.workers.membership.mark_chosen(worker, now)
        if decision.policy == "round-robin":
            self._last_turn = worker
        self._decisions += 1
        self._overlap_blocks += decision.overlap_blocks
        self._request_blocks += decision.total_blocks
