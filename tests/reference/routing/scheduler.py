"""Naive model of core.routing.scheduler and kvmesh/native/decide: books, believes and learns."""

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import msgspec

from kvmesh._native import Booking
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.graded import sharing_keys
from kvmesh.core.blocks.hashing import ALL_BLOCKS, Hashes
from kvmesh.core.cost.terms import Brought, Candidate
from kvmesh.core.members.loads import OVERDUE, Demand
from kvmesh.core.members.outcomes import SERVED, Attempt, Verdict
from kvmesh.core.routing.decision import Decision, RouteRequest
from kvmesh.core.routing.scheduler import Scheduler, SchedulerStatistics
from kvmesh.core.routing.sessions import Sessions
from kvmesh.errors import NoWorkerError
from tests.reference.routing.chooser import Chooser
from tests.reference.routing.homes import count_home, rates_of, seed_of
from tests.reference.routing.weighing import load_tokens


class NaiveRecord(NamedTuple):
    decision: Decision
    prefilled: bool = False

    @property
    def worker(self) -> WorkerId:
        return self.decision.worker

    @property
    def overlap_blocks(self) -> int:
        return self.decision.overlap_blocks

    @property
    def block_size(self) -> int:
        return self.decision.chosen.block_size

    @property
    def prompt_tokens(self) -> int:
        return self.decision.chosen.prompt_tokens

    @property
    def uncached_tokens(self) -> int:
        return self.decision.chosen.uncached_tokens


class NaivePlaced(NamedTuple):
    record: NaiveRecord


