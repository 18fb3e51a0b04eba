"""Naive model of core.dispatch: one request on its way, told in Python what becomes of it.

It knows no turns of programs, and nobody who follows a worker's cache.
"""

from collections.abc import Callable
from math import inf
from typing import Any, Final

import msgspec

from kvmesh._native import Booking
from kvmesh.core.admission.queue import AdmissionOptions, Refusal
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import NO_HASHES
from kvmesh.core.cost.arms import Arm
from kvmesh.core.cost.terms import Candidate
from kvmesh.core.engines.sse import Usage
from kvmesh.core.insight.decision_log import DecisionLog
from kvmesh.core.insight.decision_record import State
from kvmesh.core.insight.predictions import AnswerSeen, CacheAccesses, Distrust, Predictions
from kvmesh.core.members.outcomes import SERVED, Attempt
from kvmesh.core.routing.decision import Decision, RouteRequest
from kvmesh.core.routing.late_binding import LateBinding
from kvmesh.core.routing.output_lengths import Families, OutputForecast
from kvmesh.errors import NoWorkerError, UnattainableError
from tests.reference.decision_log import decided, ring_of, totals_of
from tests.reference.insight.decision_record import Record
from tests.reference.routing.output_lengths import NO_FORECAST
from tests.reference.routing.scheduler import NaiveScheduler

_SERVER_ERROR: Final = 500
_NOBODY: Final[frozenset[WorkerId]] = frozenset()


class Dispatched(msgspec.Struct):
    """One request on its way: what was asked, decided and seen so far. Times in seconds.

    `visible_id` is the id that the client knows. Admission was asked about it at `asked_s` (-1: not
    at all), and if it could go its tenant is `charged`; `tried`: it could not go at once.
    `decision` is the last one, made at `sent_s`; `reported` tokens of the prompt its worker's own
    events had told of then, None where that proves nothing. `waiting`: no token was seen.
    `output_tokens` are those counted when its last booking was released; those that nobody could
    count began to come `unseen_s` before.
    """

    request: RouteRequest
    visible_id: bytes
    families: Families = ()
    forecast: OutputForecast = NO_FORECAST
    asked_s: float = -1.0
    charged: bool = False
    tried: bool = False
    record: Record | None = None
    decision: Decision | None = None
    sent_s: float = 0.0
    reported: int | None = None
    waiting: bool = True
    output_tokens: int = 0
    unseen_s: float = 0.0


