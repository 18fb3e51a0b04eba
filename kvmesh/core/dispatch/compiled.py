"""The way of a request through routing in compiled calls: one to decide, one to finish.

It takes requests that wish nothing unusual, under a policy that looks at each worker alone. All
others go through `Dispatch`, over the same state, which says what the compiled calls have to do.
"""

from collections.abc import Callable
from functools import partial
from typing import Any, Final, Protocol, cast

from msgspec.structs import astuple

from kvmesh.compiled import NATIVE, Native
from kvmesh.core.blocks.events import ROOT
from kvmesh.core.blocks.hashing import NO_HASHES, Hashes
from kvmesh.core.cost.catalogue import Pricing
from kvmesh.core.cost.quick import native_formula
from kvmesh.core.cost.terms import NO_FLEET, Candidate, survey
from kvmesh.core.dispatch.dispatch import Dispatch, Dispatched
from kvmesh.core.engines.sse import Usage
from kvmesh.core.health.outcomes import SERVED
from kvmesh.core.insight.decision_record import DecisionRecord
from kvmesh.core.insight.predictions import AnswerSeen
from kvmesh.core.programs.turn import Turn
from kvmesh.core.routing.decision import Decision, RouteRequest
from kvmesh.core.routing.output_lengths import NO_FORECAST, Families
from kvmesh.core.routing.peers.outbox import BookingOutbox
from kvmesh.core.workers.loads import Booking

MODES: Final = frozenset({"kv", "round-robin", "random", "least-loaded", "power-of-two"})
"""Those that the compiled core chooses by."""


class Scanned(Protocol):
    """What routing reads of a body (kvmesh/native/scanned.c)."""

    body: bytes
    model: str
    bare: bool
    cache_key: str
    messages: list[tuple[str, str]] | None
    prompt: str | None


Terms = tuple[Any, ...]
"""A candidate's, in the order of `Candidate`."""


class CompiledRecord(Protocol):
    """What a record keeps of a compiled decision until somebody reads it."""

    request_id: bytes
    policy: str
    score: float
    considered: int
    by_cache: bool
    best_overlap_blocks: int
    told_blocks: int

    def terms(self) -> Terms:
        """Return the chosen candidate's terms."""
        ...

    def weighed(self) -> list[tuple[float, Terms]]:
        """Return score and terms of all candidates, where they were kept."""
        ...


class Placed(Protocol):
    """A request that was decided and is on its way (kvmesh/native/decider.c)."""

    record: DecisionRecord
    booking: Booking | None
    request_id: str
    model: str
    hashes: Hashes | None
    prompt_tokens: int
    expected_output_tokens: int
    choices: int
    told_tokens: int
    streams: bool
    waiting: bool
    families: Families
    unseen_s: float


