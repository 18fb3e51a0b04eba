"""One request on its way through a router: chosen, booked, watched, released exactly once."""

from collections.abc import Callable
from logging import DEBUG
from typing import Final

import msgspec

from kvmesh.actors.messages import Booked, Finished, FirstToken
from kvmesh.app.answer_watch import AnswerWatch
from kvmesh.app.routing_context import RoutingContext, target_of
from kvmesh.core.decision import Decision, RouteRequest, Trust
from kvmesh.core.decision_record import DecisionRecord
from kvmesh.core.disaggregation import decode_request
from kvmesh.core.events import WorkerId
from kvmesh.core.hashing import NO_HASHES
from kvmesh.core.output_lengths import with_forecast
from kvmesh.core.predictions import AnswerSeen
from kvmesh.core.sse import Usage
from kvmesh.errors import NoWorkerError
from kvmesh.transport.http.headers import Header, Headers
from kvmesh.transport.http.problem import Problem
from kvmesh.transport.http.proxy import Outcome, Target, Wait
from kvmesh.transport.http.upstream import UpstreamFailure

OK = 200
PANIC_HEADER: Final[Header] = (b"x-kvmesh-panic", b"1")
SERVER_ERROR = 500
TRUST_BYTES: Final = {trust: trust.value.encode() for trust in Trust}


