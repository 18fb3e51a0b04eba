"""The one way of a request through routing: decided, its tokens seen, finished.

What a request was scanned for is decided and booked in one compiled call (`core.dispatch.placing`);
all others, and each second attempt, by the same choice and the same booking in two.
"""

from collections.abc import Callable
from collections.abc import Set as AbstractSet
from math import inf
from typing import Final

import msgspec

from kvmesh._native import Booking, BookingOutbox, Placed, Record, TokenCounts
from kvmesh.core.admission.queue import AdmissionOptions, Refusal
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.chat.prompt_form import REASONS
from kvmesh.core.cost.arms import Arm
from kvmesh.core.cost.terms import Candidate
from kvmesh.core.dispatch.dispatched import Dispatched, as_read
from kvmesh.core.dispatch.phases import Phases
from kvmesh.core.dispatch.turns import Turns, turn_served
from kvmesh.core.engines.kv_events.regaining import MOST_HASHES, CacheHit
from kvmesh.core.engines.sse import Usage
from kvmesh.core.insight.decision_log import DecisionLog
from kvmesh.core.insight.decision_record import State
from kvmesh.core.insight.predictions import AnswerSeen, CacheAccesses, Distrust, Predictions
from kvmesh.core.members.outcomes import SERVED, Attempt
from kvmesh.core.programs.governor import Governor
from kvmesh.core.programs.turn import TurnEnd
from kvmesh.core.routing.choice.inputs import Inputs
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.core.routing.late_binding import LateBinding
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.errors import NoWorkerError, UnattainableError

_SERVER_ERROR: Final = 500
_NOBODY: Final[frozenset[WorkerId]] = frozenset()


class Ending(msgspec.Struct, frozen=True, gc=False):
    """How a request ended: the `status` its client got, what the engine reported; `watched` False:
    its times were not seen, so that a policy on trial is not judged by them.
    """

    attempt: Attempt
    state: State
    status: int
    usage: Usage | None = None
    watched: bool = True


