"""What a decision needs to know of a request besides its prompt and its course: what its workers
have to do first, and which of them are in time.

The compiled core asks for each where it needs it, by an attribute that is None where a request has
no such input (kvmesh/native/decide/decide.c).
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from kvmesh._native import ActiveSequences, Booking, Record, Speeds
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import NO_HASHES, Hashes
from kvmesh.core.cost.arms import Arm, Arms
from kvmesh.core.cost.terms import Candidate
from kvmesh.core.index.overlaps import OverlapView
from kvmesh.core.routing.choice.made import Maker, Terms
from kvmesh.core.routing.decision import Decision, RouteRequest
from kvmesh.core.routing.fetching import FetchPlanner, PendingFetches
from kvmesh.core.routing.registry import WorkerRegistry
from kvmesh.core.routing.slo.judge import SloJudge, in_time
from kvmesh.core.routing.slo.tracker import SloTracker

Prepared = tuple[int, int, int, int, float, float]
"""What a worker has to do first: blocks of the prompt that it has in any memory (-1: as found),
tokens from another worker, what bringing them is worth in tokens, blocks in slower memory, ms of
bringing, ms of loading an adapter.
"""

_AS_FOUND: Prepared = (-1, 0, 0, 0, 0.0, 0.0)


class HopelessError(Exception):
    """A request would miss its targets at every worker: who counts refusals has to refuse it."""


class Known(NamedTuple):
    """What is known of the workers."""

    workers: WorkerRegistry
    overlaps: OverlapView
    sequences: ActiveSequences
    speeds: Speeds
    planner: FetchPlanner
    fetches: PendingFetches
    slo: SloTracker
    judge: SloJudge

    def has_tiers(self) -> bool:
        """Return whether some worker keeps blocks in slower memory than its device's."""
        index = self.overlaps.index
        return index is not None and len(index.tiers) > 1

    def prepared_first(self, booking: Booking, now: float) -> bool:
        """Learn from the first token of a request whose worker brought or loaded something first;
        False for one whose worker did not: its time tells how fast the worker computes.
        """
        if self.fetches and self.fetches.first_token(booking, now):
            return True
        return self.workers.adapters.loaded(booking.request_id, booking.service_s * 1000.0)


