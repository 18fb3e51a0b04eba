"""What a compiled decision takes in beside a prompt and loads: what workers have to bring or load
first, the targets of the request, the arm of a policy on trial.

The compiled core asks for each where it needs it, by an attribute that is None where a request has
no such input (kvmesh/native/decide.c).
"""

from collections.abc import Callable, Sequence

import msgspec

from kvmesh._native import Booking, Record
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import NO_HASHES, Hashes
from kvmesh.core.cost.catalogue import Pricing
from kvmesh.core.cost.terms import NO_FLEET, Brought, Candidate, survey
from kvmesh.core.rollout.arms import Arm, Arms
from kvmesh.core.routing.decision import Decision, RouteRequest
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.core.routing.slo.forecast import Forecast
from kvmesh.core.routing.slo.judge import in_time

Terms = tuple[
    WorkerId, int, int, int, int, int, int, int, int, int, int, int, float, int, int,
    float, float, float, float, float, float, float, float, float, float, str, float,
]  # fmt: skip
"""A candidate's, in the order of `Candidate`."""

Prepared = tuple[int, int, int, int, float, float]
"""What a worker has to do first: blocks of the prompt that it has in any memory (-1: as found),
tokens from another worker, what bringing them is worth in tokens, blocks in slower memory, ms of
bringing, ms of loading an adapter.
"""


_AS_FOUND: Prepared = (-1, 0, 0, 0, 0.0, 0.0)


class HopelessError(Exception):
    """A request would miss its targets at every worker: who counts refusals has to refuse it."""


class Maker:
    """Makes the `Decision` of a compiled decision, once somebody reads it.

    `kept`: its session's worker. A record keeps it: nothing here leads back to who decides.
    """

    __slots__ = ("arm", "brought", "forecasts", "kept", "pricing")

    def __init__(self, pricing: Pricing, *, kept: bool) -> None:
        self.pricing = pricing
        self.kept = kept
        self.arm: Arm | None = None
        self.brought: dict[WorkerId, Brought] = {}
        self.forecasts: tuple[Forecast, ...] = ()

    def make(self, record: Record) -> Decision:
        """Return what the decision was."""
        cost, weights = self.pricing.cost, self.pricing.weights
        chosen = Candidate(*record.terms())
        candidates: tuple[Candidate, ...] = (chosen,)
        scores: tuple[float, ...] = (record.score,)
        if weighed := record.weighed():
            candidates = tuple(Candidate(*terms) for _, terms in weighed)
            chosen = next(one for one in candidates if one.worker == chosen.worker)
            scores = tuple(score for score, _ in weighed)
        fleet = survey(candidates, weights) if weighed or not record.by_cache else NO_FLEET
        decision = Decision(
            request_id=record.request_id.decode("latin-1"),
            worker=chosen.worker,
            overlap_blocks=chosen.overlap_blocks,
            total_blocks=chosen.request_blocks,
            policy=record.policy,
            score=record.score,
            considered=record.considered,
            chosen=chosen,
            candidates=candidates,
            scores=scores,
            cost=cost,
            fleet=fleet,
            weights=weights,
            by_cache=record.by_cache,
            best_overlap_blocks=record.best_overlap_blocks,
            told_blocks=record.told_blocks,
            kept=self.kept,
            arm=self.arm,
            brought=self.brought.get(chosen.worker),
        )
        return self._with_forecasts(decision) if self.forecasts else decision

    def forecast(self, worker: WorkerId) -> Forecast | None:
        """Return what was foretold of the request at a worker."""
        return next((one for one in self.forecasts if one.worker == worker), None)

    def _with_forecasts(self, decision: Decision) -> Decision:
        told = {one.worker: one for one in self.forecasts}
        return msgspec.structs.replace(
            decision,
            forecast=told[decision.worker],
            best_forecast=min(self.forecasts, key=lambda one: one.chance),
            forecasts=tuple(told[one.worker] for one in decision.candidates),
        )