class Dispatch:
    """Does as `core.dispatch.dispatch.Dispatch`, over a `NaiveScheduler`."""

    def __init__(
        self,
        scheduler: NaiveScheduler,
        log: DecisionLog,
        distrust: Callable[[WorkerId, Distrust], None],
        *,
        follows_events: bool,
    ) -> None:
        self.scheduler = scheduler
        self.log = log
        self.binding = LateBinding(scheduler, AdmissionOptions(max_backlog_ms=0.0))
        self.predictions = Predictions(scheduler.options.block_size)
        self.accesses = CacheAccesses()
        self.tokens = totals_of(log).tokens
        self._distrust = distrust
        self.follows_events = follows_events

    def resize(self, block_size: int) -> None:
        """Decide and judge by blocks of another size from now on."""
        self.scheduler.resize(block_size)
        self.predictions.resize(block_size)

    def enter(self, request: RouteRequest, visible_id: bytes) -> Dispatched:
        """Take a request in: from now on its answer is expected to be as long as such answers were,
        at most as its client allows.

        Raises `RequestError` if it names a formula or a weight that there is not.
        """
        if request.cost is not None or request.overlap_score_weight is not None:
            self.scheduler.pricing(request)
        families, forecast = self.scheduler.lengths.forecast(request.hashes)
        if forecast.samples:
            tokens = max(1, round(forecast.tokens))
            if not 0 < request.expected_output_tokens <= tokens:
                request = msgspec.structs.replace(request, expected_output_tokens=tokens)
        return Dispatched(request, visible_id, families, forecast)

    def decide(
        self, one: Dispatched, now: float, failed: frozenset[WorkerId] = _NOBODY
    ) -> Decision | Refusal | NoWorkerError | None:
        """Choose a worker but those that `failed` the request, book it there and record why.

        Where requests are held its first question goes through `binding`: None, it waits there; a
        refusal, or an error that waiting would not help. Raises `NoWorkerError` where none are
        held. What would miss its targets everywhere is refused, held or not.
        """
        try:
            return self._decide(one, now, failed)
        except UnattainableError as error:
            return Refusal(
                error.status,
                str(error),
                error.retry_after_s,
                code=error.code or "",
                final=error.final,
            )

    def _decide(
        self, one: Dispatched, now: float, failed: frozenset[WorkerId]
    ) -> Decision | Refusal | NoWorkerError | None:
        if one.asked_s < 0.0 and self.binding.limit_ms(one.request.targets) < inf:
            one.asked_s = now
            answer = self._ask(one.request, now, tried=one.tried)
            if not isinstance(answer, Decision):
                return answer
            one.charged = True
            return self._enter(one, answer, now)
        return self._enter(one, self._choose(one.request, now, failed), now)

    def seen(self, one: Dispatched, tokens: int, now: float) -> bool:
        """Take the tokens of an answer so far: the first ends the prefill, more grow the booking.

        Return whether this was the first.
        """
        scheduler, request_id, first = self.scheduler, one.request.request_id, one.waiting
        if first:
            one.waiting = False
            # A stream may be long, and 100 KB of prompt have 250 KB of hashes.
            one.request = msgspec.structs.replace(one.request, hashes=NO_HASHES)
            scheduler.first_token(request_id, now)
            if one.record is not None:
                ring_of(self.log).first_token(one.record, now)
                if one.decision is not None and one.decision.arm is not None:
                    one.decision.arm.counter.began(_since_ms(one, one.record, now))
        if tokens > 1:
            scheduler.grow(request_id, tokens, now)
        return first

    def release(self, one: Dispatched, attempt: Attempt, now: float) -> Booking | None:
        """Give the worker back that was decided on last, and take what its attempt showed; return
        the booking, None when it was released before.
        """
        booking = self.scheduler.finish(one.request.request_id, now, attempt)
        one.output_tokens = booking.output_tokens if booking is not None else 0
        if booking is not None and not booking.streams:
            one.unseen_s = now - self.scheduler.prefilled_s(booking)
        return booking

    def finished(
        self,
        one: Dispatched,
        attempt: Attempt,
        state: State,
        status: int,
        usage: Usage | None,
        now: float,
    ) -> None:
        """Take the end of a request that has released its booking, with the status its client got.

        What was served teaches how long answers become (`usage`, else what was counted), and
        whether the cache was predicted right.
        """
        tokens = (usage.completion_tokens if usage is not None else 0) or one.output_tokens
        if one.record is None:
            self.log.totals.refused(now)
        else:
            one.record.output_tokens = one.output_tokens
            one.record.reported = usage
            ring_of(self.log).end(one.record, state, status, now)
            totals_of(self.log).ended(one.record, told=not one.request.prefilled)
            if one.decision is not None and one.decision.arm is not None:
                whole_ms = _since_ms(one, one.record, now)
                count_ended(one.record, one.decision.arm, tokens, whole_ms, now)
        if one.request.targets is not None:
            self.scheduler.slo.close(one.request.request_id)
        if one.charged:
            self.binding.settle(one.request.tenant, one.request.expected_output_tokens, tokens)
        if attempt is not SERVED:
            return
        if tokens:
            self.scheduler.lengths.learn(one.families, tokens, one.forecast)
        if one.decision is not None:
            self._learn_pace(one, one.decision.worker, tokens, now)
            self._compare(one, one.decision, usage, now)

    def _learn_pace(self, one: Dispatched, worker: WorkerId, tokens: int, now: float) -> None:
        """Learn how long the worker took for an answer of `tokens`, 0 for not known."""
        speeds, record = self.scheduler.speeds, one.record
        if not one.request.streams:
            if tokens and one.unseen_s > 0.0:
                speeds.output(worker, tokens, one.unseen_s)
                speeds.answered(worker, tokens, one.unseen_s)
        elif tokens > 1 and record is not None and record.first_token_s is not None:
            speeds.answered(worker, tokens - 1, now - record.first_token_s)

    def _ask(
        self, request: RouteRequest, now: float, *, tried: bool
    ) -> Decision | Refusal | NoWorkerError | None:
        if not tried:
            self.scheduler.trace = self.log.may_weigh_all(now)
        try:
            answer: Any = self.binding.ask(request, now, tried=tried)
            return (
                answer if answer is None or isinstance(answer, Refusal) else answer.record.decision
            )
        except NoWorkerError as error:
            # With its frames, which lead back to those that hold it now, it would keep the request.
            return error.with_traceback(None)

    def _choose(self, request: RouteRequest, now: float, failed: frozenset[WorkerId]) -> Decision:
        if failed:
            request = msgspec.structs.replace(request, excluded=request.excluded | failed)
        self.scheduler.trace = self.log.may_weigh_all(now)
        return self.scheduler.schedule(request, now).record.decision

    def _enter(self, one: Dispatched, decision: Decision, now: float) -> Decision:
        """Record what was decided and booked."""
        record = one.record
        if record is None:
            name, hashes = one.visible_id, one.request.hashes
            one.record = record = decided(self.log, name, decision, hashes, now)
            record.forecast, record.tenant = one.forecast, one.request.tenant
            if one.request.estimated:
                record.estimated = True
            if one.asked_s >= 0.0:
                record.held_ms = max(0.0, now - one.asked_s) * 1000.0
        else:
            ring_of(self.log).take_again(record, decision)
            one.waiting = True
            one.families, one.forecast = self.scheduler.lengths.forecast(one.request.hashes)
        one.decision, one.sent_s, one.reported = decision, now, None
        if self.follows_events and decision.by_cache and now >= self.predictions.check_at_s:
            one.reported = self.check(decision.chosen, decision.told_blocks, now)
        return decision

    def check(self, chosen: Candidate, told_blocks: int, now: float) -> int | None:
        """Return the tokens of a prompt that its worker's events had told of, where that is
        evidence. To be asked from `predictions.check_at_s` on.
        """
        trust = self.scheduler.workers.info(chosen.worker).trust
        return self.predictions.reported(chosen, told_blocks, trust, now)

    def _compare(
        self, one: Dispatched, decision: Decision, usage: Usage | None, now: float
    ) -> None:
        """Hold the predicted overlap against the engine's `cached_tokens`; too many misses make
        the worker doubted.
        """
        request = one.request
        self.accesses.count(decision.worker, usage, decision.chosen.block_size)
        if usage is None or usage.cached_tokens is None:
            return
        predicted = decision.overlap_blocks * decision.chosen.block_size
        fetched = decision.brought is not None and decision.brought.source is not None
        if not decision.by_cache or fetched:
            return
        answer = AnswerSeen(
            prompt=request.prompt_tokens,
            counted=usage.prompt_tokens,
            predicted=predicted,
            cached=usage.cached_tokens,
            decided_s=one.sent_s,
            reported=one.reported,
        )
        self.judge(decision.worker, answer, now)

    def judge(self, worker: WorkerId, answer: AnswerSeen, now: float) -> None:
        """Hold an answer against its prediction; too many misses make the worker doubted."""
        distrust = self.predictions.compare(worker, answer, now)
        if distrust is not None:
            self._distrust(worker, distrust)


def _since_ms(one: Dispatched, record: Record, now: float) -> float:
    """Return how long the request has been here, what it was held included."""
    began_s = one.asked_s if one.asked_s >= 0.0 else record.decided_s
    return max(0.0, now - began_s) * 1000.0


def count_ended(record: Record, arm: Arm, tokens: int, whole_ms: float, now: float) -> None:
    """Count an ended request, which was here for `whole_ms`, for the arm that decided it.

    An answer without a first token has its whole time for that, and so has a client that left
    before: it may have found it long.
    """
    counter, ms_per_token = arm.counter, None
    if record.first_token_s is None:
        if record.state in ("finished", "client_gone"):
            counter.began(whole_ms)
    elif record.state == "finished" and tokens > 1:
        ms_per_token = max(0.0, now - record.first_token_s) * 1000.0 / (tokens - 1)
    failed = record.state == "cut" or record.status >= _SERVER_ERROR
    counter.ended(failed=failed, ms_per_token=ms_per_token)