class Inputs:
    """The inputs of one request, and what becomes of them once it is booked.

    `course_of` takes its hashes (None: it has none) and returns what it is decided by; `prepare`
    takes them and returns what each worker has to do first, and the most blocks that any has;
    `allow` takes cost and terms of all and returns the places of those to choose among. Each is
    None where there is nothing to ask. `maker` makes its `Decision`. With `refuses`, `allow` raises
    `HopelessError` where its targets would be missed at every worker.
    """

    __slots__ = ("course_of", "known", "made", "now", "refuses", "request")

    def __init__(
        self,
        known: Known,
        request: RouteRequest,
        made: Maker,
        now: float,
        *,
        refuses: bool = False,
    ) -> None:
        self.known = known
        self.request = request
        self.now = now
        self.made = made
        self.refuses = refuses
        self.course_of: Callable[[Hashes | None], object] | None = None

    @property
    def maker(self) -> Callable[[Record], Decision]:
        """Return what makes its decision of a record."""
        return self.made.make

    @property
    def prepare(self) -> Callable[[Hashes | None], tuple[dict[WorkerId, Prepared], int]] | None:
        """Return what tells what workers have to do first, None where that is nothing."""
        known = self.known
        brings = known.workers.fetchers or known.has_tiers()
        return self._prepare if self.adapter or brings else None

    @property
    def allow(self) -> Callable[[Sequence[tuple[float, Terms]]], list[int]] | None:
        """Return what tells among whom to choose, None where that is all."""
        return None if self.request.targets is None else self._in_time

    @property
    def adapter(self) -> str:
        """Return the request's LoRA adapter, "" for none."""
        return self.request.adapter

    def _prepare(self, hashes: Hashes | None) -> tuple[dict[WorkerId, Prepared], int]:
        known, reach = self.known, 0
        prepared: dict[WorkerId, Prepared] = {}
        if known.workers.fetchers or (hashes is not None and known.has_tiers()):
            size = known.sequences.block_size
            found = known.overlaps.find(hashes or NO_HASHES, self.now)
            if found.slower:
                reach = max(found.overlaps.values())
            if found.slower or known.workers.fetchers:
                self.made.brought = known.planner.plan(found, self.request, size, self.now)
            for worker, one in self.made.brought.items():
                blocks = found.overlaps.get(worker, 0)
                slower = one.own_tokens() // size
                fetched, worth = one.fetched_tokens, one.worth_tokens
                prepared[worker] = (blocks, fetched, worth, slower, one.ms, 0.0)
        if self.adapter:
            workers = known.workers
            for worker, ms in workers.adapters.cold(self.adapter, workers.known).items():
                blocks, fetched, worth, slower, fetch_ms, _ = prepared.get(worker, _AS_FOUND)
                prepared[worker] = (blocks, fetched, worth, slower, fetch_ms, ms)
        return prepared, reach

    def _in_time(self, weighed: Sequence[tuple[float, Terms]]) -> list[int]:
        known, request = self.known, self.request
        candidates = self.made.candidates([terms for _, terms in weighed])
        tpot_ms = known.speeds.ms_per_output_token
        self.made.forecasts = known.slo.foretell(request, candidates, tpot_ms, self.now)
        places = in_time(self.made.forecasts, request.priority)
        if self.refuses:
            best = min(self.made.forecasts, key=lambda one: one.chance)
            if known.judge.is_hopeless(best, request.priority):
                raise HopelessError
        return places

    def try_arms(self, arms: Arms, course_of: Callable[[Arm], object]) -> None:
        """Decide by the arm that the request belongs to; `course_of` knows what that decides by."""
        request, made = self.request, self.made

        def choose(hashes: Hashes | None) -> object:
            arm = arms.find(request.request_id, request.session, hashes or NO_HASHES)
            made.arm, made.pricing = arm, arm.policy
            return course_of(arm)

        self.course_of = choose

    def are_followed(self) -> bool:
        """Return whether anything becomes of them once the request is booked."""
        request, made = self.request, self.made
        followed = request.adapter or request.targets is not None or made.arm is not None
        return bool(followed or made.brought)

    def booked(self, worker: WorkerId, terms: Terms, booking: Booking | None) -> None:
        """Note that the request was booked at a worker."""
        known, request, made = self.known, self.request, self.made
        if made.brought or request.adapter:
            chosen = made.candidates([terms])[0]
            if (brought := made.brought.get(worker)) is not None:
                held = chosen.overlap_blocks * chosen.block_size
                known.fetches.booked(
                    request.request_id, worker, brought, prompt=chosen.prompt_tokens, held=held
                )
            if request.adapter:
                self._load_adapter(chosen, booking)
        if request.targets is not None:
            known.slo.sent(request.request_id, request.targets, made.forecast(worker), self.now)

    def _load_adapter(self, chosen: Candidate, booking: Booking | None) -> None:
        """Note that the worker holds the request's adapter ready from now on."""
        adapters, request = self.known.workers.adapters, self.request
        adapters.use(chosen.worker, request.adapter)
        if chosen.adapter_ms and request.streams and booking is not None:
            own_tokens = booking.uncached_tokens + chosen.step_tokens
            alone = not chosen.prefill_tokens
            usual_ms = chosen.ms_per_token * own_tokens if alone else None
            adapters.load(request.request_id, usual_ms)

    def learn_arm(self, arms: Arms | None, hashes: Hashes | None) -> None:
        """Remember the conversation of a request that was booked by an arm."""
        request = self.request
        if arms is not None and self.made.arm is not None:
            arms.learn(request.request_id, request.session, hashes or NO_HASHES)

    def begun(self, booking: Booking | None, waited_ms: float, now: float) -> bool:
        """Note the first token; return whether its time says nothing of the worker's speed. None:
        its booking is none that waited for it.
        """
        known = self.known
        if known.slo.open:
            known.slo.first_token(self.request.request_id, now)
        if self.made.arm is not None:
            self.made.arm.counter.began(waited_ms)
        return booking is not None and known.prepared_first(booking, now)

    def served(self, booking: Booking | None, now: float) -> None:
        """Note that the request was served."""
        known, request = self.known, self.request
        known.workers.adapters.ended(request.request_id)
        known.fetches.ended(request.request_id)
        if request.targets is not None and booking is not None:
            known.slo.served(request.request_id, booking.output_tokens, now)
