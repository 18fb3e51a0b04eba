"""The state machine of one forwarded exchange: attempts, the answer, its end.

How an answer can end early, or badly (`core.members.answer_check`), and what the client sees:
before its first byte: another upstream is tried, at last 502 or 504; for a redirect 502 at once;
in an event stream: one error event, the upstream's own where it sent any, then the connection is
closed without the last chunk, so that neither a client that reads events nor one that reads HTTP
takes the answer for whole;
a request whose body has ended two upstreams within a minute is refused (422), whoever sends it;
in any other answer: the connection is closed without the last chunk, or short of its length.
An error of ours is told in the same ways, as 500.
"""

from math import ceil
from typing import Final

from kvmesh._native import EventStream
from kvmesh.core.engines.event_stream import LAST_CHUNK, new_event_stream
from kvmesh.core.engines.sse import Usage, find_usage
from kvmesh.core.members.answer_check import (
    DOUBTFUL,
    SHORT_EVENTS,
    AnswerCheck,
    BadAnswer,
    Sickness,
    has_no_token,
    judge_start,
)
from kvmesh.core.members.poison_guard import key_of
from kvmesh.errors import KvMeshError
from kvmesh.transport.http.forward.continued import ContinuedStream
from kvmesh.transport.http.forward.plan import (
    GROW_TOKENS,
    MOST_REFUSED,
    NO_HOLD,
    WAIT,
    ForwardOptions,
    ForwardPlan,
    Outcome,
    Target,
    Wait,
)
from kvmesh.transport.http.forward.resume import Resumption, begin_of
from kvmesh.transport.http.forward.signs import (
    HELD_IN_VAIN,
    early_head,
    is_sign_of_life,
    late_headers,
    sign_of_life,
)
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.request import forwarded_block, patience_s
from kvmesh.transport.http.server.scope import End
from kvmesh.transport.http.upstream.client import (
    OnChunk,
    UpstreamCall,
    UpstreamFailure,
    UpstreamPool,
    UpstreamRequest,
    UpstreamSink,
)
from kvmesh.transport.http.upstream.messages import bad_answer
from kvmesh.transport.http.upstream.response_head import HeldAnswer, ResponseHead
from kvmesh.transport.http.wire.deadlines import NEVER, ForwardClock
from kvmesh.transport.http.wire.headers import retry_after_s
from kvmesh.transport.http.wire.problem import (
    WISHED,
    WORKERLESS,
    Problem,
    error_event,
)

_MAX_ERROR_BYTES: Final = 64 * 1024
MAX_SCANNED_BYTES: Final = 1 << 20
_OK: Final = 200
_UNAVAILABLE: Final = 503
_SUCCESS: Final = range(200, 300)
_REDIRECTS: Final = frozenset({300, 301, 302, 303, 305, 307, 308})
_ANSWERED: Final = frozenset({"status", "bad_answer", "no_worker"})
"""Failures by which an upstream shows that it lives."""

_ROUTED: Final = b"x-kvmesh-worker"
"""An answer that names its worker comes from a router that has tried the others already."""
POISON: Final = Problem(
    422,
    "this very request ended two workers within the last minute: do not send it",
    "poison",
    final=True,
)
_NO_WORKER: Final = Problem(503, "no worker can take this request", "no_worker", retry_after_s=1)
_FAILED: Final = Problem(502, "upstream failed")
_NOWHERE: Final = Target("")
DEFAULT_OPTIONS: Final = ForwardOptions()


