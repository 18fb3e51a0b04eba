"""One forwarded exchange: its attempts, one after another, and its end.

What an upstream answers goes to `passed_answer`, or, behind a loss, to `continued`; whether another
may be tried is said by `retries`, how a client is told by `endings`.
"""

from functools import partial
from typing import Final

from kvmesh._native import EventStream
from kvmesh.core.engines.sse import Usage
from kvmesh.core.members.poison_guard import key_of
from kvmesh.errors import KvMeshError
from kvmesh.transport.http.forward.asked import AskedUsage
from kvmesh.transport.http.forward.continued import ContinuedStream
from kvmesh.transport.http.forward.endings import (
    POISON,
    answer,
    break_answer,
    finish,
    gave_up,
    redirected,
)
from kvmesh.transport.http.forward.message import message_to
from kvmesh.transport.http.forward.passed_answer import PassedAnswer
from kvmesh.transport.http.forward.plan import (
    WAIT,
    ForwardOptions,
    ForwardPlan,
    Outcome,
    Target,
    Wait,
)
from kvmesh.transport.http.forward.resume import Resumption
from kvmesh.transport.http.forward.retries import Retries, ends_them
from kvmesh.transport.http.forward.router_answer import RouterAnswer
from kvmesh.transport.http.forward.signs import show_life
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.request import patience_s
from kvmesh.transport.http.upstream.client import (
    UpstreamCall,
    UpstreamFailure,
    UpstreamPool,
    UpstreamSink,
)
from kvmesh.transport.http.wire.deadlines import ForwardClock
from kvmesh.transport.http.wire.problem import Problem

_NOWHERE: Final = Target("")
DEFAULT_OPTIONS: Final = ForwardOptions()


