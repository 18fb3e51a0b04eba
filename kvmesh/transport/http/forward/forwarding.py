"""The state machine of one forwarded exchange: attempts, the answer, its end.

How an answer can end early, and what the client sees:
before its first byte: another upstream is tried, at last 502 or 504;
in an event stream: an error event, then the connection is closed without the last chunk, so that
neither a client that reads events nor one that reads HTTP takes the answer for whole;
a request whose body has ended two upstreams within a minute is refused (422), whoever sends it;
in any other answer: the connection is closed without the last chunk, or short of its length.
An error of ours is told in the same ways, as 500.
"""

from math import ceil
from typing import Final

from kvmesh.core.engines.event_stream import EventStream, new_event_stream
from kvmesh.core.engines.sse import Usage, find_usage
from kvmesh.errors import KvMeshError
from kvmesh.transport.http.forward.plan import ForwardOptions, ForwardPlan, Outcome, Target, Wait
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.request import forwarded_block
from kvmesh.transport.http.server.scope import End
from kvmesh.transport.http.upstream.client import (
    OnChunk,
    UpstreamCall,
    UpstreamFailure,
    UpstreamPool,
    UpstreamRequest,
)
from kvmesh.transport.http.upstream.response_head import HeldAnswer, ResponseHead
from kvmesh.transport.http.wire.deadlines import NEVER, ForwardClock
from kvmesh.transport.http.wire.headers import Headers, retry_after_s
from kvmesh.transport.http.wire.problem import WISHED, Problem

_COMMENTED: Final[Headers] = (
    (b"content-type", b"text/event-stream"),
    (b"x-accel-buffering", b"no"),
)
_COMMENT: Final = b": waiting\n\n"
_MAX_ERROR_BYTES: Final = 64 * 1024
MAX_SCANNED_BYTES: Final = 1 << 20
GROW_TOKENS: Final = 16
"""A plan is told of the first token, and then of so many more."""
_SUCCESS: Final = range(200, 300)
_ROUTED: Final = frozenset({b"x-kvmesh-worker", WISHED[0]})
"""An answer that names its worker comes from a router that has tried the others already; one that
was refused for its own wishes would be refused by others, too.
"""
POISON: Final = Problem(
    422,
    "this very request ended two workers within the last minute: do not send it",
    "poison",
    final=True,
)
_NO_WORKER: Final = Problem(503, "no worker can take this request", "no_worker", retry_after_s=1)


DEFAULT_OPTIONS: Final = ForwardOptions()


