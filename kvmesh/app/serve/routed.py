"""One request on its way through a router: decided, booked, watched, released exactly once."""

from functools import partial
from math import inf, isfinite
from typing import Final

import msgspec

from kvmesh._native import Booking, Placed
from kvmesh.app.serve.admission import problem_of
from kvmesh.app.serve.decision_headers import decision_headers
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.app.serve.routing_lines import log_routed
from kvmesh.app.serve.stream_turn import StreamTurn
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.cost.terms import Candidate
from kvmesh.core.dispatch.dispatch import Ending
from kvmesh.core.dispatch.dispatched import Dispatched
from kvmesh.core.engines.sse import Usage, error_status
from kvmesh.core.members.blame import Blame
from kvmesh.core.members.outcomes import (
    SERVED,
    SUCCESS,
    UNKNOWN,
    Attempt,
    Verdict,
    failed_attempt,
    status_attempt,
)
from kvmesh.core.members.progress import Due
from kvmesh.core.routing.decision import Decision, RouteRequest
from kvmesh.core.routing.disaggregation import decode_request
from kvmesh.core.routing.overdue import patience_s
from kvmesh.errors import NoWorkerError
from kvmesh.settings.requests import COMMENT_S
from kvmesh.transport.http.forward.plan import QUIET, WAIT, Forwarding, Outcome, Target, Wait
from kvmesh.transport.http.forward.resume import Going
from kvmesh.transport.http.upstream.client import UpstreamFailure
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.problem import NO_RETRY, WORKERLESS, Problem

REFUSED_SHARE: Final = 0.9
"""Who is shown nothing while its request is queued gets a refusal before it gives up: after so much
of the time that it waits.
"""

LOOK_S: Final = 0.1
"""So soon behind its time a held request goes: the gate looks that often at least."""