class Forward:
    """One exchange on its way: the `Owner` of what its upstreams answer.

    It is made before its plan, which may call it once it has begun. `answer` is what the present
    upstream answers, or the first of several that made a stream; None while nobody is asked.
    """

    __slots__ = (
        "_attempts", "_continued", "_failure", "_paused", "_pool", "_retries", "_target", "_wait",
        "answer", "asks", "call", "clock", "exchange", "options", "plan", "resumption", "scope",
        "unnamed",
    )  # fmt: skip

    bound: None = None
    """A failed attempt leaves the request here."""

    def __init__(
        self,
        exchange: Exchange,
        pool: UpstreamPool,
        options: ForwardOptions = DEFAULT_OPTIONS,
    ) -> None:
        self.scope = exchange.scope
        self.exchange = exchange
        self.plan: ForwardPlan
        self.options = options
        self.asks: AskedUsage | None = None
        self.call: UpstreamCall | None = None
        self.clock: ForwardClock | None = None
        self.resumption: Resumption | None = None
        self.unnamed = (
            options.adopts_id and exchange.request.head.get(b"x-request-id") != exchange.request_id
        )
        self._pool = pool
        self.answer: PassedAnswer | None = None
        self._continued: ContinuedStream | None = None
        self._retries: Retries | None = None
        self._failure: UpstreamFailure | None = None
        self._target = _NOWHERE
        self._attempts = 0
        self._paused = False
        self._wait = WAIT

    def begin(
        self, plan: ForwardPlan, *, stream: bool = False, resumption: Resumption | None = None
    ) -> None:
        """Answer the exchange with the response of an upstream that `plan` names; never waits.

        `stream`: the client asked for an event stream and may be sent comments; with `resumption`
        for the rest of one that it has lost.
        """
        self.plan = plan
        exchange, pool, options = self.exchange, self._pool, self.options
        self.scope.held.append(self._over)
        self.scope.on_crash = self._report_crash
        if self.scope.trace is not None:
            self.scope.trace.stream = stream
        if pool.poison.deaths and pool.refuses(key_of(exchange.request.body)):
            answer(exchange, POISON, "refused")
            return
        exchange.on_pause = self._pause
        exchange.on_resume = self._resume
        self.resumption = resumption
        keep = options.keep if stream and resumption is None else None
        if keep is not None and getattr(plan, "go_on", None):
            self.resumption = keep.begin(exchange.request, options.form)
        self.asks = AskedUsage(options.usage) if stream and options.usage is not None else None
        comments_s = options.comments_s if stream else None
        deadline_s = options.deadline_s
        if not stream and deadline_s is not None and deadline_s >= pool.first_byte_s:
            deadline_s = None  # a whole answer has ended by then: its connection keeps that time
        if comments_s is not None or deadline_s is not None:
            self.clock = clock = ForwardClock(self, pool.wheel, deadline_s, comments_s)
            self.scope.held.append(partial(pool.wheel.discard, clock))
        self.send(plan.next_target())

    # what its plan, and who watches over it, see

    def proceed(self) -> None:
        """Ask the plan for the next target; a plan that said `Wait` calls this."""
        if self.scope.over:
            return
        if self._continued is not None:
            self._continued.proceed()
            return
        if self._retries is not None:
            self._retries.wait()
        self.send(self.plan.next_target())

    def fail_attempt(self, failure: UpstreamFailure) -> None:
        """Give the present attempt up unless its answer has begun: it cannot succeed any more."""
        if self._continued is not None:
            self._continued.fail_attempt(failure)
        elif self.call is not None and not self._begun:
            self.cancel()
            self.fail(failure)

    def hand_over(self, failure: UpstreamFailure) -> None:
        """Have a stream go on elsewhere that its client has part of; else it stays."""
        if self._continued is not None:
            self._continued.hand_over(failure)
        elif self.call is not None and self._begun:
            self.go_on(failure)

    @property
    def passed(self) -> int:
        """Return how many tokens of the present upstream's stream have come."""
        stream = self._stream
        return 0 if stream is None else stream.tokens

    @property
    def resumable(self) -> str:
        """Return what its client may count on when its upstream is lost in the middle."""
        if self.options.keep is None or self.answer is None or self.answer.stream is None:
            return ""
        return "no" if self.resumption is None else self.resumption.word

    def patience_s(self) -> float:
        """Return for how long its client waits for a byte, by its own headers; infinite: untold."""
        return patience_s(self.exchange.request)

    def usage(self) -> Usage | None:
        """Return what the upstream reported of its tokens, if it did."""
        source = self._continued or self.answer
        return None if source is None else source.usage()

    @property
    def _begun(self) -> bool:
        """Return whether the client has some of an answer: no other can take its place."""
        return self.answer is not None and self.answer.begun

    @property
    def _stream(self) -> EventStream | None:
        source = self._continued or self.answer
        return None if source is None else source.stream

    # attempts

    def send(
        self, target: Target | Problem | Wait | None, sink: UpstreamSink | None = None
    ) -> None:
        """Send the request to `target`, whose answer goes to `sink`, None: a new one; or do what
        the plan says instead.
        """
        if not isinstance(target, Target):
            if target is None:
                self.give_up(self._failure)
            elif isinstance(target, Wait):
                self._wait = target
            else:
                answer(self.exchange, target, "refused")
            return
        self._attempts += 1
        self._target = target
        if sink is None:
            kind = RouterAnswer if self.options.blameless else PassedAnswer
            sink = self.answer = kind(self, target)
        pool = self._pool
        own, resumption, asks = pool.own_headers, self.resumption, self.asks
        message = message_to(target, self.exchange, own, resumption, asks, unnamed=self.unnamed)
        try:
            self.call = call = pool.send(message, sink)
            if self._paused:
                call.pause()
        except (KvMeshError, ValueError) as error:
            sink.on_failure(UpstreamFailure("before_send", "refused", str(error), target.origin))

    def fail(self, failure: UpstreamFailure) -> None:
        """Try another upstream than the one that failed, or tell the client."""
        self.call = None
        self._failure = failure
        if self._begun:
            if not self.go_on(failure):
                self.end_cut(failure, self._target.worker)
            return
        self.answer = None
        if self._may_retry(failure):
            self.send(self.plan.next_target())
        else:
            self.give_up(self._failure)

    def _may_retry(self, failure: UpstreamFailure) -> bool:
        """Ask the plan, then the rules."""
        allowed = self.plan.on_attempt_failed(failure)
        if self.scope.trace is not None:
            self.scope.trace.failed(failure.message)
        if self._retries is None:
            self._retries = Retries(self.options, self._pool)
        return self._retries.allow(failure, self.exchange.request.body) and allowed

    def try_another(self, failure: UpstreamFailure) -> bool:
        """Send the request to another upstream if it may be, and there is one."""
        target = self.plan.next_target() if self._may_retry(failure) else None
        if target is None:
            return False
        self.cancel()
        self._failure = failure
        self.send(target)
        return True

    def cancel(self) -> None:
        """Give the present upstream up, and what it has begun to answer if none was passed on."""
        call, self.call = self.call, None
        if not self._begun:
            self.answer = None
        if call is not None:
            call.cancel()

    def give_up(self, failure: UpstreamFailure | None) -> None:
        """Answer that nobody gave an answer: the last one failed so, None: there was none."""
        self._failure = failure
        problem = gave_up(failure, self._attempts, self._target.worker)
        answer(self.exchange, problem, "failed")

    def refuse_redirect(self, status: int) -> None:
        """Answer in place of a redirect."""
        added = self.plan.on_head(status)
        self.cancel()
        answer(self.exchange, redirected(status, self._target.worker, added), "failed")

    # a stream that goes on

    def take_up(self, stream: EventStream) -> UpstreamSink:
        """Return what passes `stream` on, which comes, as the rest of one that its client lost."""
        assert self.resumption is not None
        self._continued = ContinuedStream(self, self.resumption)
        self._continued.adopt(stream, self._target)
        return self._continued

    def go_on(self, failure: UpstreamFailure, before: bytes = b"") -> bool:
        """Have another upstream go on with a stream, as `Owner` says."""
        resumption, stream, first = self.resumption, self._stream, self.answer
        if resumption is None or stream is None or first is None or first.failed is not None:
            return False
        poison = not self.options.blameless and ends_them(self._pool, failure, resumption.key)
        going = resumption.cut(self.exchange, stream, failure, self.plan, poison=poison)
        if going is None:
            return False
        if before:
            self.exchange.write(before)
        self.cancel()
        first.on_chunk = None
        self._failure = failure
        if isinstance(going, bytes):
            self.complete(going)
            return True
        if self._continued is None:
            self._continued = ContinuedStream(self, resumption)
        self._continued.begin(failure)
        return True

    def complete(self, data: bytes) -> None:
        """Pass the last bytes of a stream on that has gone on: the answer is whole."""
        self.call = None
        self._failure = None
        finish(self.exchange, data)

    def end_cut(self, failure: UpstreamFailure, worker: str) -> None:
        """Break off a stream that its upstream has failed, or complete it if it lacks its end."""
        self._failure = failure
        text = f"upstream failed: {failure.describe(worker)}"
        self._cut(Problem(502, text, "upstream_failed"))

    def end_badly(self, failure: UpstreamFailure) -> None:
        """End a stream, part of which the client has, behind one error event."""
        self._failure = failure
        self.scope.kind = "cut"
        text = f"upstream failed: {failure.describe(self._target.worker)}"
        break_answer(self.exchange, self._stream, Problem(502, text, f"upstream_{failure.kind}"))

    def _cut(self, problem: Problem) -> None:
        """Break an answer off that has begun; one that lacks but its end is completed."""
        source = self._continued or self.answer
        assert source is not None, "it has begun"
        stream = source.stream
        if stream is not None and stream.is_complete() and not stream.errors:
            source.on_end()
        else:
            self.scope.kind = "cut"
            break_answer(self.exchange, stream, problem)

    # the client's and the clock's side

    def _pause(self) -> None:
        self._paused = True
        if self.call is not None:
            self.call.pause()

    def _resume(self) -> None:
        self._paused = False
        if self.call is not None:
            self.call.resume()

    def expire(self) -> None:
        """Give up: the exchange has taken too long."""
        self.cancel()
        problem = Problem(504, f"not done in {self.options.deadline_s:g} s", "deadline")
        self._failure = None  # it was no upstream's doing
        if self._begun:
            self._cut(problem)
        else:
            answer(self.exchange, problem, "failed")

    def comment(self, *, due: bool) -> bool:
        """Tell a client that waits for an event stream what `show_life` says; return whether."""
        return show_life(self.exchange, WAIT if self.call is not None else self._wait, due=due)

    def crash(self, error: Exception) -> None:
        """End the exchange for an error of ours."""
        self.scope.crash(error)

    def _report_crash(self, problem: Problem) -> None:
        if self._begun:
            break_answer(self.exchange, self._stream, problem)
        else:
            answer(self.exchange, problem, "crashed")

    def _over(self) -> None:
        """Let go of all that the forwarding holds, and tell the plan."""
        plan, scope, first = self.plan, self.scope, self.answer
        stream = self._stream
        error, doubted = b"", False
        if first is not None:
            error, doubted = first.error, first.doubted
        if stream is not None and stream.errors:
            error = stream.error
        outcome = Outcome(
            scope.kind, scope.status, self._attempts, self._failure, error, doubted=doubted
        )
        if scope.trace is not None and self._failure is not None:
            scope.trace.failure = self._failure.message
        del self.plan  # a cycle: the plan knows the forwarding
        self._wait = WAIT  # and what it told of the wait, too
        try:
            if self.call is not None:
                self.cancel()
            self.clock = None  # a cycle, too
        finally:
            try:
                plan.on_finish(outcome)
            finally:
                self._continued = None  # another
                if first is not None:
                    first.on_chunk = first.rest = None
                    del first.owner
                if self.resumption is not None:
                    self.resumption.over()
