"""One request on its way through a router: chosen, booked, watched, released exactly once."""

from logging import DEBUG
from typing import Final

import msgspec

from kvmesh.actors.messages import Finished, FirstToken
from kvmesh.app.serve.answer_lessons import compare, served_tokens
from kvmesh.app.serve.answer_watch import AnswerWatch
from kvmesh.app.serve.placement import Placement
from kvmesh.app.serve.routing_context import RoutingContext, target_of
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import NO_HASHES
from kvmesh.core.engines.sse import Usage
from kvmesh.core.health.blame import Blame
from kvmesh.core.health.outcomes import (
    SERVED,
    SUCCESS,
    UNKNOWN,
    Attempt,
    Verdict,
    failed_attempt,
    status_attempt,
)
from kvmesh.core.insight.decision_record import DecisionRecord
from kvmesh.core.routing.decision import Decision, RouteRequest
from kvmesh.core.routing.disaggregation import decode_request
from kvmesh.core.routing.output_lengths import with_forecast
from kvmesh.errors import NoWorkerError
from kvmesh.transport.http.forward.plan import Forwarding, Outcome, Target, Wait
from kvmesh.transport.http.upstream.client import UpstreamFailure
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.problem import NO_RETRY, Problem

UNPROCESSABLE: Final = 422