class Forward:
    """One exchange on its way; the sink of its upstream call.

    It is made before its plan, which may call it once it has begun.
    """

    __slots__ = (
        "_answering",
        "_attempts",
        "_call",
        "_check",
        "_clock",
        "_continued",
        "_counted",
        "_deaths",
        "_early",
        "_error",
        "_error_body",
        "_exchange",
        "_failure",
        "_head",
        "_held",
        "_options",
        "_paused",
        "_plan",
        "_pool",
        "_refused",
        "_resumption",
        "_stream",
        "_suspected",
        "_target",
        "_unnamed",
        "_usage",
        "_wait",
        "_whole",
        "on_chunk",
        "scope",
    )  # fmt: skip

    def __init__(
        self,
        exchange: Exchange,
        pool: UpstreamPool,
        options: ForwardOptions = DEFAULT_OPTIONS,
    ) -> None:
        self.scope = exchange.scope
        self._exchange = exchange
        self._plan: ForwardPlan
        self._pool = pool
        self._options = options
        self._call: UpstreamCall | None = None
        self._clock: ForwardClock | None = None
        self._head: ResponseHead | None = None
        self._early: ResponseHead | None = None
        self._wait: Wait | None = None
        self._error: bytearray | None = None
        self._failure: UpstreamFailure | None = None
        self._held: HeldAnswer | None = None
        self._stream: EventStream | None = None
        self._check: AnswerCheck | None = None
        self._usage: Usage | None = None
        self._error_body = b""
        self._suspected = False
        self._resumption: Resumption | None = None
        self._continued: ContinuedStream | None = None
        self._whole: bytes | bytearray | None = b""
        self._target = _NOWHERE
        self._attempts = 0
        self._paused = False
        self._counted = 0
        self._deaths = 0
        self._refused = 0
        self._answering = False
        self._unnamed = (
            options.adopts_id and exchange.request.head.get(b"x-request-id") != exchange.request_id
        )
        self.on_chunk: OnChunk | None = None

    def begin(
        self, plan: ForwardPlan, *, stream: bool = False, resumption: Resumption | None = None
    ) -> None:
        """Answer the exchange with the response of an upstream that `plan` names; never waits.

        `stream`: the client asked for an event stream and may be sent comments; with `resumption`
        for the rest of one that it has lost.
        """
        self._plan = plan
        exchange, pool, options = self._exchange, self._pool, self._options
        self.scope.held.append(self._over)
        self.scope.on_crash = self._report_crash
        if self.scope.trace is not None:
            self.scope.trace.stream = stream
        if pool.poison.deaths and pool.refuses(key_of(exchange.request.body)):
            self._answer(POISON, "refused")
            return
        exchange.on_pause = self._pause
        exchange.on_resume = self._resume
        self._resumption = resumption
        keep = options.keep if stream and resumption is None else None
        if keep is not None and getattr(plan, "go_on", None):
            self._resumption = keep.begin(exchange.request, options.form)
        comments_s = options.comments_s if stream else None
        deadline_s = options.deadline_s
        if not stream and deadline_s is not None and deadline_s >= pool.first_byte_s:
            deadline_s = None  # a whole answer has ended by then: its connection keeps that time
        if comments_s is not None or deadline_s is not None:
            self._clock = clock = ForwardClock(self, pool.wheel, deadline_s, comments_s)
            self.scope.held.append(clock.stop)
        self._take(plan.next_target())

    @property
    def bound(self) -> str | None:
        """Return None: a failed attempt leaves the request here."""
        return None

    @property
    def may_hold(self) -> bool:
        """Return whether it may be held while nobody can take it."""
        return self._exchange.request.header(NO_HOLD[0]) != NO_HOLD[1]

    def proceed(self) -> None:
        """Ask the plan for the next target; a plan that said `Wait` calls this."""
        if self.scope.over:
            return
        if self._continued is not None:
            self._continued.proceed()
            return
        self._refused = 0
        self._take(self._plan.next_target())

    def fail_attempt(self, failure: UpstreamFailure) -> None:
        """Give the present attempt up unless its answer has begun: it cannot succeed any more."""
        if self._call is not None and not self._answering:
            self.cancel()
            self.on_failure(failure)
        elif self._continued is not None:
            self._continued.fail_attempt(failure)

    def hand_over(self, failure: UpstreamFailure) -> None:
        """Have a stream go on elsewhere that its client has part of; else it stays."""
        if self._continued is not None:
            self._continued.hand_over(failure)
        elif self._answering and self._call is not None:
            self._go_on(failure)

    @property
    def passed(self) -> int:
        """Return how many tokens of the present upstream's stream have come."""
        return 0 if self._stream is None else self._stream.tokens

    @property
    def resumption(self) -> Resumption | None:
        """Return what keeps its stream, None where nothing does."""
        return self._resumption

    @property
    def resumable(self) -> str:
        """Return what its client may count on when its upstream is lost in the middle."""
        if self._stream is None or self._options.keep is None:
            return ""
        return "no" if self._resumption is None else self._resumption.word

    # the upstream's side

    def on_head(self, head: ResponseHead) -> None:
        """Keep the head until the answer cannot be taken back any more, or leave this upstream."""
        status, resumption = head.status, self._resumption
        if status in self._options.retry_statuses and self._leave(head):
            return
        if resumption is not None and resumption.unasked(status, self._target.origin):
            self.cancel()
            self._take(self._target)
            return
        if status in _REDIRECTS:
            self._refuse_redirect(head)
            return
        self._head = head
        if head.status == _OK and not head.opaque and self._options.form:
            self._check = self._target.check
        if head.events:
            self._stream = stream = new_event_stream()
            if resumption is not None:
                resumption.watch(stream)
                if resumption.goes_on and status == _OK:
                    self._take_up(head, stream, resumption)
        else:
            self._held = HeldAnswer()

    def _take_up(self, head: ResponseHead, stream: EventStream, resumption: Resumption) -> None:
        """Pass an answer on as the rest of a stream that the client has lost."""
        self._commit(head)
        self.on_chunk = None
        self._continued = ContinuedStream(self, resumption)
        self._continued.adopt(stream, self._target)

    def _commit(self, head: ResponseHead) -> None:
        """Pass on what was kept back, once it is written: this is the client's answer."""
        self._head = self._held = None
        exchange = self._exchange
        status = head.status
        self._answering = True
        exchange.request.release_body()
        clock = self._clock
        if clock is not None:
            clock.deadline_s = clock.expires_at_s  # no comments any more
            if clock.expires_at_s is NEVER:
                self._pool.wheel.discard(clock)
                self._clock = None
        added = self._plan.on_head(status)
        self._adopt_id(head)
        if self.scope.trace is not None:
            self.scope.trace.answered(added)
        if exchange.started:
            if not head.events or status not in _SUCCESS:
                self._error = bytearray()
                return
            if head is not self._early:
                exchange.write(late_headers(added or head.headers))
        else:
            lines = head.foreign_lines if added else head.all_lines
            lines = head.lines(ours=not added) if lines is None else lines
            kept = self._resumption is not None and head.events
            exchange.pass_head(status, lines, added, None if kept else head.length)
        stream = self._stream
        if stream is not None and self._call is not None and exchange.chunked:
            self.on_chunk = stream.take, exchange.channel.transport.write

    def _adopt_id(self, head: ResponseHead) -> None:
        """Call a request that its client gave no id what its upstream does."""
        if self._unnamed:
            self._exchange.rename(head.request_id)
            self._unnamed = False  # what goes on with it has its name

    def on_body(self, data: bytes) -> None:
        """Pass a piece on, in an event stream up to the end of its last whole event."""
        if self._continued is not None:
            self._continued.on_body(data)
            return
        head, stream = self._head, self._stream
        if stream is not None:
            data = stream.feed(data)
        if head is not None and data:
            data = self._begin(data, stream)
        if not data:
            return
        if head is not None:
            self._commit(head)
            if self._resumption is not None:
                self._resumption.opened(data, self._target.origin)
        elif stream is not None and stream.errors and self._pass_error(stream, data):
            return
        if self._error is None:
            self._write(data, stream)
        else:
            self._error += data
            if len(self._error) > _MAX_ERROR_BYTES:
                self._error.clear()

    def _pass_signs(self, data: bytes, stream: EventStream) -> bytes:
        """Pass on that a router holds the request, and return what else there is: until its first
        event another router may answer, and where it has held the request in vain.
        """
        exchange, head = self._exchange, self._head
        if stream.errors and HELD_IN_VAIN in stream.error:
            origin = self._target.origin
            text = f"{origin}: held the request in vain"
            failure = UpstreamFailure("mid_response", "status", text, origin, _UNAVAILABLE)
            return b"" if self._try_another(failure) else data
        if head is None or not is_sign_of_life(data):
            return data
        if not exchange.started:
            self._early = head
            self._adopt_id(head)
            lines = head.all_lines
            lines = head.lines(ours=True) if lines is None else lines
            exchange.pass_head(head.status, lines, (), None)
        exchange.write(data)
        return b""

    def _write(self, data: bytes, stream: EventStream | None) -> None:
        self._exchange.write(data)
        if stream is None:
            self._keep(data)
        elif stream.tokens >= stream.due:
            self.on_due()

    def _pass_error(self, stream: EventStream, data: bytes) -> bool:
        """Pass on what came before an engine's error, if another one goes on; False: all of it may
        pass, or it is the client's own doing.
        """
        failure = self._failure_of("error", stream.error)
        if failure is None or self._resumption is None:
            return False
        before = data[: begin_of(data, stream.error)]
        return self._go_on(failure, before)

    def _go_on(self, failure: UpstreamFailure, before: bytes = b"") -> bool:
        """Have another upstream go on with a stream, part of which the client has, when it has got
        what is `before` the loss; return whether it does, or nothing was missing but its end.
        """
        resumption, stream = self._resumption, self._stream
        if resumption is None or stream is None or self._error is not None:
            return False
        poison = self.is_poison(failure)
        going = resumption.cut(self._exchange, stream, failure, self._plan, poison=poison)
        if going is None:
            return False
        if before:
            self._exchange.write(before)
        self.cancel()
        self.on_chunk = None
        self._failure = failure
        if isinstance(going, bytes):
            self.complete(going)
            return True
        self._continued = ContinuedStream(self, resumption)
        self._continued.begin(failure)
        return True

    # what goes on with a stream

    @property
    def plan(self) -> ForwardPlan:
        """Return what decides where the request goes."""
        return self._plan

    @property
    def exchange(self) -> Exchange:
        """Return what is answered."""
        return self._exchange

    def is_poison(self, failure: UpstreamFailure) -> bool:
        """Take that an upstream was lost in its answer; return whether this very request ends
        them.
        """
        pool, key = self._pool, b"" if self._resumption is None else self._resumption.key
        if self._options.blameless or not key:
            return False
        if failure.stage != "before_send":
            pool.note_death(failure, key)
        return bool(pool.poison.deaths) and pool.refuses(key)

    def watch(self, stream: EventStream) -> None:
        """Take the stream that comes now, in place of the one that was cut."""
        self._stream = stream

    def complete(self, data: bytes) -> None:
        """Pass the last bytes on: the answer is whole."""
        self._call = None
        self._failure = None
        self._complete(data)

    def _begin(self, data: bytes, stream: EventStream | None) -> bytes:
        """Return what may pass of an answer of which nothing has: what it begins with is judged."""
        held, check = self._held, self._check
        if stream is None:
            assert held is not None
            data = held.take(data)
            return b"" if data and check is not None and self._is_bad(judge_start(data)) else data
        if check is None:
            return self._pass_signs(data, stream) if self._options.blameless else data
        if held is not None:
            return held.take(data) or (held.body() if stream.tokens > SHORT_EVENTS else b"")
        sickness = check.judge_first(data, stream, self._exchange.request.body)
        if sickness and self._is_bad(sickness, stream.error):
            return b""
        if stream.reasoned and stream.tokens <= SHORT_EVENTS and not self._suspected:
            # What may be its end, too, shows only then whether there was any output.
            self._held = HeldAnswer()
            return self._held.take(data)
        return data

    def on_due(self) -> None:
        """Tell the plan of the tokens so far."""
        stream = self._stream
        assert stream is not None
        tokens = stream.tokens
        stream.due = tokens + GROW_TOKENS
        if (resumption := self._resumption) is not None and resumption.thick:
            resumption.thin(stream)
        self._plan.on_tokens(tokens)

    def on_last_chunks(self, data: bytes) -> None:
        """Pass the last chunks on."""
        stream, check, on_chunk = self._stream, self._check, self.on_chunk
        if stream is not None:
            self._count_rest(stream)
        self._call = None
        if check is not None and stream is not None and on_chunk is not None:
            sickness = check.judge_end(self._options.form, stream)
            failure = self._failure_of(sickness, stream.error) if sickness else None
            if failure is not None:
                on_chunk[1](data.removesuffix(LAST_CHUNK))
                if not self._go_on(failure):
                    self._end_badly(failure)
                return
        self.scope.kind = "finished"
        self._exchange.end_framed(data)

    def _count_rest(self, stream: EventStream) -> None:
        """Tell the plan of the last tokens of a stream whose length its engine does not report."""
        usage = stream.usage
        counted = usage is not None and usage.completion_tokens
        if not counted and 1 < stream.due < stream.tokens + GROW_TOKENS:
            self.on_due()

    def on_whole(self, head: ResponseHead, body: bytes) -> None:
        """Pass an answer on that came at once."""
        exchange = self._exchange
        if head.events or exchange.started or head.status >= _SUCCESS.stop:
            self.on_head(head)
            if self._head is head or self._continued is not None:
                self.on_end(body)
            return
        self._call = None
        check, form = self._target.check, self._options.form
        judged = check is not None and form and head.status == _OK and not head.opaque
        if judged and check is not None and not self._is_good(check, body):
            return
        self._answering = True
        exchange.request.release_body()
        added = self._plan.on_head(head.status)
        self._adopt_id(head)
        if self.scope.trace is not None:
            self.scope.trace.answered(added)
        self._whole = body if self._options.reads_usage and not judged else None
        self.scope.kind = "finished"
        lines = head.foreign_lines if added else head.all_lines
        lines = head.lines(ours=not added) if lines is None else lines
        exchange.pass_whole(head.status, lines, added, body)

    def on_end(self, data: bytes = b"") -> None:
        """Complete the answer."""
        if self._continued is not None:
            self._continued.on_end(data)
            return
        self._call = None
        if self._stream is not None:
            self._end_stream(self._stream, data)
            return
        head, held, check = self._head, self._held, self._check
        if held is not None:
            held.take(data)
            data = held.body()
        if head is not None:
            if check is not None and not self._is_good(check, data):
                return
            self._commit(head)
        if head is None or check is None:
            self._keep(data)
        self._complete(data)

    def _end_stream(self, stream: EventStream, data: bytes) -> None:
        head, held, check = self._head, self._held, self._check
        events = stream.feed(data) if data else b""
        if held is not None:
            held.take(events)
            events = held.body()
        rest = stream.flush()
        if check is not None:
            sickness = self._judge_stream(check, stream, events, rest)
            if head is not None:
                if self._is_bad(sickness, stream.error):
                    return
            elif (failure := self._failure_of(sickness, stream.error)) is not None:
                before = events[: begin_of(events, stream.error)] if stream.errors else events
                if not self._go_on(failure, before):
                    self._exchange.write(events)
                    self._end_badly(failure)
                return
        if head is None:
            self._count_rest(stream)
        else:
            self._commit(head)
            if stream.tokens >= stream.due:
                self.on_due()  # nothing of it has passed before
        self._complete(events + rest)

    def _judge_stream(
        self, check: AnswerCheck, stream: EventStream, events: bytes, rest: bytes
    ) -> Sickness:
        """Return what is wrong with a stream that has ended: with all of it, if nothing of it was
        passed on yet.
        """
        form, body = self._options.form, self._exchange.request.body
        if self._head is None:
            return check.judge_end(form, stream, rest)
        sickness = check.judge_first(events or rest, stream, body) if self._held is None else ""
        sickness = sickness or check.judge_end(form, stream, rest)
        if not sickness and stream.tokens <= SHORT_EVENTS:
            return "no_tokens" if has_no_token(form, stream, events, body) else ""
        return sickness

    def _complete(self, data: bytes) -> None:
        """Pass on what is left of an answer that is whole."""
        self.scope.kind = "finished"
        if self._error is not None:
            whole = self._error + data
            text = bytes(whole) if 0 < len(whole) <= _MAX_ERROR_BYTES else _FAILED.body()
            event = error_event(b" ".join(text.split()), self._exchange.request.path)
            self._exchange.write(event)
            self._break_off()
        else:
            if data:
                self._exchange.write(data)
            self._exchange.end()

    def _is_good(self, check: AnswerCheck, body: bytes) -> bool:
        """Return whether a whole answer may be passed on; else it was left."""
        found = check.judge_whole(self._options.form, body, self._exchange.request.body)
        if isinstance(found, BadAnswer):
            if self._is_bad(found.sickness, found.error):
                return False
            found = found.usage
        self._usage = found
        return True

    def _is_bad(self, sickness: Sickness, error: bytes = b"") -> bool:
        """Leave an answer that shows such a sickness; False: it may be passed on after all, as the
        client's own doing, or because it is well-formed and nobody gives a better one.
        """
        failure = self._failure_of(sickness, error)
        if failure is None:
            return False
        if self._try_another(failure):
            return True
        if sickness in DOUBTFUL:
            self._suspected = True
            return False
        self.cancel()
        self._failure = failure
        self._give_up()
        return True

    def _failure_of(self, sickness: Sickness, error: bytes) -> UpstreamFailure | None:
        if not sickness:
            return None
        failure = bad_answer(sickness, error, self._target.origin)
        if failure is None:
            self._error_body = error
        return failure

    def _end_badly(self, failure: UpstreamFailure) -> None:
        """End a stream, part of which the client has, behind one error event."""
        self._failure = failure
        self.scope.kind = "cut"
        text = f"upstream failed: {failure.describe(self._target.worker)}"
        self._break(Problem(502, text, f"upstream_{failure.kind}"))

    def _keep(self, data: bytes) -> None:
        """Keep an answer that is no stream for the usage in it, unless it is long."""
        whole = self._whole
        if whole is None or not self._options.reads_usage:
            return
        if len(whole) + len(data) > MAX_SCANNED_BYTES:
            self._whole = None
        elif not whole:
            self._whole = data
        else:
            # One array for all pieces: an answer may come byte by byte.
            kept = self._whole = whole if isinstance(whole, bytearray) else bytearray(whole)
            kept += data

    @property
    def silent_s(self) -> float:
        """Return for how long it may wait while its client is shown nothing."""
        return self._exchange.silent_s

    def patience_s(self) -> float:
        """Return for how long its client waits for a byte, by its own headers; infinite: untold."""
        return patience_s(self._exchange.request)

    def usage(self) -> Usage | None:
        """Return what the upstream reported of its tokens, if it did."""
        if self._continued is not None:
            return self._continued.usage()
        if self._stream is not None:
            return self._stream.usage
        if self._usage is not None:
            return self._usage
        return find_usage(bytes(self._whole)) if self._whole else None

    def on_failure(self, failure: UpstreamFailure) -> None:
        """Try another upstream, or tell the client."""
        if self._continued is not None:
            self._continued.on_failure(failure)
            return
        self._call = None
        self._drop()
        self._failure = failure
        if self._answering:
            if not self._go_on(failure):
                self.end_cut(failure, self._target.worker)
        elif self._may_retry(failure):
            self._take(self._plan.next_target())
        else:
            self._give_up()

    def end_cut(self, failure: UpstreamFailure, worker: str) -> None:
        """Break off a stream that its upstream has failed."""
        self._failure = failure
        text = f"upstream failed: {failure.describe(worker)}"
        self._cut(Problem(502, text, "upstream_failed"))

    def crash(self, error: Exception) -> None:
        """End the exchange for an error of ours."""
        self.scope.crash(error)

    # the client's side

    def _pause(self) -> None:
        self._paused = True
        if self._call is not None:
            self._call.pause()

    def _resume(self) -> None:
        self._paused = False
        if self._call is not None:
            self._call.resume()

    # the clock's side

    def expire(self) -> None:
        """Give up: the exchange has taken too long."""
        self.cancel()
        problem = Problem(504, f"not done in {self._options.deadline_s:g} s", "deadline")
        self._failure = None  # it was no upstream's doing
        if self._answering:
            self._cut(problem)
        else:
            self._answer(problem, "failed")

    def comment(self, *, due: bool) -> bool:
        """Tell a client that waits for an event stream that it is not forgotten, for how long a
        held one waits, and at once that it is held; return whether it was told.
        """
        exchange = self._exchange
        wait = WAIT if self._wait is None or self._call is not None else self._wait
        early = wait.told is not None and not exchange.started
        if not (due or early) or (wait.quiet and not exchange.started):
            return False
        if not exchange.started:
            exchange.pass_head(_OK, b"", early_head(wait), None)
        exchange.write(sign_of_life(wait, exchange.request.path))
        return True

    def _take(self, target: Target | Problem | Wait | None) -> None:
        """Send the request to `target`, or do what the plan says instead."""
        if not isinstance(target, Target):
            if target is None:
                self._give_up()
            elif isinstance(target, Wait):
                self._wait = target
            else:
                self._answer(target, "refused")
            return
        self.send(target, self)

    def send(self, target: Target, sink: UpstreamSink) -> None:
        """Send the request, or what goes on with its stream, to `target`."""
        request = self._exchange.request
        self._attempts += 1
        self._target = target
        own = self._pool.own_headers
        replaced = (*target.headers, *own) if target.headers or own else ()
        line = b""
        if (trace := self.scope.trace) is not None:
            trace.sent(target.origin)
            line = trace.line
            replaced = (*replaced, *trace.left_out)
        path, body = target.path, request.body if target.body is None else target.body
        if self._resumption is not None:
            path, body = self._resumption.sent(path, body, target.origin, target.gives_ids)
        block = forwarded_block(request, replaced)
        # An id is printable: see `RequestIds`.
        named = b""
        if not self._unnamed:
            name = target.request_id or self._exchange.request_id
            named = b"x-request-id: %b\r\n" % name
        message = UpstreamRequest(
            target.origin,
            request.method,
            request.target if path is None else path,
            target.headers,
            body,
            b"".join((block, named, line)),
        )
        try:
            self._call = call = self._pool.send(message, sink)
            if self._paused:
                call.pause()
        except (KvMeshError, ValueError) as error:
            sink.on_failure(UpstreamFailure("before_send", "refused", str(error), target.origin))

    def _may_retry(self, failure: UpstreamFailure) -> bool:
        """Ask the plan, then the rules. A timeout after sending is not tried again: the first
        upstream may still be at work, and the next would be as slow.
        """
        allowed = self._plan.on_attempt_failed(failure)
        if self.scope.trace is not None:
            self.scope.trace.failed(failure.message)
        sent, options = failure.stage != "before_send", self._options
        if sent and failure.kind not in _ANSWERED:
            self._deaths += 1
            if not options.blameless:
                self._pool.note_death(failure, key_of(self._exchange.request.body))
        begun = failure.kind != "no_worker" and (sent or failure.kind != "refused")
        if begun or self._refused >= MOST_REFUSED:
            self._counted += 1
        else:
            self._refused += 1
        return (
            allowed
            and self._counted <= options.max_retries
            and self._deaths <= options.max_deaths
            and not (sent and failure.kind == "timeout")
        )

    def _leave(self, head: ResponseHead) -> bool:
        """Go to another upstream if there is one; else this one's answer is passed on.

        One that was refused for its own wishes would be refused by others, too.
        """
        if WISHED in head.headers or any(name == _ROUTED for name, _ in head.headers):
            return False
        workerless = self._options.blameless and WORKERLESS in head.headers
        status, origin = head.status, self._target.origin
        failure = UpstreamFailure(
            stage="mid_response",
            kind="no_worker" if workerless else "status",
            message=f"{origin}: answered {status}",
            origin=origin,
            status=status,
            retry_after_s=retry_after_s(head.headers),
        )
        return self._try_another(failure)

    def _try_another(self, failure: UpstreamFailure) -> bool:
        """Send the request to another upstream if it may be, and there is one."""
        if not self._may_retry(failure):
            return False
        target = self._plan.next_target()
        if target is None:
            return False
        self.cancel()
        self._failure = failure
        self._take(target)
        return True

    def _refuse_redirect(self, head: ResponseHead) -> None:
        """Answer in place of a redirect: where it leads is inside, and the engine's to say."""
        added = tuple(self._plan.on_head(head.status))
        self.cancel()
        text = (
            f"{self._target.worker or 'upstream'} answered {head.status}, a redirect, which is "
            "neither followed nor passed on: send to the path that it serves, perhaps without a "
            "slash at its end"
        )
        problem = Problem(502, text, "upstream_redirect", final=True, also=added)
        self._answer(problem, "failed")

    def _give_up(self) -> None:
        failure = self._failure
        if failure is None:
            self._answer(_NO_WORKER, "failed")
            return
        status = failure.status or (504 if failure.kind in {"timeout", "hung"} else 502)
        last = failure.describe(self._target.worker)
        text = f"no worker answered in {self._attempts} attempts; the last: {last}"
        wait_s = ceil(failure.retry_after_s)
        problem = Problem(status, text, f"upstream_{failure.kind}", retry_after_s=wait_s)
        self._answer(problem, "failed")

    def _answer(self, problem: Problem, kind: End) -> None:
        self.scope.kind = kind
        exchange = self._exchange
        if exchange.started:
            exchange.write(self._event(problem))
            self._break_off()
        else:
            exchange.fail(problem)

    def _cut(self, problem: Problem) -> None:
        """Break an answer off that has begun; one that lacks but its end is completed."""
        stream = self._stream
        if stream is not None and stream.is_complete() and not stream.errors:
            self.on_end()
        else:
            self.scope.kind = "cut"
            self._break(problem)

    def _break(self, problem: Problem) -> None:
        exchange, stream = self._exchange, self._stream
        if stream is None:
            exchange.abort()
        elif stream.errors:
            self._break_off()  # the client has one
        else:
            event = self._event(problem)
            exchange.write(b"\n\n" + event if stream.torn else event)
            self._break_off()

    def _event(self, problem: Problem) -> bytes:
        exchange = self._exchange
        return problem.event(exchange.request_id.decode("latin-1"), exchange.request.path)

    def _report_crash(self, problem: Problem) -> None:
        if self._answering:
            self._break(problem)
        else:
            self._answer(problem, "crashed")

    def _break_off(self) -> None:
        """End an event stream behind an error event; in HTTP/1.0 a reset might overtake it."""
        if self._exchange.request.http_1_0:
            self._exchange.end()
        else:
            self._exchange.abort()

    def cancel(self) -> None:
        """Give the present upstream up."""
        call, self._call = self._call, None
        self._drop()
        if call is not None:
            call.cancel()

    def _drop(self) -> None:
        """Forget what an upstream has begun to answer, if nothing of it was passed on."""
        if not self._answering:
            self._head = self._held = self._stream = self._check = None

    def _over(self) -> None:
        """Let go of all that the forwarding holds, and tell the plan."""
        plan, scope, stream = self._plan, self.scope, self._stream
        error = stream.error if stream is not None and stream.errors else self._error_body
        outcome = Outcome(
            scope.kind, scope.status, self._attempts, self._failure, error, doubted=self._suspected
        )
        if scope.trace is not None and self._failure is not None:
            scope.trace.failure = self._failure.message
        self.on_chunk = None
        del self._plan  # a cycle: the plan knows the forwarding
        try:
            if self._call is not None:
                self.cancel()
            self._clock = None  # a cycle, too
        finally:
            try:
                plan.on_finish(outcome)
            finally:
                self._continued = None  # another
                if self._resumption is not None:
                    self._resumption.over()