class RoutedRequest:
    """The forwarding plan of one request: each attempt goes to the best worker not yet tried.

    One that was placed as it was scanned has its worker already. Others may be held at the
    admission gate before their first attempt, and while nobody may be given one; when their turn
    comes their `forwarding` proceeds. One that lost its worker is held, too, unless it may not be
    repeated, which `forwarding` knows. `fetch_s` is how much longer its first byte may take since
    its worker fetches the prompt's KV cache from another. `resumed`: its client has so many tokens
    of the stream that it asks for, None of any other request.
    """

    __slots__ = (
        "_attempts", "_blame", "_context", "_ended", "_ended_by", "_failed", "_going", "_governed",
        "_lost", "_moved", "_one", "_open", "_refusal", "_since_s", "_status", "_whole", "fetch_s",
        "forwarding", "resumed",
    )  # fmt: skip

    def __init__(self, context: RoutingContext, one: Dispatched, forwarding: Forwarding) -> None:
        self.forwarding = forwarding
        self.fetch_s = 0.0
        self.resumed: int | None = None
        self._context = context
        self._one = one
        self._whole: RouteRequest | None = None
        self._open = False
        self._attempts = 0
        self._since_s: float | None = None
        self._blame: Blame | None = None
        self._status = 0
        self._failed: frozenset[WorkerId] = frozenset()
        self._lost = True
        self._moved = False
        self._governed = False
        self._ended = False
        self._refusal: Problem | None = None
        self._going: StreamTurn | None = None
        self._ended_by: UpstreamFailure | None = None
        context.counters.requests += 1
        context.budget.deposit()
        forwarding.scope.held.append(self._give_back)

    def next_target(self) -> Target | Problem | Wait | None:
        """Choose and book the next worker, or wait for one."""
        context, one = self._context, self._one
        if one.placed is not None and not self._attempts:
            return self._go(one.placed)
        if self._failed and (bound := self.forwarding.bound) is not None:
            one.request = self._bind(bound)
        if self._refusal is not None or self._going is not None:
            refusal, self._refusal = self._refusal, None
            if refusal is not None or (self._going is not None and self._going.is_unread()):
                return refusal or WAIT
        try:
            answer = context.routing.decide(one, context.clock(), self._failed)
        except NoWorkerError as error:
            return self._find_nobody(error)
        if isinstance(answer, Placed):
            return self._go(answer)
        if answer is None:
            return self._hold(one.request)
        return problem_of(answer)

    def _hold(self, request: RouteRequest) -> Wait:
        """Wait at the gate. A client that is shown nothing meanwhile waits there for a part of its
        time at most.
        """
        context, forwarding = self._context, self.forwarding
        binding, now = context.routing.binding, context.clock()
        request_id = request.request_id
        self._governed = request_id in binding.governed
        shown = request.streams and forwarding.silent_s == inf
        most_s = inf if shown else REFUSED_SHARE * self._left_s(now)
        until_s = now + binding.bound_s(request_id, most_s, now)
        context.gate.wait(request_id, forwarding.scope, self._on_turn)
        # Before long it is refused if its target cannot be met: a status says that to more clients.
        targets = None if self._governed else request.targets
        soon = targets is not None and (targets.ttft_ms or inf) <= COMMENT_S * 1000.0
        return Wait(partial(self._told, until_s), context.fixed_headers, quiet=soon)

    def _told(self, until_s: float) -> tuple[float, float]:
        """Return for how long the request is expected to wait on, and for how long at most, s."""
        now = self._context.clock()
        most_s = max(0.0, until_s - now) + LOOK_S
        wait_s = self._context.routing.binding.expected_wait_s(self.request_id, now)
        return min(wait_s, most_s), most_s

    def _find_nobody(self, error: NoWorkerError) -> Problem | Wait | None:
        """Wait for a worker that may come, if the request may; else say why there is none."""
        context, forwarding = self._context, self.forwarding
        problem = Problem.from_error(error)
        if self._lost and not (error.lasting or error.wished):
            if not forwarding.may_hold:
                return msgspec.structs.replace(problem, also=(WORKERLESS,))
            if context.workers.met_any or not context.workers.settled:
                left_s = self._left_s(context.clock())
                if context.patience.hold(forwarding.scope, self._go_on, left_s):
                    return QUIET
        return None if self._failed else problem

    def _on_turn(self, answer: Placed | Problem) -> None:
        """Learn at the gate that the request's turn has come, or never will."""
        if isinstance(answer, Placed):
            self._one.given = answer
        else:
            self._refusal = answer
        self.forwarding.proceed()

    def _go_on(self) -> None:
        """Begin anew: those that could not be reached before may be there again."""
        self._failed = frozenset()
        self.forwarding.proceed()

    def _go(self, placed: Placed) -> Target | None:
        """Begin an attempt at the worker decided on, and return where that is."""
        context, one, record = self._context, self._one, placed.record
        self._open = True
        self._attempts += 1
        if self._since_s is None:
            self._since_s = placed.sent_s if one.asked_s < 0.0 else one.asked_s
        context.open_requests.add(placed.request_id)
        heartbeat = context.router.heartbeats.get(record.worker)
        if heartbeat is None:
            self._release(UNKNOWN)
            return None
        context.hangs.waiting[self] = None
        if context.debug:
            log_routed(context.log, record.decision)
        target = context.targets.of(heartbeat)
        if (alternatives := context.alternatives) is None:
            return target
        if one.plain:
            others = alternatives.of_plain(record.worker, placed.model, record.decided_s)
        else:
            others = alternatives.of_decision(
                record.decision, one.request, self._failed, placed.sent_s
            )
        return msgspec.structs.replace(target, alternatives=others)

    def _bind(self, origin: str) -> RouteRequest:
        """Return the request as one for whoever has it already."""
        beats = self._context.router.heartbeats
        there = [name for name, beat in beats.items() if beat.url == origin]
        found = next((name for name in there if name not in self._failed), None)
        return msgspec.structs.replace(self._one.request, pinned_worker=found)

    def follow_prefill(self) -> None:
        """Choose among decode workers: the prompt's KV cache comes from elsewhere."""
        self._whole = self._one.request
        self._one.request = decode_request(self._whole)

    def stay_whole(self) -> None:
        """Choose as if `follow_prefill` had never been called."""
        self.fetch_s = 0.0
        if self._whole is not None:
            self._one.request, self._whole = self._whole, None

    def give_back(self) -> None:
        """Release the worker chosen, which did nothing wrong."""
        self._release(UNKNOWN)

    def on_attempt_failed(self, failure: UpstreamFailure) -> bool:
        """Release the worker that failed and leave it out; say whether another may be tried.

        Not for a prompt that failed at two workers that serve others, nor beyond its client's
        patience or the budget of retries; one that never left this router costs nothing.
        """
        context, placed = self._context, self._one.placed
        if placed is None:
            context.counters.attempts_failed += 1
            return True
        context.hangs.waiting.pop(self, None)
        self._lost = failure.lost
        attempt = self._note_failed(placed, failure, failure.message)
        now = context.clock()
        if attempt.verdict is Verdict.PROMPT or self._left_s(now) <= 0.0:
            return False
        return failure.stage == "before_send" or context.budget.take(now)

    @property
    def cached_tokens(self) -> int | None:
        """Return what its worker is taken to have found cached of the prompt."""
        record = self._placed.record
        return record.overlap_blocks * record.block_size

    def lose(self, failure: UpstreamFailure) -> None:
        """Take that the worker was lost with all but the end of its answer."""
        placed = self._one.placed
        if placed is not None and self._open:
            self._ended_by = failure
            self._note_failed(placed, failure, failure.message)

    def go_on(self, failure: UpstreamFailure, going: Going) -> bool:
        """Release the worker that was lost in the middle of its answer, and have another chosen for
        prompt and answer so far; False: its stream ends here.

        A worker that only leaves did nothing wrong, and going on costs no retry; nor does it behind
        the first that was lost, with all its streams at once. Of others the prompt may be to blame,
        as for `on_attempt_failed`; how many it may cost, the forwarding knows.
        """
        context, placed = self._context, self._one.placed
        if placed is None or not self._open:
            return False
        left, why = failure.kind == "left", f"{failure.message}, behind token {going.passed}"
        if left:
            self._release(UNKNOWN)
            self._leave_out(placed, why)
        else:
            self._lost = True
            self._note_failed(placed, failure, why)
        now, tenant = context.clock(), placed.record.tenant
        if not (left or context.budget.take_for(tenant, now, first=not self._moved)):
            return False
        self._moved = self._moved or not left
        self._going = StreamTurn(self._one, going, now, self.forwarding.proceed)
        context.again.read(going.exchange, going.tokens, self._going.take)
        return True

    def _note_failed(self, placed: Placed, failure: UpstreamFailure, why: str) -> Attempt:
        """Count, blame and leave out the worker that failed; return what its attempt shows."""
        self._context.counters.attempts_failed += 1
        attempt = self._blame_for(failure)
        self._leave_out(placed, why)
        return attempt

    def _leave_out(self, placed: Placed, why: str) -> None:
        """Have no other attempt go to this worker."""
        self._failed |= {placed.record.worker}
        self._context.decisions.attempt_failed(placed.record, why)

    def _blame_for(self, failure: UpstreamFailure) -> Attempt:
        """Release the worker and return what the failure shows, with the verdict on it."""
        context, worker = self._context, self.worker
        self._blame = self._blame or Blame()
        attempt = self._blame.judge(
            failed_attempt(
                failure.name,
                self._waited_s(),
                status=failure.status,
                retry_after_s=failure.retry_after_s,
            ),
            sent=failure.stage != "before_send",
            suspect=context.workers.membership.health.is_suspect(worker),
        )
        self._release(attempt)
        context.ask_suspects()
        context.counters.failures.add(worker, attempt.kind)
        context.log.warning(
            "worker failed a request",
            worker=worker,
            request_id=self.request_id,
            stage=failure.stage,
            kind=attempt.kind,
            verdict=attempt.verdict.name.lower(),
            error=failure.message,
        )
        return attempt

    def _waited_s(self) -> float:
        """Return how long ago the present attempt was sent."""
        return self._context.clock() - self.sent_s

    def _left_s(self, now: float) -> float:
        """Return for how long its client goes on to wait; read where it matters, not of each."""
        waited_s = 0.0 if self._since_s is None else now - self._since_s
        return self.forwarding.patience_s() - waited_s

    @property
    def due(self) -> Due | None:
        """Return what its engine owes it; None while its KV cache is computed elsewhere."""
        due_s = self.sent_s + self.fetch_s
        if not isfinite(due_s):
            return None
        return Due(due_s, patience_s(self.chosen), evident=not self._one.unforeseen)

    @property
    def _placed(self) -> Placed:
        placed = self._one.placed
        assert placed is not None, "nothing was decided yet"
        return placed

    @property
    def sent_s(self) -> float:
        """Return when the present attempt began."""
        return self._placed.sent_s

    def on_head(self, status: int) -> Headers:
        """Accept this answer for the client, and return the headers that name its worker."""
        self._status = status
        self._context.hangs.waiting.pop(self, None)
        going = self._going
        if going is not None:
            self._context.streams.enter(self)
            now = self._context.clock()
            self._context.decisions.went_on(self._placed.record, *going.began(now))
            return ()
        if self.resumed is not None:
            self._context.decisions.resumed(self._placed.record, self.resumed)
        own = decision_headers(self._context, self._one)
        if word := self.forwarding.resumable:
            own.append((b"x-kvmesh-resumable", word.encode()))
            if word != "no":
                self._context.streams.enter(self)
        if self._attempts > 1:
            own.append((b"x-kvmesh-attempts", b"%d" % self._attempts))
        if self._governed:
            own.append((b"x-kvmesh-program-wait-ms", b"%d" % (self._placed.record.held_ms or 0.0)))
        if self._blame is not None and self._blame.prompt:
            own.append(NO_RETRY)
        return own

    @property
    def decision(self) -> Decision | None:
        """Return what was decided last."""
        placed = self._one.placed
        return None if placed is None else placed.record.decision

    @property
    def attempts(self) -> int:
        """Return how many attempts have begun."""
        return self._attempts

    @property
    def worker(self) -> WorkerId:
        """Return the worker chosen last."""
        return self._placed.record.worker

    @property
    def chosen(self) -> Candidate:
        """Return the terms of the worker chosen last."""
        return self._placed.record.decision.chosen

    @property
    def request_id(self) -> str:
        """Return the name of its bookings."""
        return self._one.name

    def leave_turn(self) -> None:
        """Have its program's turn be over, if it was begun and nothing came of it."""
        self._context.routing.leave_turn(self._one, self._context.clock())

    def booked(self) -> str:
        """Return the id of its present booking."""
        return self.request_id

    def note_prefill(self) -> None:
        """Do as for a first token, whatever is known of the answer."""
        self.progress(1)

    def on_tokens(self, tokens: int) -> None:
        """Take the tokens so far: the first ends the prefill, the others grow the booking."""
        if self._status in SUCCESS:
            self.progress(tokens)

    def progress(self, tokens: int) -> None:
        """Do as `on_tokens`, whatever the status."""
        context = self._context
        first = context.routing.seen(self._one, tokens, context.clock())
        if first and context.gate.waiting:
            context.gate.load_fell()

    def on_finish(self, outcome: Outcome) -> None:
        """Release the booking, count the end and compare the prediction with the engine's word."""
        whole = outcome.kind == "finished" and self._status in SUCCESS
        served = whole and not (outcome.error or outcome.doubted)
        self.finish(outcome, self.forwarding.usage() if served else None)

    def finish(self, outcome: Outcome, usage: Usage | None) -> None:
        """Do as `on_finish`, told by whoever watched the answer what the engine reported."""
        context, one = self._context, self._one
        served = (
            outcome.kind == "finished"
            and self._status in SUCCESS
            and outcome.watched
            and self._ended_by is None
            and not (outcome.error or outcome.doubted)
        )
        attempt = SERVED if served else self._last_attempt(outcome)
        first = self._open if served else self._release(attempt)
        now, blame = context.clock(), self._blame
        if blame is not None and blame.rejected_by_all and not served:
            context.workers.forgive(one.name, now)
        cut = outcome.kind == "cut" and outcome.failure is not None
        if cut and first and outcome.failure is not None and one.placed is not None:
            context.counters.attempts_failed += 1
            context.decisions.attempt_failed(one.placed.record, outcome.failure.message)
        state = "failed" if outcome.kind == "crashed" or outcome.error else outcome.kind
        end = Ending(attempt, state, outcome.status, usage, outcome.watched)
        booking = context.routing.finished(one, end, now)
        if served:
            self._closed(booking)
            if usage is not None and usage.response:
                context.holders.learn(usage.response, self.worker)
            if context.debug:
                log_accessed(context, self.worker, one.name, usage)
        elif first and attempt.verdict is Verdict.WORKER:
            context.counters.failures.add(self.worker, attempt.kind)
        self._ended = first

    def _last_attempt(self, outcome: Outcome) -> Attempt:
        """Return what the end shows of the worker that was at work last."""
        placed = self._one.placed
        if outcome.kind == "cut" and outcome.failure is not None:
            failure = outcome.failure
            kind = failure.name if failure.sickness else "cut"
            return failed_attempt(kind, self._waited_s(), status=failure.status)
        if outcome.kind == "client_gone" and placed is not None and placed.waiting:
            hung = not self._status and self._context.hangs.is_stalled(self)
            return failed_attempt("hung", self._waited_s()) if hung else UNKNOWN
        unclear = not outcome.watched or outcome.doubted or self._ended_by is not None
        if outcome.kind != "finished" or unclear:
            return UNKNOWN
        if outcome.error:
            # Its head says that it was begun, what it holds that it was not served.
            status = error_status(outcome.error)
            return status_attempt(status) if status else UNKNOWN
        return status_attempt(self._status)

    def _release(self, attempt: Attempt) -> bool:
        """Give the worker back that was chosen last, and tell everybody what its attempt showed;
        return whether it was not before.
        """
        if not self._open:
            return False
        context, one = self._context, self._one
        if context.outbox is not None:
            context.outbox.ended(one.name, attempt)
        booking = context.routing.release(one, attempt, context.clock())
        self._closed(booking if attempt.verdict is Verdict.SERVED else None)
        return True

    def _closed(self, served: Booking | None) -> None:
        """Do what follows from the end of an attempt; with the booking of one that was served."""
        context, one = self._context, self._one
        self._open = False
        context.hangs.waiting.pop(self, None)
        context.streams.open.pop(self, None)
        context.open_requests.discard(one.name)
        if context.released is not None and served is not None and not one.unforeseen:
            context.released(served)
        if context.gate.waiting:
            context.gate.load_fell()

    def _give_back(self) -> None:
        """Count the end, and release what an error has kept `finish` from releasing."""
        scope, context = self.forwarding.scope, self._context
        context.counters.ends.add(scope.kind, scope.status)
        if (placed := self._one.placed) is None:
            asked = self._one.request
            record, model, tenant = None, asked.model, asked.tenant
        else:
            record, model, tenant = placed.record, placed.model, placed.record.tenant
        context.counters.ended.append((record, model, tenant, scope.kind, scope.status))
        if scope.trace is not None:
            scope.trace.record, scope.trace.model = record, model
        if self._ended:
            return
        request_id = self.request_id
        context.hangs.waiting.pop(self, None)
        context.streams.open.pop(self, None)
        context.gate.leave(request_id)
        self.leave_turn()
        context.open_requests.discard(request_id)
        take_back(context, request_id)


def take_back(context: RoutingContext, request_id: str) -> None:
    """Release what is still booked of a request that an error of ours has ended."""
    scheduler = context.scheduler
    if scheduler.sequences.bookings.get(request_id) is not None:
        scheduler.finish(request_id, context.clock(), UNKNOWN)
        if context.outbox is not None:
            context.outbox.ended(request_id, UNKNOWN)
        context.gate.load_fell()


def log_accessed(
    context: RoutingContext, worker: WorkerId, request_id: str, usage: Usage | None
) -> None:
    """Log what the engine says it found cached."""
    cached = usage.cached_tokens if usage is not None else None
    context.log.debug(
        "KV blocks accessed",
        worker=worker,
        request_id=request_id,
        cached_tokens="unknown" if cached is None else cached,
    )