class CompiledDispatch:
    """Decides, watches and finishes requests by the compiled core, where there is one.

    `root` is the seed of a prompt's first block. `looks`: prompts count.
    Raises `RuntimeError` without a compiled core.
    """

    def __init__(self, dispatch: Dispatch, root: int = ROOT) -> None:
        if NATIVE is None:
            raise RuntimeError("there is no compiled core here: requests go through Dispatch")
        scheduler, log = dispatch.scheduler, dispatch.log
        self._dispatch = dispatch
        self._native: Native = NATIVE
        self._root = root
        self._scheduler = scheduler
        self._log = log
        self.looks = scheduler.options.mode == "kv"
        self._followed: object = None
        self._usable = False
        health = scheduler.workers.membership.health
        overlaps = scheduler.overlaps
        self._decider = decider = NATIVE.Decider(
            sequences=scheduler.sequences,
            speeds=scheduler.speeds,
            lengths=scheduler.lengths,
            ring=log.records,
            totals=log.totals,
            tokens=dispatch.tokens,
            distrusted=scheduler.workers.distrusted,
            out=health.out,
            health=health,
            random=scheduler.rng.random,
            unseen=scheduler.unseen_speeds,
            replica=scheduler.options.replica,
            routed=overlaps.routed,
            heard=overlaps.heard,
            index=overlaps.index,
            decide_s=dispatch.phases.decide,
            late=scheduler.late,
            late_workers=scheduler.workers.late,
            late_waiting=scheduler.late.waiting,
        )
        scheduler.decider = decider
        self._decide = decider.decide
        self._finish = decider.finish
        self.seen: Callable[[Placed, int, float], bool] = decider.seen

    def decide(
        self,
        scanned: Scanned,
        packed: bytes | memoryview | None,
        request_id: bytes,
        tenant: str,
        now: float,
        name: str | None = None,
    ) -> Placed | None:
        """Choose a worker, book the request there and record why; None: `Dispatch` has to.

        `packed` are the prompt's token ids, little-endian u32; None: those of its bytes. `name` is
        that of its booking, where that is not its id.
        """
        scheduler, binding, log = self._scheduler, self._dispatch.binding, self._log
        if scheduler.course is not self._followed:
            self._follow()
        index = scheduler.overlaps.index
        if (
            not self._usable
            or binding.bounded
            or binding.waiting
            or (index is not None and len(index.tiers) > 1)
            or scheduler.workers.fetchers
            or not (self.looks or log.ring is None)
        ):
            return None
        states = scheduler.workers.plain(scanned.model, now)
        if not states:
            return None
        whole = log.may_weigh_all(now)
        placed: Placed | None
        placed = self._decide(scanned, packed, request_id, tenant, states, now, whole, name)
        if placed is not None:
            if whole and log.left_out is not None:
                placed.record.left_out = log.left_out(now)
            dispatch = self._dispatch
            if dispatch.follows_events and now >= dispatch.predictions.look_at_s:
                self._look(placed, now)
        return placed

    def tell(self, outbox: BookingOutbox | None) -> None:
        """Have an outbox of `new_booking_outbox` told of bookings from now on, None: nobody."""
        self._decider.tell(outbox)

    def _look(self, placed: Placed, now: float) -> None:
        """Note what its worker's events had told of the prompt, where that is evidence."""
        record = cast("CompiledRecord", placed.record)
        if record.by_cache:
            chosen = Candidate(*record.terms())
            told = self._dispatch.look(chosen, record.told_blocks, now)
            placed.told_tokens = -1 if told is None else told

    def finish(
        self, placed: Placed, status: int, usage: Usage | None, now: float
    ) -> Booking | None:
        """Release a request that was served, and learn from it; return its booking that once."""
        booking: Booking | None
        booking, well = self._finish(placed, status, usage, now)
        if booking is not None and self._scheduler.late.waiting:
            self._scheduler.late.end(booking, now, served=True)
        if not well:
            self._scheduler.workers.note(placed.record.worker, SERVED, now, placed.request_id)
        self._compare(placed, usage, now)
        return booking

    def _compare(self, placed: Placed, usage: Usage | None, now: float) -> None:
        """Hold the predicted overlap against the engine's `cached_tokens`."""
        record, dispatch = placed.record, self._dispatch
        dispatch.accesses.count(record.worker, usage, record.block_size)
        if usage is None or usage.cached_tokens is None or not record.by_cache:
            return
        answer = AnswerSeen(
            prompt=placed.prompt_tokens,
            counted=usage.prompt_tokens,
            predicted=record.overlap_blocks * record.block_size,
            cached=usage.cached_tokens,
            decided_s=record.decided_s,
            told=placed.told_tokens if placed.told_tokens >= 0 else None,
        )
        dispatch.judge(record.worker, answer, now)

    def continued(self, placed: Placed, turn: Turn | None = None) -> Dispatched:
        """Return a request for `Dispatch` to go on with, the booking as it is, and its program's
        turn, which was begun.
        """
        record = placed.record
        request = RouteRequest(
            request_id=placed.request_id,
            hashes=NO_HASHES if placed.hashes is None else placed.hashes,
            prompt_tokens=placed.prompt_tokens,
            expected_output_tokens=placed.expected_output_tokens,
            model=placed.model,
            streams=placed.streams,
            tenant=record.tenant,
            choices=placed.choices,
            turn=turn,
        )
        forecast = NO_FORECAST if record.forecast is None else record.forecast
        return Dispatched(
            request,
            record.request_id,
            placed.families,
            forecast,
            record=record,
            decision=record.decision,
            sent_s=record.decided_s,
            told=placed.told_tokens if placed.told_tokens >= 0 else None,
            waiting=placed.waiting,
            taking=turn is not None,
        )

    def _follow(self) -> None:
        """Decide by what the scheduler follows now, if that can be compiled."""
        scheduler, options = self._scheduler, self._scheduler.options
        self.looks = options.mode == "kv"
        self._followed = scheduler.course
        pricing = scheduler.policy
        cost, mode = pricing.cost, options.mode
        formula = native_formula(self._native, cost)
        self._usable = (
            formula is not None
            and mode in MODES
            and scheduler.arms is None
            and options.temperature <= 0.0
            and not options.smallest_tree_ties
        )
        if formula is None or not self._usable:
            return
        self._decider.resize(options.block_size)
        self._decider.follow(
            mode,
            formula,
            astuple(pricing.weights),
            cost.margin,
            cost.name if mode == "kv" else mode,
            partial(_make_decision, pricing),
            options.predict_ttl_s,
            options.approx_ttl_s,
            self._root,
        )


def _make_decision(pricing: Pricing, record: CompiledRecord) -> Decision:
    """Return what a compiled decision was, of what its record has."""
    cost, weights = pricing.cost, pricing.weights
    chosen = Candidate(*record.terms())
    candidates: tuple[Candidate, ...] = (chosen,)
    scores: tuple[float, ...] = (record.score,)
    if weighed := record.weighed():
        candidates = tuple(Candidate(*terms) for _, terms in weighed)
        chosen = next(one for one in candidates if one.worker == chosen.worker)
        scores = tuple(score for score, _ in weighed)
    fleet = survey(candidates, weights) if weighed or not record.by_cache else NO_FLEET
    return Decision(
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
    )