class RoutedRequest:
    """The forwarding plan of one request: each attempt goes to the best worker not yet tried.

    A request may be held at the admission gate before its first attempt, and while nobody may be
    given one; when its turn comes its `forwarding` proceeds.
    """

    __slots__ = (
        "_answer", "_asked_s", "_attempts", "_blame", "_context", "_ended", "_failed", "_families",
        "_forecast", "_given", "_placement", "_record", "_request", "_status", "_waiting",
        "_watch", "forwarding",
    )  # fmt: skip

    def __init__(
        self, context: RoutingContext, request: RouteRequest, forwarding: Forwarding
    ) -> None:
        self.forwarding = forwarding
        self._context = context
        lengths = context.router.scheduler.lengths
        self._families = lengths.families(request.hashes)
        self._forecast = lengths.forecast(self._families)
        self._request = with_forecast(request, self._forecast)
        self._given: RouteRequest | None = None
        self._placement: Placement | None = None
        self._attempts = 0
        self._blame: Blame | None = None
        self._status = 0
        self._record: DecisionRecord | None = None
        self._failed: frozenset[WorkerId] = frozenset()
        self._watch: AnswerWatch | None = None
        self._waiting = True
        self._ended = False
        self._answer: Decision | Problem | Wait | None = None
        self._asked_s = -1.0
        context.counters.requests += 1
        context.budget.deposit()
        forwarding.scope.holds(self._give_back)

    def next_target(self) -> Target | Problem | Wait | None:
        """Choose and book the next worker, or wait for one."""
        context = self._context
        if self._answer is None and self._asked_s < 0.0 and context.gate.active:
            self._asked_s = context.clock()
            self._answer = context.gate.ask(self._request, self.forwarding.scope, self._on_answer)
            if self._answer is None:
                return Wait.WAIT
        answer, self._answer = self._answer, None
        if answer is None:
            answer = self._choose()
        return self._go(answer) if isinstance(answer, Decision) else answer

    def _on_answer(self, answer: Decision | Problem) -> None:
        """Learn at the gate that the request's turn has come, or never will."""
        self._answer = answer
        self.forwarding.proceed()

    def _choose(self) -> Decision | Problem | Wait | None:
        context = self._context
        request = self._request
        if self._failed:
            request = msgspec.structs.replace(request, excluded=request.excluded | self._failed)
        now = context.clock()
        scheduler = context.router.scheduler
        scheduler.trace = context.decisions.may_weigh_all(now)
        try:
            return context.phases.schedule(scheduler, request, now)
        except NoWorkerError as error:
            sent = self._blame is not None and self._blame.sent
            may_wait = scheduler.workers.met_any and not (error.lasting or sent)
            if may_wait and context.patience.hold(self.forwarding.scope, self._go_on):
                return Wait.WAIT
            return None if self._failed else Problem.from_error(error)

    def _go_on(self) -> None:
        """Begin anew: those that could not be reached before may be there again."""
        self._failed = frozenset()
        self.forwarding.proceed()

    def _go(self, decision: Decision) -> Target | None:
        """Enter what was decided and booked, and return where that is."""
        context, request, decisions = self._context, self._request, self._context.decisions
        now = context.clock()
        if self._record is None:
            visible_id = self.forwarding.scope.request_id
            self._record = decisions.decided(visible_id, decision, request.hashes, now)
            if self._asked_s >= 0.0:
                self._record.held_ms = max(0.0, now - self._asked_s) * 1000.0
            self._record.forecast = self._forecast
        else:
            decisions.decided_again(self._record, decision)
        self._placement = Placement(context, request, decision, now)
        self._attempts += 1
        heartbeat = context.router.heartbeat(decision.worker)
        if heartbeat is None:
            self._release(UNKNOWN)
            return None
        context.hangs.add(self)
        if context.log.is_enabled_for(DEBUG):
            context.log.debug(
                "routed",
                request_id=request.request_id,
                worker=decision.worker,
                formula=decision.formula_line(decision.worker),
            )
        return target_of(heartbeat)

    def follow_prefill(self) -> None:
        """Choose among decode workers: the prompt's KV cache comes from elsewhere."""
        self._given = self._request
        self._request = decode_request(self._request)

    def stay_whole(self) -> None:
        """Choose as if `follow_prefill` had never been called."""
        if self._given is not None:
            self._request, self._given = self._given, None

    def give_back(self) -> None:
        """Release the worker chosen, which did nothing wrong."""
        self._release(UNKNOWN)

    def on_attempt_failed(self, failure: UpstreamFailure) -> bool | Problem:
        """Release the worker that failed and leave it out; say whether another may be tried.

        Not for a prompt that failed at two workers that serve others, nor beyond the budget of
        retries; one that never left this router costs nothing.
        """
        context, placement = self._context, self._placement
        context.counters.attempts_failed += 1
        if placement is None:
            return True
        context.hangs.discard(self)
        self._blame = self._blame or Blame()
        attempt = placement.fail(failure, self._blame)
        self._failed |= {placement.worker}
        if self._record is not None:
            context.decisions.attempt_failed(self._record, failure.message)
        if attempt.verdict is Verdict.PROMPT:
            return failure.kind != "status" and self._to_blame(failure)
        return failure.stage == "before_send" or context.budget.take(context.clock())

    def _to_blame(self, failure: UpstreamFailure) -> Problem:
        workers = ", ".join(sorted(self._failed))
        return Problem(
            UNPROCESSABLE,
            f"workers {workers} failed this very request ({failure.kind}) and serve others: it is "
            "likely to blame; do not send it again",
            "poison",
            final=True,
        )

    def is_overdue(self, now: float) -> bool:
        """Return whether the first byte is long overdue while the worker serves nobody else."""
        return self._placement is not None and self._placement.is_overdue(now)

    @property
    def sent_s(self) -> float:
        """Return when the present attempt began."""
        assert self._placement is not None
        return self._placement.sent_s

    def on_head(self, status: int, headers: Headers) -> Headers:
        """Take that this answer is the client's, and tell the client whose it is."""
        self.answering(status)
        if status in SUCCESS:
            self._watch = AnswerWatch(headers)
        return self.answer_headers()

    @property
    def worker(self) -> WorkerId:
        """Return the worker chosen last."""
        assert self._placement is not None
        return self._placement.worker

    def answer_headers(self) -> Headers:
        """Return what is told to the client of the decision."""
        assert self._placement is not None
        own = [*self._placement.headers()]
        if self._attempts > 1:
            own.append((b"x-kvmesh-attempts", b"%d" % self._attempts))
        if self._blame is not None and self._blame.prompt:
            own.append(NO_RETRY)
        return own

    def answering(self, status: int) -> None:
        """Take that the worker answers."""
        self._status = status
        self._context.hangs.discard(self)

    def on_body(self, data: bytes) -> None:
        """See the answer pass."""
        watch = self._watch
        if watch is not None and (tokens := watch.feed(data)):
            self.progress(tokens)

    def progress(self, tokens: int) -> None:
        """Take the tokens so far: the first ends the prefill, the others grow the booking."""
        scheduler = self._context.router.scheduler
        now = self._context.clock()
        if self._waiting:
            self._waiting = False
            # A stream may be long, and 100 KB of prompt have 250 KB of hashes.
            self._request = msgspec.structs.replace(self._request, hashes=NO_HASHES)
            scheduler.first_token(self._request.request_id, now)
            self._context.gate.load_fell()
            if self._record is not None:
                self._context.decisions.first_token(self._record, now)
            self._context.tell(FirstToken(self._request.request_id))
        if tokens > 1:
            scheduler.grow(self._request.request_id, tokens, now)

    def on_finish(self, outcome: Outcome) -> None:
        """Release the booking, count the end and compare the prediction with the engine's word."""
        watch = self._watch
        finished = outcome.kind == "finished"
        self.finish(outcome, watch.usage() if watch is not None and finished else None)

    def finish(self, outcome: Outcome, usage: Usage | None) -> None:
        """Do as `on_finish`, told by whoever watched the answer what the engine reported."""
        context = self._context
        attempt = self._last_attempt(outcome)
        if attempt is SERVED:
            tokens = served_tokens(context, self._request.request_id, usage)
            if tokens:
                lengths = context.router.scheduler.lengths
                lengths.learn(self._families, tokens, self._forecast)
        first = self._release(attempt)
        blame = self._blame
        if blame is not None and blame.rejected_by_all and attempt is not SERVED:
            workers = context.router.scheduler.workers
            workers.forgive(self._request.request_id, context.clock())
        self._record_end(outcome, usage)
        if attempt is SERVED and self._placement is not None:
            compare(context, self._placement, self._request, usage)
        elif first and attempt.verdict is Verdict.WORKER:
            context.counters.failures.add(self.worker, attempt.kind)
        self._ended = True

    def _last_attempt(self, outcome: Outcome) -> Attempt:
        """Return what the end shows of the worker that was at work last."""
        placement = self._placement
        if outcome.kind == "cut" and outcome.failure is not None:
            assert placement is not None
            return failed_attempt("cut", placement.waited_s())
        if outcome.kind == "client_gone" and self._waiting and placement is not None:
            silent = not self._status and placement.was_silent()
            return failed_attempt("hung", placement.waited_s()) if silent else UNKNOWN
        if outcome.kind != "finished":
            return UNKNOWN
        return SERVED if self._status in SUCCESS else status_attempt(self._status)

    def _record_end(self, outcome: Outcome, usage: Usage | None) -> None:
        decisions, now = self._context.decisions, self._context.clock()
        if self._record is None:
            decisions.refused(now)
        else:
            if outcome.kind == "cut" and outcome.failure is not None:
                self._context.counters.attempts_failed += 1
                decisions.attempt_failed(self._record, outcome.failure.message)
            kind = "failed" if outcome.kind == "crashed" else outcome.kind
            decisions.ended(self._record, kind, outcome.status, usage, now)

    def _release(self, attempt: Attempt) -> bool:
        """Give the worker back that was chosen last; return whether it was not before."""
        if self._placement is None:
            return False
        self._context.hangs.discard(self)
        return self._placement.release(attempt)

    def _give_back(self) -> None:
        """Count the end, and release what an error has kept `finish` from releasing."""
        scope, context = self.forwarding.scope, self._context
        context.counters.ends.add(scope.kind, scope.status)
        if self._ended:
            return
        request_id = self._request.request_id
        context.hangs.discard(self)
        context.open_requests.discard(request_id)
        scheduler = context.router.scheduler
        if scheduler.sequences.booking(request_id) is not None:
            scheduler.finish(request_id, context.clock(), UNKNOWN)
            context.tell(Finished(request_id, UNKNOWN))
            context.gate.load_fell()