class Inputs:
    """The inputs of one request that has any, and what becomes of them once it is booked.

    `course_of` takes its hashes (None: it has none) and returns what it is decided by; `prepare`
    takes them and returns what each worker has to do first, and the most blocks that any has;
    `allow` takes score and terms of all and returns the places of those to choose among, or raises
    `HopelessError`. Each is None where there is nothing to ask. `maker` makes its `Decision`.
    """

    __slots__ = ("_now", "_request", "_scheduler", "course_of", "made")

    def __init__(
        self, scheduler: Scheduler, request: RouteRequest, made: Maker, now: float
    ) -> None:
        self._scheduler = scheduler
        self._request = request
        self._now = now
        self.made = made
        self.course_of: Callable[[Hashes | None], object] | None = None

    @property
    def maker(self) -> Callable[[Record], Decision]:
        """Return what makes its decision of a record."""
        return self.made.make

    @property
    def prepare(self) -> Callable[[Hashes | None], tuple[dict[WorkerId, Prepared], int]] | None:
        """Return what tells what workers have to do first, None where that is nothing."""
        return self._prepare if self.adapter or has_tiers(self._scheduler) else None

    @property
    def allow(self) -> Callable[[Sequence[tuple[float, Terms]]], list[int]] | None:
        """Return what tells among whom to choose, None where that is all."""
        return None if self._request.targets is None else self._in_time

    @property
    def adapter(self) -> str:
        """Return the request's LoRA adapter, "" for none."""
        return self._request.adapter

    def try_arms(self, arms: Arms, course_of: Callable[[Arm], object]) -> None:
        """Decide by the arm that the request belongs to; `course_of` knows what that decides by."""
        request, made = self._request, self.made

        def choose(hashes: Hashes | None) -> object:
            arm = arms.find(request.request_id, request.session, hashes or NO_HASHES)
            made.arm, made.pricing = arm, arm.policy
            return course_of(arm)

        self.course_of = choose

    def _prepare(self, hashes: Hashes | None) -> tuple[dict[WorkerId, Prepared], int]:
        scheduler, reach = self._scheduler, 0
        prepared: dict[WorkerId, Prepared] = {}
        if hashes is not None and has_tiers(scheduler):
            size = scheduler.options.block_size
            found = scheduler.overlaps.find(hashes, self._now)
            if found.slower:
                reach = max(found.overlaps.values())
                brought = scheduler.planner.plan(found, self._request, size, self._now)
                self.made.brought = brought
                for worker, one in brought.items():
                    blocks = found.overlaps.get(worker, 0)
                    slower = one.own_tokens() // size
                    fetched, worth = one.fetched_tokens, one.worth_tokens
                    prepared[worker] = (blocks, fetched, worth, slower, one.ms, 0.0)
        if self.adapter:
            workers = scheduler.workers
            for worker, ms in workers.adapters.cold(self.adapter, workers.known).items():
                blocks, fetched, worth, slower, fetch_ms, _ = prepared.get(worker, _AS_FOUND)
                prepared[worker] = (blocks, fetched, worth, slower, fetch_ms, ms)
        return prepared, reach

    def _in_time(self, weighed: Sequence[tuple[float, Terms]]) -> list[int]:
        scheduler, request = self._scheduler, self._request
        candidates = [Candidate(*terms) for _, terms in weighed]
        tpot_ms = scheduler.speeds.ms_per_output_token
        found = scheduler.slo.foretell(request, candidates, tpot_ms, self._now)
        best = min(found, key=lambda one: one.chance)
        if scheduler.judge.is_hopeless(best, request.priority):
            raise HopelessError
        self.made.forecasts = found
        return in_time(found, request.priority)

    def booked(self, worker: WorkerId, terms: Terms) -> None:
        """Note that the request was booked at a worker."""
        scheduler, request, made = self._scheduler, self._request, self.made
        if made.brought or request.adapter:
            chosen = Candidate(*terms)
            if (brought := made.brought.get(worker)) is not None:
                scheduler.bring(request.request_id, chosen, brought)
            if request.adapter:
                scheduler.load_adapter(
                    request.request_id, request.adapter, chosen, streams=request.streams
                )
        if request.targets is not None:
            scheduler.slo.sent(
                request.request_id, request.targets, made.forecast(worker), self._now
            )

    def learn_arm(self, arms: Arms | None, hashes: Hashes | None) -> None:
        """Remember the conversation of a request that was booked by an arm."""
        request = self._request
        if arms is not None and self.made.arm is not None:
            arms.learn(request.request_id, request.session, hashes or NO_HASHES)

    def begun(self, booking: Booking | None, waited_ms: float, now: float) -> bool:
        """Note the first token; return whether its time says nothing of the worker's speed. None:
        its booking is none that waited for it.
        """
        scheduler = self._scheduler
        if scheduler.slo.open:
            scheduler.slo.first_token(self._request.request_id, now)
        if self.made.arm is not None:
            self.made.arm.counter.began(waited_ms)
        return booking is not None and scheduler.prepared_first(booking, now)

    def served(self, booking: Booking | None, now: float) -> None:
        """Note that the request was served."""
        scheduler, request = self._scheduler, self._request
        scheduler.workers.adapters.ended(request.request_id)
        scheduler.fetches.ended(request.request_id)
        if request.targets is not None:
            if booking is not None:
                scheduler.slo.served(request.request_id, booking.output_tokens, now)
            scheduler.slo.close(request.request_id)


def has_tiers(scheduler: Scheduler) -> bool:
    """Return whether some worker keeps blocks in slower memory than its device's."""
    index = scheduler.overlaps.index
    return index is not None and len(index.tiers) > 1
