"""One request on its way through a router: decided, booked, watched, released exactly once."""

from functools import partial
from math import isfinite

import msgspec

from kvmesh._native import Booking, Placed
from kvmesh.app.serve.admission import problem_of
from kvmesh.app.serve.decision_headers import decision_headers
from kvmesh.app.serve.failed_attempts import NOBODY, FailedAttempts, judge_end
from kvmesh.app.serve.fetching import Fetching
from kvmesh.app.serve.holding import may_wait, wait_at_gate
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.app.serve.routing_lines import log_accessed, log_routed
from kvmesh.app.serve.stream_turn import StreamTurn
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.cost.terms import Candidate
from kvmesh.core.dispatch.dispatch import Ending
from kvmesh.core.dispatch.dispatched import Dispatched
from kvmesh.core.members.outcomes import SERVED, SUCCESS, UNKNOWN, Attempt, Verdict
from kvmesh.core.members.progress import Due
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.core.routing.disaggregation import decode_request
from kvmesh.core.routing.overdue import patience_s
from kvmesh.errors import NoWorkerError
from kvmesh.transport.http.forward.plan import QUIET, WAIT, Forwarding, Outcome, Target, Wait
from kvmesh.transport.http.forward.resume import Going
from kvmesh.transport.http.upstream.client import UpstreamFailure
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.problem import NO_RETRY, WORKERLESS, Problem