class Forward:
    """One exchange on its way; the sink of its upstream call.

    It is made before its plan, which may call it once it has begun.
    """

    __slots__ = (
        "_answering", "_attempts", "_call", "_clock", "_deaths", "_error", "_exchange", "_failure",
        "_head", "_held", "_options", "_origin", "_plan", "_pool", "_stream", "_verdict", "_whole",
        "on_chunk", "scope",
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
        self._error: list[bytes] | None = None
        self._failure: UpstreamFailure | None = None
        self._held: HeldAnswer | None = None
        self._stream: EventStream | None = None
        self._whole: bytes | None = b""
        self._verdict: Problem | None = None
        self._origin = ""
        self._attempts = 0
        self._deaths = 0
        self._answering = False
        self.on_chunk: OnChunk | None = None

    def begin(self, plan: ForwardPlan, *, stream: bool = False) -> None:
        """Answer the exchange with the response of an upstream that `plan` names; never waits.

        `stream`: the client asked for an event stream and may be sent comments.
        """
        self._plan = plan
        exchange, pool, options = self._exchange, self._pool, self._options
        self.scope.held.append(self._over)
        self.scope.tell = self._tell_crash
        if pool.poison.deaths and pool.refuses(exchange.request.body):
            self._answer(POISON, "refused")
            return
        exchange.on_pause = self._pause
        exchange.on_resume = self._resume
        comments_s = options.comments_s if stream else None
        if comments_s is not None or options.deadline_s is not None:
            self._clock = ForwardClock(self, pool.wheel, options.deadline_s, comments_s)
        self._take(plan.next_target())

    @property
    def bound(self) -> str | None:
        """Return None: a failed attempt leaves the request here."""
        return None

    def proceed(self) -> None:
        """Ask the plan for the next target; a plan that said `Wait` calls this."""
        if not self.scope.over:
            self._take(self._plan.next_target())

    def fail_attempt(self, failure: UpstreamFailure) -> None:
        """Give the present attempt up unless its answer has begun: it cannot succeed any more."""
        if self._call is not None and not self._answering:
            self._cancel()
            self.on_failure(failure)

    # the upstream's side

    def on_head(self, head: ResponseHead) -> None:
        """Keep the head until the answer cannot be taken back any more, or leave this upstream."""
        if head.status in self._options.retry_statuses and self._leave(head):
            return
        self._head = head
        if head.events:
            self._stream = new_event_stream()
        else:
            self._held = HeldAnswer()

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
        added = self._plan.on_head(status, head.headers)
        if exchange.started:
            if not head.events or status not in _SUCCESS:
                self._error = []
                return
            exchange.write(_told_late(added or head.headers))
        else:
            lines = head.foreign_lines if added else head.all_lines
            lines = head.lines(ours=not added) if lines is None else lines
            exchange.pass_head(status, lines, added, head.length)
        stream = self._stream
        if stream is not None and self._call is not None and exchange.chunked:
            self.on_chunk = stream.take, exchange.channel.transport.write

    def on_body(self, data: bytes) -> None:
        """Pass a piece on, in an event stream up to the end of its last whole event."""
        head, stream = self._head, self._stream
        if stream is not None:
            data = stream.feed(data)
        elif self._held is not None:
            data = self._held.take(data)
        if not data:
            return
        if head is not None:
            self._commit(head)
        if self._error is None:
            self._exchange.write(data)
            if stream is None:
                self._keep(data)
            elif stream.tokens >= stream.due:
                self.on_due()
        else:
            self._error.append(data)
            if sum(map(len, self._error)) > _MAX_ERROR_BYTES:
                self._error = [b""]

    def on_due(self) -> None:
        """Tell the plan of the tokens so far."""
        stream = self._stream
        assert stream is not None
        tokens = stream.tokens
        stream.due = tokens + GROW_TOKENS
        self._plan.on_tokens(tokens)

    def on_last_chunks(self, data: bytes) -> None:
        """Pass the last chunks on."""
        self._call = None
        self.scope.kind = "finished"
        self._exchange.end_framed(data)

    def on_whole(self, head: ResponseHead, body: bytes) -> None:
        """Pass an answer on that came at once."""
        exchange, options = self._exchange, self._options
        if head.events or exchange.started or head.status in options.retry_statuses:
            self.on_head(head)
            if self._head is head:
                self.on_body(body)
                self.on_end()
            return
        self._call = None
        self._answering = True
        exchange.request.release_body()
        added = self._plan.on_head(head.status, head.headers)
        self._whole = body
        self.scope.kind = "finished"
        lines = head.foreign_lines if added else head.all_lines
        lines = head.lines(ours=not added) if lines is None else lines
        exchange.pass_whole(head.status, lines, added, body)

    def on_end(self) -> None:
        """Complete the answer."""
        head, stream = self._head, self._stream
        held = stream.flush() if stream is not None else self._held.body() if self._held else b""
        if head is not None:
            self._commit(head)
            self._keep(held)
        self._call = None
        self.scope.kind = "finished"
        if self._error is not None:
            self._error.append(held)
            text = b"".join(self._error) or Problem(502, "upstream failed").body()
            self._exchange.write(b"data: %b\n\n" % b" ".join(text.split()))
            self._break_off()
        else:
            if held:
                self._exchange.write(held)
            self._exchange.end()

    def _keep(self, data: bytes) -> None:
        """Keep an answer that is no stream for the usage in it, unless it is long."""
        if self._options.reads_usage and self._whole is not None:
            short = len(self._whole) + len(data) <= MAX_SCANNED_BYTES
            self._whole = self._whole + data if short else None

    def usage(self) -> Usage | None:
        """Return what the upstream reported of its tokens, if it did."""
        if self._stream is not None:
            return self._stream.usage
        return find_usage(self._whole) if self._whole else None

    def on_failure(self, failure: UpstreamFailure) -> None:
        """Try another upstream, or tell the client."""
        self._call = None
        self._drop()
        self._failure = failure
        if self._answering:
            self._cut(Problem(502, f"upstream failed: {failure.message}", "upstream_failed"))
        elif self._may_retry(failure):
            self._take(self._plan.next_target())
        else:
            self._give_up()

    def crash(self, error: Exception) -> None:
        """End the exchange for an error of ours."""
        self.scope.crash(error)

    # the client's side

    def _pause(self) -> None:
        if self._call is not None:
            self._call.pause()

    def _resume(self) -> None:
        if self._call is not None:
            self._call.resume()

    # the clock's side

    def expire(self) -> None:
        """Give up: the exchange has taken too long."""
        self._cancel()
        problem = Problem(504, f"not done in {self._options.deadline_s:g} s", "deadline")
        self._failure = None  # it was no upstream's doing
        if self._answering:
            self._cut(problem)
        else:
            self._answer(problem, "failed")

    def comment(self) -> None:
        """Tell a client that waits for an event stream that it is not forgotten."""
        exchange = self._exchange
        if not exchange.started:
            exchange.pass_head(200, b"", _COMMENTED, None)
        exchange.write(_COMMENT)

    def _take(self, target: Target | Problem | Wait | None) -> None:
        """Send the request to `target`, or do what the plan says instead."""
        if not isinstance(target, Target):
            if target is None:
                self._give_up()
            elif target is not Wait.WAIT:
                self._answer(target, "refused")
            return
        request = self._exchange.request
        self._attempts += 1
        self._origin = target.origin
        own = self._pool.own_headers
        twin = request.twin or request
        block = None if target.headers or own else twin.block
        if block is None:
            block = forwarded_block(request, (*target.headers, *own))
        # An id is printable: see `RequestIds`.
        name = target.request_id or self._exchange.request_id
        message = UpstreamRequest(
            target.origin,
            request.method,
            request.target if target.path is None else target.path,
            target.headers,
            request.body if target.body is None else target.body,
            b"".join((block, b"x-request-id: ", name, b"\r\n")),
        )
        try:
            self._call = self._pool.send(message, self)
        except (KvMeshError, ValueError) as error:
            self.on_failure(UpstreamFailure("before_send", "refused", str(error), target.origin))

    def _may_retry(self, failure: UpstreamFailure) -> bool:
        """Ask the plan, then the rules. A timeout after sending is not tried again: the first
        upstream may still be at work, and the next would be as slow.
        """
        allowed = self._plan.on_attempt_failed(failure)
        if isinstance(allowed, Problem):
            self._verdict, allowed = allowed, False
        sent = failure.stage != "before_send"
        if sent and failure.kind != "status":
            self._deaths += 1
            self._pool.note_death(failure, self._exchange.request.body)
        return (
            allowed
            and self._attempts <= self._options.max_retries
            and self._deaths <= self._options.max_deaths
            and not (sent and failure.kind == "timeout")
        )

    def _leave(self, head: ResponseHead) -> bool:
        """Go to another upstream if there is one; else this one's answer is passed on."""
        if any(name in _ROUTED for name, _ in head.headers):
            return False
        status, origin = head.status, self._origin
        failure = UpstreamFailure(
            stage="mid_response",
            kind="status",
            message=f"{origin}: answered {status}",
            origin=origin,
            status=status,
            retry_after_s=retry_after_s(head.headers),
        )
        if not self._may_retry(failure):
            return False
        target = self._plan.next_target()
        if target is None:
            return False
        self._cancel()
        self._failure = failure
        self._take(target)
        return True

    def _give_up(self) -> None:
        failure = self._failure
        if failure is None or self._verdict is not None:
            self._answer(self._verdict or _NO_WORKER, "failed")
            return
        status = failure.status or (504 if failure.kind in {"timeout", "hung"} else 502)
        text = f"no upstream answered in {self._attempts} attempts; the last: {failure.message}"
        wait_s = ceil(failure.retry_after_s)
        problem = Problem(status, text, f"upstream_{failure.kind}", retry_after_s=wait_s)
        self._answer(problem, "failed")

    def _answer(self, problem: Problem, kind: End) -> None:
        self.scope.kind = kind
        exchange = self._exchange
        if exchange.started:
            exchange.write(problem.event(exchange.request_id.decode("latin-1")))
            self._break_off()
        else:
            exchange.fail(problem)

    def _cut(self, problem: Problem) -> None:
        """Break an answer off that has begun; one that lacks but its end is completed."""
        if self._stream is not None and self._stream.is_complete():
            self.on_end()
        else:
            self.scope.kind = "cut"
            self._break(problem)

    def _break(self, problem: Problem) -> None:
        exchange, stream = self._exchange, self._stream
        if stream is None:
            exchange.abort()
        else:
            event = problem.event(exchange.request_id.decode("latin-1"))
            exchange.write(b"\n\n" + event if stream.torn else event)
            self._break_off()

    def _tell_crash(self, problem: Problem) -> None:
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

    def _cancel(self) -> None:
        call, self._call = self._call, None
        self._drop()
        if call is not None:
            call.cancel()

    def _drop(self) -> None:
        """Forget what an upstream has begun to answer, if nothing of it was passed on."""
        if not self._answering:
            self._head = self._held = self._stream = None

    def _over(self) -> None:
        """Let go of all that the forwarding holds, and tell the plan."""
        plan, scope, stream = self._plan, self.scope, self._stream
        error = stream.error if stream is not None and stream.errors else b""
        self.on_chunk = None
        del self._plan  # a cycle: the plan knows the forwarding
        try:
            if self._call is not None:
                self._cancel()
            if self._clock is not None:
                self._pool.wheel.discard(self._clock)
                self._clock = None
        finally:
            plan.on_finish(Outcome(scope.kind, scope.status, self._attempts, self._failure, error))


def _told_late(headers: Headers) -> bytes:
    """Return those of our own headers as comments of an event stream whose head is gone already."""
    own = [b": %b: %b\n" % one for one in headers if one[0].startswith(b"x-kvmesh-")]
    return b"".join((*own, b"\n")) if own else b""