class RoutedRequest:
    """The forwarding plan of one request: each attempt goes to the best worker not yet tried.

    `visible_id` is the request id that the client knows. A request may be held at the admission
    gate before its first attempt; `proceed` is then called when its turn comes.
    """

    __slots__ = (
        "_answer",
        "_asked_s",
        "_context",
        "_decided_s",
        "_decision",
        "_failed",
        "_families",
        "_forecast",
        "_given",
        "_open",
        "_record",
        "_request",
        "_told",
        "_visible_id",
        "_waiting",
        "_watch",
        "proceed",
    )

    def __init__(self, context: RoutingContext, request: RouteRequest, visible_id: bytes) -> None:
        self._context = context
        lengths = context.router.scheduler.lengths
        self._families = lengths.families(request.hashes)
        self._forecast = lengths.forecast(self._families)
        self._request = with_forecast(request, self._forecast)
        self._given: RouteRequest | None = None
        self._visible_id = visible_id
        self._decision: Decision | None = None
        self._decided_s = 0.0
        self._told: int | None = None
        self._record: DecisionRecord | None = None
        self._failed: frozenset[WorkerId] = frozenset()
        self._watch: AnswerWatch | None = None
        self._open = False
        self._waiting = True
        self._answer: Decision | Problem | None = None
        self._asked_s = -1.0
        self.proceed: Callable[[], None] = _nobody_waits
        context.counters.requests += 1

    def next_target(self) -> Target | Problem | Wait | None:
        """Choose and book the next worker, or wait for one."""
        context = self._context
        if self._answer is None and self._asked_s < 0.0 and context.gate.active:
            self._asked_s = context.clock()
            self._answer = context.gate.ask(self._request, self._on_answer)
            if self._answer is None:
                return Wait.WAIT
        answer, self._answer = self._answer, None
        if answer is None:
            answer = self._choose()
        return self._go(answer) if isinstance(answer, Decision) else answer

    def _on_answer(self, answer: Decision | Problem) -> None:
        """Learn at the gate that the request's turn has come, or never will."""
        self._answer = answer
        self.proceed()

    def _choose(self) -> Decision | Problem | None:
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
            return None if self._failed else Problem.from_error(error)

    def _go(self, decision: Decision) -> Target | None:
        """Enter what was decided and booked, and return where that is."""
        context, request, decisions = self._context, self._request, self._context.decisions
        now = context.clock()
        if self._record is None:
            self._record = decisions.decided(self._visible_id, decision, request.hashes, now)
            if self._asked_s >= 0.0:
                self._record.held_ms = max(0.0, now - self._asked_s) * 1000.0
            self._record.forecast = self._forecast
        else:
            decisions.decided_again(self._record, decision)
        self._decision, self._decided_s = decision, now
        self._told = context.check.look_up(decision, request.hashes, now)
        self._open = True
        context.open_requests.add(request.request_id)
        context.tell(Booked(request.request_id))
        heartbeat = context.router.heartbeat(decision.worker)
        if heartbeat is None:
            self._release()
            return None
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
        self._release()

    def on_attempt_failed(self, failure: UpstreamFailure) -> bool:
        """Release the worker that failed and leave it out; another may be tried."""
        context, decision = self._context, self._decision
        context.counters.attempts_failed += 1
        self._release()
        if decision is not None:
            self._failed |= {decision.worker}
            assert self._record is not None
            context.decisions.attempt_failed(self._record, failure.message)
            membership = context.router.scheduler.workers.membership
            if failure.kind != "status":
                membership.mark_failed(decision.worker, context.clock())
            context.log.warning(
                "worker failed a request",
                worker=decision.worker,
                request_id=self._request.request_id,
                stage=failure.stage,
                kind=failure.kind,
                error=failure.message,
            )
        return True

    def on_head(self, status: int, headers: Headers) -> Headers:
        """Trust the worker again and tell the client who it was."""
        self._watch = AnswerWatch(headers)
        self.answering(status)
        return self.answer_headers()

    @property
    def worker(self) -> WorkerId:
        """Return the worker chosen last."""
        assert self._decision is not None
        return self._decision.worker

    def answer_headers(self) -> Headers:
        """Return what is told to the client of the decision."""
        decision = self._decision
        assert decision is not None
        trust = self._context.router.scheduler.workers.info(decision.worker).trust
        own: list[Header] = [
            (b"x-kvmesh-worker", decision.worker.encode()),
            (b"x-kvmesh-overlap-blocks", b"%d" % decision.overlap_blocks),
            (b"x-kvmesh-trust", TRUST_BYTES[trust]),
            *self._context.fixed_headers,
        ]
        if self._context.router.scheduler.workers.panic:
            own.append(PANIC_HEADER)
        return own

    def answering(self, status: int) -> None:
        """Take that the worker answers."""
        if status < SERVER_ERROR and self._decision is not None:
            membership = self._context.router.scheduler.workers.membership
            membership.mark_ok(self._decision.worker)

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
        self.proceed = _nobody_waits  # breaks the cycle with the forwarding: both are freed at once
        self._context.gate.leave(self._request.request_id)
        if outcome.kind == "finished" and outcome.status == OK:
            self._learn_length(usage)
        self._release()
        counters = self._context.counters
        self._record_end(outcome, usage)
        match outcome.kind:
            case "finished":
                counters.finished += 1
                self._compare(usage)
            case "client_gone":
                counters.client_gone += 1
            case "cut":
                counters.cut += 1
                self._suspect(outcome)
            case "failed":
                counters.unserved += 1
            case "refused":
                counters.refused += 1

    def _learn_length(self, usage: Usage | None) -> None:
        """Take how long the answer became: as the engine says, else as it was counted."""
        scheduler, request = self._context.router.scheduler, self._request
        booking = scheduler.sequences.booking(request.request_id)
        tokens = booking.output_tokens if booking is not None else 0
        if usage is not None and usage.completion_tokens:
            tokens = usage.completion_tokens
        if tokens:
            scheduler.lengths.learn(self._families, tokens, self._forecast)

    def _suspect(self, outcome: Outcome) -> None:
        """Leave a worker out that died in the middle of an answer."""
        if self._decision is not None and outcome.failure is not None:
            membership = self._context.router.scheduler.workers.membership
            membership.mark_failed(self._decision.worker, self._context.clock())

    def _record_end(self, outcome: Outcome, usage: Usage | None) -> None:
        decisions, now = self._context.decisions, self._context.clock()
        if self._record is None:
            decisions.refused(now)
        else:
            decisions.ended(self._record, outcome.kind, outcome.status, usage, now)

    def _compare(self, usage: Usage | None) -> None:
        decision = self._decision
        if decision is None:
            return
        counters = self._context.counters
        counters.prompt_tokens += self._request.prompt_tokens
        if usage is None or usage.cached_tokens is None or self._request.prefilled:
            return
        predicted = decision.overlap_blocks * self._context.router.scheduler.options.block_size
        counters.reported_tokens += usage.prompt_tokens
        counters.cached_tokens += usage.cached_tokens
        counters.predicted_tokens += predicted
        if decision.by_cache and not self._request.approximate:
            answer = AnswerSeen(
                prompt=self._request.prompt_tokens,
                counted=usage.prompt_tokens,
                predicted=predicted,
                cached=usage.cached_tokens,
                decided_s=self._decided_s,
                told=self._told,
            )
            self._context.check.judge(decision.worker, answer, self._context.clock())

    def _release(self) -> None:
        if self._open:
            self._open = False
            self._context.open_requests.discard(self._request.request_id)
            self._context.tell(Finished(self._request.request_id))
            self._context.router.scheduler.finish(self._request.request_id, self._context.clock())
            self._context.gate.load_fell()


def _nobody_waits() -> None:
    """Stand for `proceed` until there is a forwarding that waits."""