class RoutedRequest:
    """The forwarding plan of one request: each attempt goes to the best worker not yet tried.

    One that was placed as it was scanned has its worker already. Others may be held at the
    admission gate before their first attempt, and while nobody may be given one; when their turn
    comes their `forwarding` proceeds. One that lost its worker is held, too, unless it may not be
    repeated, which `forwarding` knows. `fetch_s` is how much longer its first byte may take since
    its worker fetches the prompt's KV cache from another; `fetching` tells it whose. `resumed`: its
    client has so many tokens of the stream that it asks for, None of any other request.
    """

    __slots__ = (
        "_attempts", "_context", "_ended", "_ended_by", "_failed", "_going", "_governed",
        "_lost", "_moved", "_open", "_refusal", "_since_s", "_status", "_whole", "fetch_s",
        "fetching", "forwarding", "one", "resumed",
    )  # fmt: skip

    def __init__(self, context: RoutingContext, one: Dispatched, forwarding: Forwarding) -> None:
        self.forwarding = forwarding
        self.fetch_s = 0.0
        self.fetching: Fetching | None = None
        self.resumed: int | None = None
        self._context = context
        self.one = one
        self._whole: RouteRequest | None = None
        self._open = False
        self._attempts = 0
        self._since_s: float | None = None
        self._status = 0
        self._failed: FailedAttempts | None = None
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
        context, one = self._context, self.one
        if one.placed is not None and not self._attempts:
            return self._go(one.placed)
        failed = NOBODY if self._failed is None else self._failed.workers
        if failed and (bound := self.forwarding.bound) is not None:
            has_it = context.router.worker_at(bound, failed)
            one.request = msgspec.structs.replace(one.request, pinned_worker=has_it)
        if self._refusal is not None or self._going is not None:
            refusal, self._refusal = self._refusal, None
            if refusal is not None or (self._going is not None and self._going.is_unread()):
                return refusal or WAIT
        try:
            answer = context.routing.decide(one, context.clock(), failed)
        except NoWorkerError as error:
            return self._find_nobody(error, any_failed=bool(failed))
        if isinstance(answer, Placed):
            return self._go(answer)
        if answer is None:
            return self._hold(one.request)
        return problem_of(answer)

    def _hold(self, request: RouteRequest) -> Wait:
        """Wait at the gate."""
        context = self._context
        self._governed = request.request_id in context.routing.binding.governed
        left_s = self._left_s(context.clock())
        return wait_at_gate(context, request, self.forwarding, left_s, self._on_turn)

    def _find_nobody(self, error: NoWorkerError, *, any_failed: bool) -> Problem | Wait | None:
        """Wait for a worker that may come; else say why there is none, unless one has failed."""
        context, forwarding = self._context, self.forwarding
        problem = Problem.from_error(error)
        if self._lost and not (error.lasting or error.wished):
            if not may_wait(forwarding.exchange.request):
                return msgspec.structs.replace(problem, also=(WORKERLESS,))
            if context.workers.met_any or not context.workers.settled:
                left_s = self._left_s(context.clock())
                if context.patience.hold(forwarding.scope, self._go_on, left_s):
                    return QUIET
        return None if any_failed else problem

    def _on_turn(self, answer: Placed | Problem) -> None:
        """Learn at the gate that the request's turn has come, or never will."""
        if isinstance(answer, Placed):
            self.one.given = answer
        else:
            self._refusal = answer
        self.forwarding.proceed()

    def _go_on(self) -> None:
        """Begin anew: those that could not be reached before may be there again."""
        if self._failed is not None:
            self._failed.workers = NOBODY
        self.forwarding.proceed()

    def _go(self, placed: Placed) -> Target | None:
        """Begin an attempt at the worker decided on, and return where that is."""
        context, one, record = self._context, self.one, placed.record
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
        if self.fetching is not None:
            name = f"{placed.request_id}-{self._attempts}"
            target = self.fetching.name_source(target, record.decision.brought, name)
        if context.alternatives is None:
            return target
        failed = NOBODY if self._failed is None else self._failed.workers
        others = context.alternatives.of(placed, one, failed)
        return msgspec.structs.replace(target, alternatives=others)

    def follow_prefill(self) -> None:
        """Choose among decode workers: the prompt's KV cache comes from elsewhere."""
        self._whole = self.one.request
        self.one.request = decode_request(self._whole)

    def stay_whole(self) -> None:
        """Choose as if `follow_prefill` had never been called."""
        self.fetch_s = 0.0
        if self._whole is not None:
            self.one.request, self._whole = self._whole, None

    def give_back(self) -> None:
        """Release the worker chosen, which did nothing wrong."""
        self._release(UNKNOWN)

    def on_attempt_failed(self, failure: UpstreamFailure) -> bool:
        """Release the worker that failed and leave it out; say whether another may be tried.

        Not for a prompt that failed at two workers that serve others, nor beyond its client's
        patience or the budget of retries; one that never left this router costs nothing.
        """
        context, placed = self._context, self.one.placed
        if placed is None:
            context.counters.attempts_failed += 1
            return True
        context.hangs.waiting.pop(self, None)
        self._lost = failure.lost
        attempt = self._fail(placed, failure, failure.message)
        now = context.clock()
        if attempt.verdict is Verdict.PROMPT or self._left_s(now) <= 0.0:
            return False
        return failure.stage == "before_send" or context.budget.take(now)

    @property
    def cached_tokens(self) -> int | None:
        """Return what its worker is taken to have found cached of the prompt, if its client may
        know.
        """
        if self.one.veiled:
            return None
        record = self._placed.record
        return record.overlap_blocks * record.block_size

    def lose(self, failure: UpstreamFailure) -> None:
        """Take that the worker was lost with all but the end of its answer."""
        placed = self.one.placed
        if placed is not None and self._open:
            self._ended_by = failure
            self._fail(placed, failure, failure.message)

    def go_on(self, failure: UpstreamFailure, going: Going) -> bool:
        """Release the worker that was lost in the middle of its answer, and have another chosen for
        prompt and answer so far; False: its stream ends here.

        A worker that only leaves did nothing wrong, and going on costs no retry; nor does it behind
        the first that was lost, with all its streams at once. Of others the prompt may be to blame,
        as for `on_attempt_failed`; how many it may cost, the forwarding knows.
        """
        context, placed = self._context, self.one.placed
        if placed is None or not self._open:
            return False
        left, why = failure.kind == "left", f"{failure.message}, behind token {going.passed}"
        if left:
            self._release(UNKNOWN)
            self._failed = self._failed or FailedAttempts(context)
            self._failed.leave_out(placed, why)
        else:
            self._lost = True
            self._fail(placed, failure, why)
        now, tenant = context.clock(), placed.record.tenant
        if not (left or context.budget.take_for(tenant, now, first=not self._moved)):
            return False
        self._moved = self._moved or not left
        self._going = StreamTurn(self.one, going, now, self.forwarding.proceed)
        context.again.read(going.exchange, going.tokens, self._going.take)
        return True

    def _fail(self, placed: Placed, failure: UpstreamFailure, why: str) -> Attempt:
        """Release, blame and leave out the worker that failed; return what its attempt shows."""
        self._failed = failures = self._failed or FailedAttempts(self._context)
        attempt = failures.judge(placed, failure)
        self._release(attempt)
        failures.report(placed, failure, attempt, why)
        return attempt

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
        return Due(due_s, patience_s(self.chosen), evident=not self.one.unforeseen)

    @property
    def _placed(self) -> Placed:
        placed = self.one.placed
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
        if self._going is not None:
            self._context.streams.enter(self)
            went_on = self._going.began(self._context.clock())
            self._context.decisions.went_on(self._placed.record, *went_on)
            return ()
        if self.resumed is not None:
            self._context.decisions.resumed(self._placed.record, self.resumed)
        one = self.one
        own = decision_headers(self._context, one)
        if word := self.forwarding.resumable:
            own.append((b"x-kvmesh-resumable", word.encode()))
            if word != "no":
                self._context.streams.enter(self)
        if self._attempts > 1:
            own.append((b"x-kvmesh-attempts", b"%d" % self._attempts))
        if self._governed:
            own.append((b"x-kvmesh-program-wait-ms", b"%d" % (self._placed.record.held_ms or 0.0)))
        if self._failed is not None and self._failed.blame.prompt:
            own.append(NO_RETRY)
        if self.fetching is not None:
            named = self.fetching.let_go()
            own += () if one.veiled else named
        return own

    @property
    def worker(self) -> WorkerId:
        """Return the worker chosen last."""
        return self._placed.record.worker

    @property
    def chosen(self) -> Candidate:
        """Return the terms of the worker chosen last."""
        return self._placed.record.decision.chosen

    def booked(self) -> str:
        """Return the id of its present booking."""
        return self.one.name

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
        first = context.routing.seen(self.one, tokens, context.clock())
        if first and context.gate.waiting:
            context.gate.load_fell()

    def on_finish(self, outcome: Outcome) -> None:
        """Release the booking, count the end and compare the prediction with the engine's word."""
        context, one = self._context, self.one
        whole = outcome.kind == "finished" and self._status in SUCCESS
        fine = whole and not (outcome.error or outcome.doubted)
        usage = self.forwarding.usage() if fine else None
        served = fine and outcome.watched and self._ended_by is None
        now, failed, attempt = context.clock(), self._failed, SERVED
        if not served:
            if self._open and (passed := self.forwarding.passed):
                self.on_tokens(passed)  # it is told of each sixteenth one
            placed, status, lost = one.placed, self._status, self._ended_by is not None
            stalled = partial(context.hangs.is_stalled, self)
            attempt = judge_end(outcome, placed, status, now, lost=lost, stalled=stalled)
        first = self._open if served else self._release(attempt)
        if failed is not None and failed.blame.rejected_by_all and not served:
            context.workers.forgive(one.name, now)
        if first and outcome.kind == "cut" and outcome.failure is not None:
            context.counters.attempts_failed += 1
            context.decisions.attempt_failed(self._placed.record, outcome.failure.message)
        state = "failed" if outcome.kind == "crashed" or outcome.error else outcome.kind
        end = Ending(attempt, state, outcome.status, usage, outcome.watched)
        booking = context.routing.finished(one, end, now)
        if served:
            self._closed(booking)
            if usage is not None and usage.response:
                path, tenant = self.forwarding.exchange.request.path, self._placed.record.tenant
                context.holders.made(path, usage.response, tenant, self.worker)
            if context.debug:
                log_accessed(context.log, self.worker, one.name, usage)
        elif first and attempt.verdict is Verdict.WORKER:
            context.counters.failures.add(self.worker, attempt.kind)
        self._ended = first

    def _release(self, attempt: Attempt) -> bool:
        """Release the worker chosen last and report its attempt; False: it was released before."""
        if not self._open:
            return False
        context, one = self._context, self.one
        if context.outbox is not None:
            context.outbox.ended(one.name, attempt)
        booking = context.routing.release(one, attempt, context.clock())
        self._closed(booking if attempt.verdict is Verdict.SERVED else None)
        return True

    def _closed(self, served: Booking | None) -> None:
        """Do what follows from the end of an attempt; with the booking of one that was served."""
        context, one = self._context, self.one
        self._open = False
        context.hangs.waiting.pop(self, None)
        context.streams.open.pop(self, None)
        context.open_requests.discard(one.name)
        if context.released is not None and served is not None and not one.unforeseen:
            context.released(served)
        if context.gate.waiting:
            context.gate.load_fell()

    def _give_back(self) -> None:
        """Count the end, and release what an error has kept `on_finish` from releasing."""
        scope, context, one = self.forwarding.scope, self._context, self.one
        context.counters.ends.add(scope.kind, scope.status)
        if (placed := one.placed) is None:
            record, model, tenant = None, one.request.model, one.request.tenant
        else:
            record, model, tenant = placed.record, placed.model, placed.record.tenant
        end, head = (scope.kind, scope.status), self.forwarding.exchange.request.head
        context.counters.ended.append((record, model, tenant, *end, one, head, self.resumed))
        if scope.trace is not None:
            scope.trace.record, scope.trace.model = record, model
        if self._ended:
            return
        context.hangs.waiting.pop(self, None)
        context.streams.open.pop(self, None)
        context.gate.leave(one.name)
        context.routing.leave_turn(one, context.clock())
        context.open_requests.discard(one.name)
        context.take_back(one.name)