class Dispatch:
    """Takes a request in (`enter`), gives it a worker (`decide`, again after a failure), and learns
    what became of it (`seen`, `release` for each booking that was not served, `finished`).

    `distrust` has what is known of a worker sent anew when predictions about it miss;
    `follows_events`: the index is told by engines, not by decisions alone. `timer` tells seconds,
    for `phases`. `governor` says which programs may take turns; None: nobody waits for a turn.
    `on_served` is told what answers of the workers `wanting` that say of their caches.
    """

    def __init__(
        self,
        scheduler: Scheduler,
        log: DecisionLog,
        timer: Callable[[], float],
        distrust: Callable[[WorkerId, Distrust], None],
        *,
        follows_events: bool,
        governor: Governor | None = None,
    ) -> None:
        self.scheduler = scheduler
        self.log = log
        self.turns = Turns(governor, scheduler.options.block_size)
        self.binding = LateBinding(scheduler, AdmissionOptions(max_backlog_ms=0.0), governor)
        self.predictions = Predictions(scheduler.options.block_size)
        self.accesses = CacheAccesses()
        self.phases = Phases()
        self.tokens = TokenCounts()
        self.unforeseen: dict[str, int] = dict.fromkeys(REASONS, 0)
        self.wanting: AbstractSet[WorkerId] = _NOBODY
        self.on_served: Callable[[WorkerId, CacheHit], None] | None = None
        self._timer = timer
        self._distrust = distrust
        self.follows_events = follows_events
        self._decider = decider = scheduler.decider
        decider.log(log.records, log.totals, self.tokens, self.phases.of_decisions(), _begun)

    def publish_to(self, outbox: BookingOutbox | None) -> None:
        """Have an outbox told of bookings from now on, None: nobody."""
        self._decider.publish_to(outbox)

    def resize(self, block_size: int) -> None:
        """Decide and judge by blocks of another size from now on."""
        self.scheduler.resize(block_size)
        self.predictions.resize(block_size)
        self.turns.chains.block_size = block_size
        if self.log.ring is not None:
            self.log.ring.resize(block_size)

    def enter(self, request: RouteRequest, visible_id: bytes) -> Dispatched:
        """Take a request in: from now on its answer is expected to be as long as such answers were,
        at most as its client allows.

        Raises `RequestError` if it names a formula or a weight that there is not.
        """
        if request.cost is not None or request.overlap_score_weight is not None:
            self.scheduler.pricing(request)
        _, forecast = self.scheduler.lengths.forecast(request.hashes)
        if forecast.samples:
            tokens = max(1, round(forecast.tokens))
            if not 0 < request.expected_output_tokens <= tokens:
                request = msgspec.structs.replace(request, expected_output_tokens=tokens)
        return as_read(request, visible_id)

    def decide(
        self, one: Dispatched, now: float, failed: frozenset[WorkerId] = _NOBODY
    ) -> Placed | Refusal | NoWorkerError | None:
        """Choose a worker but those that `failed` the request, book it there and record why.

        Where requests are held, and where its program may have to wait, its first question goes
        through `binding`: None, it waits there and `given` is its booking when its turn comes; a
        refusal, or an error that waiting would not help. Raises `NoWorkerError` where none are
        held. What would miss its targets everywhere is refused, held or not. A program that was
        given its turn keeps it while another worker is tried.
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
    ) -> Placed | Refusal | NoWorkerError | None:
        placed, one.given = one.given, None
        if placed is not None:
            one.charged = one.taking = True
        elif one.asked_s < 0.0 and self._may_hold(one.request, now):
            one.asked_s = now
            answer = self._ask(one.request, now, tried=one.tried)
            if not isinstance(answer, Placed):
                return answer
            placed = answer
            one.charged = one.taking = True
        else:
            placed = self._choose(one.request, now, failed)
            if one.turn is not None:
                self.leave_turn(one, now)
                self.turns.begin(one.turn, placed.record.worker, now)
                one.taking = True
        self._enter(one, placed, now)
        return placed

    def _may_hold(self, request: RouteRequest, now: float) -> bool:
        """Return whether a request has to be asked about before it may go."""
        if self.binding.limit_ms(request.targets) < inf:
            return True
        return request.turn is not None and self.turns.may_hold(request.turn, now)

    def leave_turn(self, one: Dispatched, now: float, end: TurnEnd | None = None) -> None:
        """Note that a program's turn is over, if it was begun: by default, in vain."""
        turn, placed = one.turn, one.given or one.placed
        taking, one.taking = one.taking or one.given is not None, False
        if taking and turn is not None and placed is not None:
            self.turns.end(turn, end or TurnEnd(served=False, worker=placed.record.worker), now)

    def seen(self, one: Dispatched, tokens: int, now: float) -> bool:
        """Take the tokens of an answer so far: the first ends the prefill, more grow the booking.

        Return whether this was the first.
        """
        placed = one.placed
        assert placed is not None, "only what was decided is answered"
        if placed.waiting:
            if self.wanting and placed.record.worker in self.wanting:
                one.hashes = one.request.hashes
            if one.made is not None:
                one.drop_hashes()
        return self._decider.seen(placed, tokens, now)

    def release(self, one: Dispatched, attempt: Attempt, now: float) -> Booking | None:
        """Give the worker back that was decided on last, and take what its attempt showed; return
        the booking, None when it was released before.
        """
        assert one.placed is not None, "only what was decided is released"
        return self.scheduler.release(one.placed, attempt, now)

    def finished(self, one: Dispatched, end: Ending, now: float) -> Booking | None:
        """Take the end of a request; return the booking of one that was served, that once.

        What was served is released by it, teaches how long answers become (by what was reported,
        else counted), and whether the cache was predicted right. What was not was released before.
        """
        placed, booking = one.placed, None
        served = end.attempt is SERVED
        tokens = 0 if end.usage is None else end.usage.completion_tokens
        if placed is None:
            self.log.totals.refused(now)
        else:
            booking, well = self._decider.finish(
                placed, served, end.state, end.status, end.usage, now
            )
            record = placed.record
            tokens = tokens or record.output_tokens
            if placed.inputs is not None:
                self._end_inputs(placed, booking, end, tokens, now)
            if one.charged:
                self.binding.settle(record.tenant, placed.expected_output_tokens, tokens)
            if one.taking:
                uncached = record.uncached_tokens
                over = turn_served(record.worker, end.usage, tokens, uncached) if served else None
                self.leave_turn(one, now, over)
            if not well:
                self.scheduler.workers.note(record.worker, SERVED, now, placed.request_id)
            if served:
                self._compare(one, placed, end.usage, now)
        if one.targets is not None:
            self.scheduler.slo.close(one.name)
        return booking

    def _end_inputs(
        self, placed: Placed, booking: Booking | None, end: Ending, tokens: int, now: float
    ) -> None:
        """Take the end of what a request asked for besides its prompt."""
        inputs = placed.inputs
        assert inputs is not None, "its caller looked"
        if end.attempt is SERVED:
            inputs.served(booking, now)
        if end.watched and (arm := inputs.made.arm) is not None:
            count_ended(placed.record, arm, tokens, _since_ms(placed.record, now), now)

    def _ask(
        self, request: RouteRequest, now: float, *, tried: bool
    ) -> Placed | Refusal | NoWorkerError | None:
        if not tried:
            self.scheduler.trace = self.log.may_weigh_all(now)
        try:
            return self.binding.ask(request, now, tried=tried)
        except NoWorkerError as error:
            # With its frames, which lead back to those that hold it now, it would keep the request.
            return error.with_traceback(None)

    def _choose(self, request: RouteRequest, now: float, failed: frozenset[WorkerId]) -> Placed:
        """Choose and book at once; measure how long that takes."""
        scheduler, timer = self.scheduler, self._timer
        if failed:
            request = msgspec.structs.replace(request, excluded=request.excluded | failed)
        scheduler.trace = self.log.may_weigh_all(now)
        began = timer()
        placed = scheduler.schedule(request, now)
        self.phases.decide.observe(timer() - began)
        return placed

    def _enter(self, one: Dispatched, placed: Placed, now: float) -> None:
        """Record what was decided and booked."""
        before, record, request = one.placed, placed.record, one.request
        if before is None:
            if request.overridden:
                record.overridden = request.departs_from(self.scheduler.options)
            if one.asked_s >= 0.0:
                record.held_ms = max(0.0, now - one.asked_s) * 1000.0
            left_out = self.log.left_out
            if left_out is not None and (record.kept or 1) == record.considered:
                record.left_out = left_out(now)
        again = None if before is None else before.record
        self._decider.enter(placed, one.visible_id, request.tenant, again, now)
        one.placed = placed
        if self.follows_events:
            self.check(placed, now)

    def check(self, placed: Placed, now: float) -> None:
        """Note what its worker's events had told of a prompt, where that is evidence; there are
        some.
        """
        record = placed.record
        if record.by_cache and now >= self.predictions.check_at_s:
            chosen = Candidate(*record.terms())
            trust = self.scheduler.workers.info(chosen.worker).trust
            reported = self.predictions.reported(chosen, record.told_blocks, trust, now)
            placed.event_tokens = -1 if reported is None else reported

    def _compare(self, one: Dispatched, placed: Placed, usage: Usage | None, now: float) -> None:
        """Hold the predicted overlap against the engine's `cached_tokens`; too many misses make
        the worker doubted.
        """
        record = placed.record
        if one.unforeseen:
            self.unforeseen[one.unforeseen] += 1
        if placed.prefilled:
            return
        self.accesses.count(record.worker, usage, record.block_size)
        if usage is None or usage.cached_tokens is None:
            return
        unlike = one.unforeseen or placed.approximate
        unlike = unlike or (placed.inputs is not None and _fetches(placed.inputs, record.worker))
        if self.wanting and record.worker in self.wanting and not unlike:
            self._report_cached(one, placed, usage, now)
        if not record.by_cache or unlike:
            return
        if placed.teaches:
            counted, output = usage.prompt_tokens, usage.completion_tokens
            self._decider.learn(placed, counted, usage.cached_tokens, output, now)
        late = self.scheduler.late
        # Asked here, too: of most workers a request is spared the call.
        if record.worker in late.workers and usage.prompt_tokens == placed.prompt_tokens:
            cached = usage.cached_tokens // record.block_size
            late.judge(record.worker, record.overlap_blocks, record.told_blocks, cached)
        answer = AnswerSeen(
            prompt=placed.prompt_tokens,
            counted=usage.prompt_tokens,
            predicted=record.overlap_blocks * record.block_size,
            cached=usage.cached_tokens,
            decided_s=placed.sent_s,
            reported=placed.event_tokens if placed.event_tokens >= 0 else None,
        )
        distrust = self.predictions.compare(record.worker, answer, now)
        if distrust is not None:
            self._distrust(record.worker, distrust)

    def _report_cached(self, one: Dispatched, placed: Placed, usage: Usage, now: float) -> None:
        """Tell who follows a worker's cache, and lost part of it, what was found there."""
        record, hashes = placed.record, one.hashes or one.request.hashes
        cached = (usage.cached_tokens or 0) // record.block_size
        if usage.prompt_tokens != placed.prompt_tokens or not 0 < cached < hashes.blocks:
            return
        if self.on_served is not None and cached < MOST_HASHES:
            known = hashes.upto(cached + 1)[: cached + 1]
            since_s = max(0.0, now - placed.sent_s)
            self.on_served(record.worker, CacheHit(known, cached, since_s))


def _fetches(inputs: Inputs, worker: WorkerId) -> bool:
    """Return whether a worker was told to fetch some of the prompt from another."""
    brought = inputs.made.brought.get(worker)
    return brought is not None and brought.source is not None


def _begun(placed: Placed, first: int, now: float) -> bool:
    """Note the first token of a request with inputs; return whether its time says nothing of its
    worker's speed. `first`: its booking waited for it.
    """
    inputs = placed.inputs
    assert inputs is not None, "the core tells of no other"
    return inputs.begun(placed.booking if first else None, _since_ms(placed.record, now), now)


def _since_ms(record: Record, now: float) -> float:
    """Return how long a request has been here, what it was held included."""
    return max(0.0, now - record.decided_s) * 1000.0 + (record.held_ms or 0.0)


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
