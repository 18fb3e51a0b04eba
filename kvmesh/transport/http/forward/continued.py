"""The rest of a stream that was cut, from one upstream after another until its end."""

from kvmesh._native import EventStream
from kvmesh.core.chat.splice import DivergedError
from kvmesh.core.engines.event_stream import new_event_stream
from kvmesh.core.engines.sse import Usage
from kvmesh.transport.http.forward.asked import is_unread
from kvmesh.transport.http.forward.owner import Owner
from kvmesh.transport.http.forward.plan import GROW_TOKENS, Target, Wait
from kvmesh.transport.http.forward.resume import Resumption, begin_of
from kvmesh.transport.http.upstream.messages import OnChunk, UpstreamFailure, bad_answer
from kvmesh.transport.http.upstream.response_head import ResponseHead
from kvmesh.transport.http.wire.headers import retry_after_s

_OK = 200


class ContinuedStream:
    """The sink of the upstreams that go on with a stream, one after the other; `stream` is what the
    present one sends.
    """

    def __init__(self, owner: Owner, resumption: Resumption) -> None:
        self.on_chunk: OnChunk | None = None
        self._owner = owner
        self._resumption = resumption
        self.stream = new_event_stream()
        self._target: Target | None = None
        self._failure: UpstreamFailure | None = None
        self._silent = True

    def begin(self, failure: UpstreamFailure) -> None:
        """Go on at the upstream that the plan names; it has agreed."""
        self._failure = failure
        self.stream = new_event_stream()
        self._resumption.watch(self.stream)
        self._silent = True
        self.proceed()

    def adopt(self, stream: EventStream, target: Target) -> None:
        """Pass on what comes now: the upstream that answers goes on with the client's stream."""
        self.stream, self._target = stream, target
        self._silent = False

    def proceed(self) -> None:
        """Ask the plan for the target; one that said `Wait` calls this."""
        target = self._owner.plan.next_target()
        if isinstance(target, Target):
            self._target = target
            self._owner.send(target, self)
        elif not isinstance(target, Wait):
            self._end()

    def fail_attempt(self, failure: UpstreamFailure) -> None:
        """Give the present upstream up unless its answer has begun."""
        if self._silent:
            self._owner.cancel()
            self.on_failure(failure)

    def hand_over(self, failure: UpstreamFailure) -> None:
        """Go on elsewhere, unless that is being done; else it stays."""
        if not self._silent:
            self._owner.go_on(failure)

    def usage(self) -> Usage | None:
        """Return what was reported of all of the answer."""
        return self._resumption.counted(self.stream.usage)

    def on_head(self, head: ResponseHead) -> None:
        """Take the head, which the client has from the first upstream, unless it is no stream's."""
        origin, target, asks = self._origin, self._target, self._owner.asks
        if head.status == _OK and head.events:
            if asks is not None:
                asks.watch(self.stream, origin)
            self._owner.plan.on_head(head.status)
            return
        if target is not None and is_unread(head.status, origin, self._resumption, asks):
            self._owner.cancel()
            self._owner.send(target, self)
            return
        text = f"{origin}: answered {head.status} to what a stream goes on with"
        self._owner.cancel()
        self.on_failure(
            UpstreamFailure(
                *("mid_response", "status", text, origin, head.status),
                retry_after_s=retry_after_s(head.headers),
            )
        )

    def on_body(self, data: bytes) -> None:
        """Pass on what the client has not got."""
        stream = self.stream
        events = stream.feed(data)
        if not events:
            return
        self._silent = False
        if stream.errors:
            events = self._pass_error(events)
        if events:
            self._pass(events)
        if self.stream is stream and stream.tokens >= stream.due:
            self.on_due()

    def on_due(self) -> None:
        """Tell the plan of the tokens so far."""
        stream = self.stream
        stream.due = stream.tokens + GROW_TOKENS
        self._owner.plan.on_tokens(stream.tokens)

    def on_last_chunks(self, data: bytes) -> None:
        """Take the last chunks: never called, since `on_chunk` is None."""
        raise AssertionError(data)

    def on_whole(self, head: ResponseHead, body: bytes) -> None:
        """Take an answer that came at once."""
        self.on_head(head)
        if head.status == _OK and head.events:
            self.on_end(body)

    def on_end(self, data: bytes = b"") -> None:
        """Pass the end on, if it is one."""
        stream = self.stream
        if data:
            self.on_body(data)
        if self.stream is not stream or self._owner.exchange.ended:
            return
        rest = stream.flush()
        failure = None
        if stream.errors:
            failure = bad_answer("error", stream.error, self._origin)
        elif not (stream.done or stream.reasoned):
            failure = bad_answer("unfinished", b"", self._origin)
        if failure is not None:
            if not self._owner.go_on(failure):
                self._owner.end_cut(failure, self._worker)
            return
        self._owner.complete(rest)

    def on_failure(self, failure: UpstreamFailure) -> None:
        """Go on at another one, or break off."""
        if not self._owner.go_on(failure):
            self._failure = failure
            self._end()

    def crash(self, error: Exception) -> None:
        """End the exchange for an error of ours."""
        self._owner.exchange.scope.crash(error)

    @property
    def _origin(self) -> str:
        return "" if self._target is None else self._target.origin

    @property
    def _worker(self) -> str:
        return "" if self._target is None else self._target.worker

    def _pass(self, events: bytes) -> None:
        try:
            if new := self._resumption.feed(events):
                self._owner.exchange.write(new)
        except DivergedError as error:
            self._owner.cancel()
            text = f"{self._origin}: {error}"
            self._failure = UpstreamFailure(
                "mid_response", "bad_answer", text, self._origin, sickness="malformed"
            )
            self._end()

    def _pass_error(self, events: bytes) -> bytes:
        """Pass on what came before an engine's error; return what is left to pass: nothing if
        another one goes on.
        """
        failure = bad_answer("error", self.stream.error, self._origin)
        if failure is None:
            return events
        begin = begin_of(events, self.stream.error)
        self._pass(events[:begin])
        return b"" if self._owner.exchange.ended or self._owner.go_on(failure) else events[begin:]

    def _end(self) -> None:
        assert self._failure is not None, "it was cut"
        self._owner.end_cut(self._failure, self._worker)
