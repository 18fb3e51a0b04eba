"""What one upstream answers: judged, kept back while another may be tried, passed on."""

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
from kvmesh.transport.http.forward.asked import is_unread
from kvmesh.transport.http.forward.endings import MAX_ERROR_BYTES, finish, finish_failed
from kvmesh.transport.http.forward.owner import Owner
from kvmesh.transport.http.forward.plan import GROW_TOKENS, Target
from kvmesh.transport.http.forward.resume import begin_of
from kvmesh.transport.http.forward.retries import failure_of
from kvmesh.transport.http.forward.signs import late_headers
from kvmesh.transport.http.upstream.messages import (
    OnChunk,
    UpstreamFailure,
    UpstreamSink,
    bad_answer,
)
from kvmesh.transport.http.upstream.response_head import HeldAnswer, ResponseHead
from kvmesh.transport.http.wire.deadlines import NEVER
from kvmesh.transport.http.wire.headers import Headers

MAX_SCANNED_BYTES: Final = 1 << 20
"""Of a whole answer, for the usage in it."""

_OK: Final = 200
_SUCCESS: Final = range(200, 300)
_REDIRECTS: Final = frozenset({300, 301, 302, 303, 305, 307, 308})


class PassedAnswer:
    """The sink of one attempt.

    `stream` counts its events, None of an answer that is none. `begun`: the client has some of it,
    or gets it; `early`: its head alone. `failed` is an error that is passed on within a stream
    whose head was sent before, None without. `doubted`: it failed its check, and nobody gave a
    better one; `error` is one that its client caused. `rest` passes it on where it goes on with a
    stream that the client has lost.
    """

    __slots__ = (
        "_check", "_exchange", "_head", "_held", "_options", "_target", "_usage", "_whole", "begun",
        "doubted", "early", "error", "failed", "on_chunk", "owner", "rest", "stream",
    )  # fmt: skip

    def __init__(self, owner: Owner, target: Target) -> None:
        self.owner = owner
        self.on_chunk: OnChunk | None = None
        self.stream: EventStream | None = None
        self.failed: bytearray | None = None
        self.error = b""
        self.begun = self.doubted = self.early = False
        self._exchange = owner.exchange
        self._options = owner.options
        self._target = target
        self._check: AnswerCheck | None = None
        self._head: ResponseHead | None = None
        self._held: HeldAnswer | None = None
        self._usage: Usage | None = None
        self._whole: bytes | bytearray | None = b""
        self.rest: UpstreamSink | None = None

    def usage(self) -> Usage | None:
        """Return what the upstream reported of its tokens, if it did."""
        if self.stream is not None:
            return self.stream.usage
        if self._usage is not None:
            return self._usage
        return find_usage(bytes(self._whole)) if self._whole else None

    def on_head(self, head: ResponseHead) -> None:
        """Keep the head until the answer cannot be taken back any more, or leave this upstream."""
        status, owner = head.status, self.owner
        options, resumption = self._options, owner.resumption
        if status in options.retry_statuses:
            failure = failure_of(head, self._target.origin, blameless=options.blameless)
            if failure is not None and owner.try_another(failure):
                return
        asks, origin = owner.asks, self._target.origin
        if status != _OK and is_unread(status, origin, resumption, asks):
            owner.cancel()
            owner.send(self._target)
            return
        if status in _REDIRECTS:
            owner.refuse_redirect(status)
            return
        self._head = head
        if status == _OK and not head.opaque and options.form:
            self._check = self._target.check
        if head.events:
            self.stream = stream = new_event_stream()
            if asks is not None:
                asks.watch(stream, origin)
            if resumption is not None:
                resumption.watch(stream)
                if resumption.going is not None and status == _OK:
                    self._commit(head)
                    self.on_chunk = None
                    self.rest = owner.take_up(stream)
        else:
            self._held = HeldAnswer()

    def _commit(self, head: ResponseHead) -> None:
        """Pass on what was kept back, once it is written: this is the client's answer."""
        self._head = self._held = None
        exchange, owner, status = self._exchange, self.owner, head.status
        added = self._accept(head)
        ours = not added or owner.options.blameless  # a router's stay beside those of its plan
        if (clock := owner.clock) is not None:
            clock.deadline_s = clock.expires_at_s  # no comments any more
            if clock.expires_at_s is NEVER:
                clock.stop()
                owner.clock = None
        if exchange.started:
            if not head.events or status not in _SUCCESS:
                self.failed = bytearray()
                return
            late = (*head.headers, *added) if ours and not self.early else added
            if late:
                exchange.write(late_headers(late))
        else:
            lines = head.all_lines if ours else head.foreign_lines
            lines = head.lines(ours=ours) if lines is None else lines
            kept = head.events and (owner.resumption is not None or owner.asks is not None)
            exchange.pass_head(status, lines, added, None if kept else head.length)
        stream = self.stream
        if stream is not None and exchange.chunked:
            self.on_chunk = stream.take, exchange.channel.transport.write

    def _accept(self, head: ResponseHead) -> Headers:
        """Take this as the client's answer; return the headers to add to it."""
        exchange = self._exchange
        self.begun = True
        exchange.request.release_body()
        added = self.owner.plan.on_head(head.status)
        if self.owner.unnamed:
            self._adopt_id(head)
        if exchange.scope.trace is not None:
            exchange.scope.trace.answered(added)
        return added

    def _adopt_id(self, head: ResponseHead) -> None:
        """Call a request that its client gave no id what its upstream does."""
        self._exchange.rename(head.request_id)
        self.owner.unnamed = False  # what goes on with it has its name

    def on_body(self, data: bytes) -> None:
        """Pass a piece on, in an event stream up to the end of its last whole event."""
        if self.rest is not None:
            self.rest.on_body(data)
            return
        head, stream = self._head, self.stream
        if stream is not None:
            data = stream.feed(data)
        if head is not None and data:
            data = self._begin(data, stream)
        if not data:
            return
        if head is not None:
            self._commit(head)
            if self.owner.resumption is not None:
                self.owner.resumption.opened(data, self._target.origin)
        elif stream is not None and stream.errors and self._pass_error(stream, data):
            return
        if self.failed is None:
            self._write(data, stream)
        else:
            self.failed += data
            if len(self.failed) > MAX_ERROR_BYTES:
                self.failed.clear()

    def _write(self, data: bytes, stream: EventStream | None) -> None:
        self._exchange.write(data)
        if stream is None:
            self._keep(data)
        elif stream.tokens >= stream.due:
            self.on_due()

    def _begin(self, data: bytes, stream: EventStream | None) -> bytes:
        """Return what may pass of an answer of which nothing has: what it begins with is judged."""
        held, check = self._held, self._check
        if stream is None:
            assert held is not None
            data = held.take(data)
            return b"" if data and check is not None and self._is_bad(judge_start(data)) else data
        if check is None:
            return data
        if held is not None:
            return held.take(data) or (held.body() if stream.tokens > SHORT_EVENTS else b"")
        sickness = check.judge_first(data, stream, self._exchange.request.body)
        if sickness and self._is_bad(sickness, stream.error):
            return b""
        if stream.reasoned and stream.tokens <= SHORT_EVENTS and not self.doubted:
            # What may be its end, too, shows only then whether there was any output.
            self._held = HeldAnswer()
            return self._held.take(data)
        return data

    def _pass_error(self, stream: EventStream, data: bytes) -> bool:
        """Pass on what came before an engine's error, if another one goes on; False: all of it may
        pass, or it is the client's own doing.
        """
        failure = self._failure_of("error", stream.error)
        if failure is None or self.owner.resumption is None:
            return False
        return self.owner.go_on(failure, data[: begin_of(data, stream.error)])

    def on_due(self) -> None:
        """Tell the plan of the tokens so far."""
        stream, owner = self.stream, self.owner
        assert stream is not None
        tokens = stream.tokens
        stream.due = tokens + GROW_TOKENS
        if (resumption := owner.resumption) is not None and resumption.thick:
            resumption.thin(stream)
        owner.plan.on_tokens(tokens)

    def on_last_chunks(self, data: bytes) -> None:
        """Pass the last chunks on."""
        stream, check, on_chunk = self.stream, self._check, self.on_chunk
        if stream is not None:
            self._count_rest(stream)
        self.owner.call = None
        if check is not None and stream is not None and on_chunk is not None:
            sickness = check.judge_end(self._options.form, stream)
            failure = self._failure_of(sickness, stream.error) if sickness else None
            if failure is not None:
                on_chunk[1](data.removesuffix(LAST_CHUNK))
                if not self.owner.go_on(failure):
                    self.owner.end_badly(failure)
                return
        self._exchange.scope.kind = "finished"
        self._exchange.end_framed(data)

    def _count_rest(self, stream: EventStream) -> None:
        """Tell the plan of the last tokens of a stream whose length its engine does not report."""
        usage = stream.usage
        counted = usage is not None and usage.completion_tokens
        if not counted and 1 < stream.due < stream.tokens + GROW_TOKENS:
            self.on_due()

    def on_whole(self, head: ResponseHead, body: bytes) -> None:
        """Pass an answer on that came at once."""
        exchange, owner = self._exchange, self.owner
        if head.events or exchange.started or head.status >= _SUCCESS.stop:
            self.on_head(head)
            if self._head is head or self.rest is not None:
                self.on_end(body)
            return
        owner.call = None
        check, form = self._target.check, self._options.form
        judged = check is not None and form and head.status == _OK and not head.opaque
        if judged and check is not None and not self._is_good(check, body):
            return
        added = self._accept(head)
        self._whole = body if self._options.reads_usage and not judged else None
        exchange.scope.kind = "finished"
        ours = not added or self._options.blameless
        lines = head.all_lines if ours else head.foreign_lines
        lines = head.lines(ours=ours) if lines is None else lines
        exchange.pass_whole(head.status, lines, added, body)

    def on_end(self, data: bytes = b"") -> None:
        """Complete the answer."""
        if self.rest is not None:
            self.rest.on_end(data)
            return
        self.owner.call = None
        if self.stream is not None:
            self._end_stream(self.stream, data)
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
                if not self.owner.go_on(failure, before):
                    self._exchange.write(events)
                    self.owner.end_badly(failure)
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
        if self.failed is None:
            finish(self._exchange, data)
        else:
            finish_failed(self._exchange, bytes(self.failed + data))

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
        if self.owner.try_another(failure):
            return True
        if sickness in DOUBTFUL:
            self.doubted = True
            return False
        self.owner.cancel()
        self.owner.give_up(failure)
        return True

    def _failure_of(self, sickness: Sickness, error: bytes) -> UpstreamFailure | None:
        if not sickness:
            return None
        failure = bad_answer(sickness, error, self._target.origin)
        if failure is None:
            self.error = error
        return failure

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

    def on_failure(self, failure: UpstreamFailure) -> None:
        """Try another upstream, or tell the client."""
        if self.rest is not None:
            self.rest.on_failure(failure)
        else:
            self.owner.fail(failure)

    def crash(self, error: Exception) -> None:
        """End the exchange for an error of ours."""
        self._exchange.scope.crash(error)