class NaiveScheduler(Scheduler):
    """Chooses by the model of the compiled choice, and does what follows from it itself."""

    _decisions = _overlap_blocks = _request_blocks = 0

    def statistics(self) -> SchedulerStatistics:
        return SchedulerStatistics(
            self._decisions, self._refused, self._overlap_blocks, self._request_blocks
        )

    def schedule(self, request: RouteRequest, now: float) -> NaivePlaced:  # type: ignore[override]
        placed = self.schedule_within(request, now, inf)
        assert placed is not None
        return placed

    def schedule_within(  # type: ignore[override]
        self, request: RouteRequest, now: float, max_backlog_ms: float
    ) -> NaivePlaced | None:
        decision = self._choose(request, now)
        if decision.chosen.wait_ms > max_backlog_ms:
            return None
        self._book(request, decision, now)
        return NaivePlaced(NaiveRecord(decision))

    def explain(self, request: RouteRequest, now: float) -> Decision:
        likeliest = msgspec.structs.replace(request, temperature=0.0)
        if request.session and self.sessions is not None:
            kept = self._keep(self.sessions, likeliest, now, likeliest=True)
            if kept is not None:
                return kept
        return Chooser(self).choose(likeliest, now, whole=True, likeliest=True)

    def first_token(self, request_id: str, now: float) -> None:
        """Note that a request's prefill is done."""
        if self.slo.open:
            self.slo.first_token(request_id, now)
        live = self.sequences.bookings.get(request_id)
        expected = None if live is None else live.hashes
        keep_s = 0 if live is None else live.keep_s
        booking = self.sequences.first_token(request_id, now)
        if booking is not None:
            self._believe_served(booking.worker, expected, now, keep_s)
            self._health.began(booking.worker, now)
            if self.late.waiting:
                self.late.begin(booking.worker, now)
            if self.prepared_first(booking, now):
                return
            self.speeds.first_token(booking.worker, booking.service_tokens, booking.service_s, now)

    def grow(self, request_id: str, output_tokens: int, now: float) -> None:
        """Note a request's output so far, in tokens. Once per block of output is often enough."""
        booking = self.sequences.bookings.get(request_id)
        if booking is not None:
            tokens, elapsed_s = output_tokens - booking.output_tokens, now - booking.output_s
            if not booking.prefilling:
                self.speeds.output(booking.worker, tokens, elapsed_s)
            self.sequences.grow(request_id, output_tokens, now)

    def finish(self, request_id: str, now: float, attempt: Attempt = SERVED) -> Booking | None:
        """Release a request and take what its `attempt` showed of the worker; return its booking
        the first time, else None.

        Only what was served teaches speeds and lengths. What the worker was expected to cache of a
        prompt is believed from its service on, and no longer unless it was served, or showed a
        first token.
        """
        self.workers.adapters.ended(request_id)
        on_device = self.fetches.ended(request_id) if self.fetches else None
        booking = self.sequences.finish(request_id)
        if booking is None:
            return None
        worker = booking.worker
        if attempt.verdict is Verdict.SERVED:
            self._believe_served(worker, booking.hashes, now, booking.keep_s)
            self.slo.served(request_id, booking.output_tokens, now)
        if self.late.waiting:
            self.late.end(booking, now, served=attempt.verdict is Verdict.SERVED)
        if attempt.verdict is Verdict.SERVED:
            if not (booking.prefilling and booking.streams):
                self.speeds.finished(worker, now - booking.booked_s, booking.output_tokens)
        elif booking.hashes is not None:
            cached_tokens = booking.prompt_tokens - booking.uncached_tokens
            if on_device is not None:
                cached_tokens = on_device
            self.overlaps.retract(worker, booking.hashes, cached_tokens // self.options.block_size)
        if attempt.verdict is Verdict.PROMPT:
            self.workers.forgive(request_id, now)
        if attempt is not SERVED or not self._health.served(worker, now):
            self.workers.note(worker, attempt, now, request_id)
        return booking

    def prefilled_s(self, booking: Booking) -> float:
        """Return when the prefill of one that has just been released is taken to have ended.

        Of whole answers nobody sees that: it ends in its time, whether it was looked at or not.
        """
        if not booking.prefilling:
            return booking.output_s
        began_s = max(self.sequences.loads(booking.worker).progress_s, booking.booked_s)
        ms_per_token = self.speeds.ms_per_token(booking.worker)
        return began_s + OVERDUE * ms_per_token / 1000.0 * booking.uncached_tokens

    def _believe_served(
        self, worker: WorkerId, expected: Hashes | bytes | None, now: float, keep_s: int
    ) -> None:
        """Believe what a booking was expected to cache from its service on: what was believed since
        it was sent may have been revoked with another request, or be over.

        Where events confirm it they say so by now, and later what was evicted: to believe it anew
        would hide that.
        """
        if expected is None or isinstance(expected, bytes) or self.overlaps.confirms(worker):
            return
        self.overlaps.record(worker, expected, now, keep_s)

    def _choose(self, request: RouteRequest, now: float) -> Decision:  # type: ignore[override]
        """Choose a worker. Of the targets of a request with excluded workers, which failed it, as
        much is met as can be.
        """
        if request.targets is None:
            return self._decide(request, now)
        self.slo.arrive(request.request_id, request.targets, now)
        decision = self._decide(request, now)
        best = decision.best_forecast
        if best is None or request.excluded or not self.judge.is_hopeless(best, request.priority):
            return decision
        self._refused += 1
        leaves_ms = self.speeds.residence_ms(best.worker)
        raise self.judge.refuse(request.request_id, request.targets, best, leaves_ms)

    def _decide(self, request: RouteRequest, now: float) -> Decision:
        try:
            if request.session and self.sessions is not None:
                kept = self._keep(self.sessions, request, now)
                if kept is not None:
                    return kept
            return Chooser(self).choose(request, now, whole=self.trace)
        except NoWorkerError:
            self._refused += 1
            raise

    def _keep(  # type: ignore[override]
        self, sessions: Sessions, request: RouteRequest, now: float, *, likeliest: bool = False
    ) -> Decision | None:
        """Return the decision for the session's worker; None when the session may move.

        Raises `NoWorkerError` when a hard session's worker is only busy.
        """
        worker = sessions.find(request.session, now)
        if worker is None or request.pinned_worker is not None:
            return None
        hard = sessions.options.affinity == "hard"
        pinned = msgspec.structs.replace(request, pinned_worker=worker)
        try:
            decision = Chooser(self).choose(pinned, now, likeliest=likeliest)
        except NoWorkerError as error:
            if hard and error.busy:
                raise
            return None
        if not hard and (
            decision.chosen.wait_ms > sessions.options.slack_ms
            or self.judge.is_hopeless(decision.forecast, request.priority)
        ):
            return None
        return msgspec.structs.replace(decision, kept=True)

    def _believe(
        self, worker: WorkerId, request: RouteRequest, now: float, *, late: bool
    ) -> Sequence[int] | None:
        """Count a routed prompt as cached, `late` ones not yet; return its blocks, None for none.

        No event ever confirms approximate hashes.
        """
        overlaps, options = self.overlaps, self.options
        ttl_s = options.approx_ttl_s if request.approximate else overlaps.ttl_s(worker)
        if overlaps.routed is None or ttl_s <= 0.0:
            return None
        blocks = request.hashes.upto(ALL_BLOCKS)
        if blocks and not late:
            confirmed = not request.approximate and overlaps.confirms(worker)
            overlaps.routed.record(worker, blocks, now, ttl_s, 0 if confirmed else request.keep_s)
        return blocks or None

    def _book(self, request: RouteRequest, decision: Decision, now: float) -> None:  # type: ignore[override]
        worker, hashes = decision.worker, request.hashes
        if request.targets is not None:
            self.slo.sent(request.request_id, request.targets, decision.forecast, now)
        kv = self.options.mode == "kv" or request.mode == "kv"
        counted, sequences = None, self.sequences
        score = self.late.workers.get(worker)
        behind = sequences.loads(worker).waiting_requests > 0
        late = kv and score is not None and (behind or score < 0) and not request.approximate
        if kv:
            counted = self._believe(worker, request, now, late=late)
        known = hashes.upto(ALL_BLOCKS if kv else 0) if counted is None else counted
        demand = Demand(
            prompt_tokens=request.prompt_tokens,
            uncached_tokens=_computed_tokens(decision.chosen),
            expected_output_tokens=request.expected_output_tokens,
            keys=tuple(sharing_keys(known)),
            streams=request.streams,
            hashes=None if counted is None else hashes,
            turn=decision.policy == "round-robin",
            keep_s=request.keep_s,
        )
        booked = sequences.add(request.request_id, worker, demand, now)
        if late and booked and counted is not None:
            self.late.add(sequences.bookings[request.request_id])
        if decision.brought is not None:
            self.bring(request.request_id, decision.chosen, decision.brought)
        if request.adapter:
            self.load_adapter(
                request.request_id, request.adapter, decision.chosen, streams=request.streams
            )
        if self._health.out:
            self._health.chosen(worker, now, request.request_id)
        if request.session and self.sessions is not None:
            self.sessions.bind(request.session, worker, now)
        if decision.arm is not None:
            decision.arm.left -= 1
        if request.affinity:
            all_blocks = hashes.upto(ALL_BLOCKS if kv else 0)
            seed = seed_of(request.affinity, all_blocks, self.options.block_size)
            count_home(rates_of(self), seed, now)
        self._decisions += 1
        self._overlap_blocks += decision.overlap_blocks
        self._request_blocks += decision.total_blocks

    def prepared_first(self, booking: Booking, now: float) -> bool:
        return self.known.prepared_first(booking, now)

    def bring(self, request_id: str, chosen: Candidate, brought: Brought) -> None:
        self.fetches.booked(
            request_id,
            chosen.worker,
            brought,
            prompt=chosen.prompt_tokens,
            held=chosen.overlap_blocks * chosen.block_size,
        )

    def load_adapter(
        self, request_id: str, adapter: str, chosen: Candidate, *, streams: bool
    ) -> None:
        adapters = self.workers.adapters
        adapters.use(chosen.worker, adapter)
        if chosen.adapter_ms and streams:
            own_tokens = _computed_tokens(chosen) + chosen.step_tokens
            alone = not chosen.prefill_tokens
            usual_ms = chosen.ms_per_token * own_tokens if alone else None
            adapters.load(request_id, usual_ms)


def _computed_tokens(chosen: Candidate) -> int:
    if not chosen.adapter_ms:
        return chosen.uncached_tokens
    return chosen.uncached_tokens - load_tokens(chosen.adapter_ms, chosen.ms_per_token)
