"""What a decision needs to know of a request besides its prompt and its course: what its workers
have to do first, and which of them are in time.

The compiled core asks for each where it needs it, by an attribute that is None where a request has
no such input (kvmesh/native/decide/decide.c).
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec

from kvmesh._native import ActiveSequences, Booking, Record, Speeds
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import NO_HASHES, Hashes
from kvmesh.core.cost.arms import Arm, Arms
from kvmesh.core.cost.targets import Targets
from kvmesh.core.cost.terms import Candidate
from kvmesh.core.index.overlaps import OverlapView
from kvmesh.core.routing.choice.made import Maker
from kvmesh.core.routing.choice.slo_judge import SloJudge
from kvmesh.core.routing.choice.slo_tracker import SloTracker
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.core.routing.fetching import FetchPlanner, PendingFetches
from kvmesh.core.routing.registry import WorkerRegistry

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


class Asks(msgspec.Struct, frozen=True, gc=False):
    """What a request asks for besides its prompt, and by which name."""

    request_id: str
    targets: Targets | None = None
    priority: int = 0
    adapter: str = ""
    session: str = ""
    streams: bool = False


def asks_of(request: RouteRequest) -> Asks:
    """Return what a request asks for."""
    return Asks(
        request.request_id,
        request.targets,
        request.priority,
        request.adapter,
        request.session,
        request.streams,
    )


class Inputs:
    """The inputs of one request, and what becomes of them once it is booked.

    `course_of` takes its hashes (None: it has none) and returns what it is decided by; `prepare`
    takes them and returns what each worker has to do first; `allow` tells those to choose among.
    Each is None where there is nothing to ask. `made` makes its `Decision`. `whole` is the request
    where workers may fetch for it. With `hopeless` that is raised where its targets would be missed
    at every worker.
    """

    __slots__ = ("allow", "asks", "course_of", "known", "made", "now", "prepare")

    def __init__(
        self,
        known: Known,
        asks: Asks,
        made: Maker,
        now: float,
        *,
        whole: RouteRequest | None = None,
        hopeless: type[Exception] | None = None,
    ) -> None:
        self.known = known
        self.asks = asks
        self.now = now
        self.made = made
        self.course_of: Callable[[Hashes | None], object] | None = None
        targets = asks.targets
        if targets is not None:
            made.forecasts = known.judge.foretell(
                *(asks.request_id, targets, asks.priority, now, hopeless)
            )
        self.allow = made.forecasts
        brings = asks.adapter or known.workers.fetchers or known.has_tiers()
        # Not a method of this one: it would keep itself.
        self.prepare = _Preparing(known, asks.adapter, whole, made, now) if brings else None

    @property
    def adapter(self) -> str:
        """Return the request's LoRA adapter, "" for none."""
        return self.asks.adapter

    def try_arms(self, arms: Arms, course_of: Callable[[Arm], object]) -> None:
        """Decide by the arm that is compared now; `course_of` knows what that decides by."""
        arm, made = arms.find(), self.made
        if arm is None:
            return

        def choose(_: Hashes | None) -> object:
            # Not before: what the request would be decided by else is noted in between.
            made.arm, made.pricing = arm, arm.policy
            return course_of(arm)

        self.course_of = choose

    def are_followed(self) -> bool:
        """Return whether anything becomes of them once the request is booked."""
        asks, made = self.asks, self.made
        followed = asks.adapter or asks.targets is not None or made.arm is not None
        return bool(followed or made.brought)

    def booked(self, record: Record, booking: Booking | None) -> None:
        """Note that the request was booked as `record` says."""
        known, asks, made, worker = self.known, self.asks, self.made, WorkerId(record.worker)
        if made.arm is not None:
            made.arm.left -= 1
        if made.brought or asks.adapter:
            chosen = made.candidates([record.terms()])[0]
            if (brought := made.brought.get(worker)) is not None:
                held = chosen.overlap_blocks * chosen.block_size
                known.fetches.booked(
                    asks.request_id, worker, brought, prompt=chosen.prompt_tokens, held=held
                )
            if asks.adapter:
                self._load_adapter(chosen, booking)
        if asks.targets is not None:
            known.slo.sent(asks.request_id, asks.targets, made.forecast(worker), self.now)

    def _load_adapter(self, chosen: Candidate, booking: Booking | None) -> None:
        """Note that the worker holds the request's adapter ready from now on."""
        adapters, asks = self.known.workers.adapters, self.asks
        adapters.use(chosen.worker, asks.adapter)
        if chosen.adapter_ms and asks.streams and booking is not None:
            own_tokens = booking.uncached_tokens + chosen.step_tokens
            alone = not chosen.prefill_tokens
            usual_ms = chosen.ms_per_token * own_tokens if alone else None
            adapters.load(asks.request_id, usual_ms)

    def begun(self, booking: Booking | None, waited_ms: float, now: float) -> bool:
        """Note the first token; return whether its time says nothing of the worker's speed. None:
        its booking is none that waited for it.
        """
        known, asks, made = self.known, self.asks, self.made
        if asks.targets is not None:
            known.slo.first_token(asks.request_id, now)
        if made.arm is not None:
            made.arm.counter.began(waited_ms)
        if booking is None or not (asks.adapter or made.brought):
            return False
        return known.prepared_first(booking, now)

    def served(self, booking: Booking | None, now: float) -> None:
        """Note that the request was served."""
        known, asks = self.known, self.asks
        if asks.adapter or self.made.brought:
            known.workers.adapters.ended(asks.request_id)
            known.fetches.ended(asks.request_id)
        if asks.targets is not None and booking is not None:
            known.slo.served(asks.request_id, booking.output_tokens, now)


class _Preparing(NamedTuple):
    """Tells what workers have to do first for a request."""

    known: Known
    adapter: str
    whole: RouteRequest | None
    made: Maker
    now: float

    def __call__(self, hashes: Hashes | None) -> dict[WorkerId, Prepared]:
        """Return it of each that has to do anything."""
        known = self.known
        prepared: dict[WorkerId, Prepared] = {}
        if known.workers.fetchers or (hashes is not None and known.has_tiers()):
            size = known.sequences.block_size
            found = known.overlaps.find(hashes or NO_HASHES, self.now)
            if found.slower or known.workers.fetchers:
                self.made.brought = known.planner.plan(found, self.whole, size, self.now)
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
        return prepared
