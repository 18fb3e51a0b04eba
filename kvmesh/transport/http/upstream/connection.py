"""One connection to an upstream: a request out, its response's bytes in, how it failed."""

import asyncio
from collections.abc import Callable
from typing import Literal, ParamSpec, Protocol, cast

import structlog

from kvmesh._native import match_head, take_answer
from kvmesh.core.engines.event_stream import DUE, ENDED, TAKEN
from kvmesh.transport.http.upstream.messages import (
    CarriedRequest,
    Deadlines,
    UpstreamFailure,
    UpstreamRequest,
    UpstreamSink,
)
from kvmesh.transport.http.upstream.response_head import ResponseHead
from kvmesh.transport.http.upstream.response_reader import (
    BODY,
    COMPLETE,
    HEAD,
    ResponseReader,
)
from kvmesh.transport.http.wire.deadlines import NEVER, RESTING, DeadlineWheel
from kvmesh.transport.http.wire.headers import HeadPattern
from kvmesh.transport.http.wire.sockets import tune

_JOIN_BELOW = 64 * 1024
MAX_KNOWN_BODY = 64 * 1024
_MOST_HEAD = 16 * 1024
_MOST_HEADERS = 128
OK = 200

P = ParamSpec("P")
KnownAnswer = tuple[HeadPattern, ResponseHead]
"""A head that an origin's responses repeat, and what it says."""


class Home(Protocol):
    """Where a connection belongs."""

    known_answer: KnownAnswer | None

    def whole_answer(self, data: bytes, body: bytes, head: ResponseHead) -> None:
        """Learn of a response that came in one piece, and may be followed by others like it."""
        ...

    def opened(self, connection: "UpstreamConnection") -> None:
        """Learn of a connection."""
        ...

    def released(self, connection: "UpstreamConnection") -> None:
        """Take the connection back for another request."""
        ...

    def lost(self, connection: "UpstreamConnection") -> None:
        """Learn that the connection is no more."""
        ...


class UpstreamConnection(asyncio.Protocol):
    """Carries one request at a time. `served` counts responses; a fresh connection has none."""

    __slots__ = (
        "_attempt", "_bodiless", "_deadlines", "_home", "_origin", "_paused", "_reader",
        "_responded", "_sink", "_state", "_wheel", "deadline_s", "sent_at_s", "served", "spoke",
        "transport",
    )  # fmt: skip

    def __init__(self, home: Home, origin: str, wheel: DeadlineWheel, deadlines: Deadlines) -> None:
        self._home = home
        self._origin = origin
        self._wheel = wheel
        self._deadlines = deadlines
        self._reader = ResponseReader()
        self._attempt: CarriedRequest | None = None
        self._sink: UpstreamSink | None = None
        self._bodiless = False
        self._responded = False
        self._paused = False
        self._state: Literal["new", "unwanted", "open", "lost"] = "new"
        self.served = 0
        self.sent_at_s = 0.0
        self.deadline_s = NEVER
        self.spoke = -1

    def begin(self, attempt: CarriedRequest, request: UpstreamRequest, sink: UpstreamSink) -> None:
        """Send the request; the response goes to `sink`."""
        self._attempt = attempt
        self._sink = sink
        self._responded = False
        if self.spoke <= RESTING:
            self._wheel.wake(self)
        self._bodiless = bodiless = request.method == "HEAD"
        if bodiless or not self._reader.fresh:
            self._reader.begin(expect_body=not bodiless)
        self.sent_at_s = self._wheel.now_s
        self.deadline_s = self.sent_at_s + self._deadlines.first_byte_s
        body = request.body
        if len(body) < _JOIN_BELOW:
            self.transport.write(attempt.head + body)
        else:
            self.transport.write(attempt.head)
            self.transport.write(body)

    def cancel(self, attempt: CarriedRequest) -> None:
        """Close at once: the upstream sees that nobody waits, and stops.

        Does nothing when the connection has gone on to another request.
        """
        if self._attempt is attempt:
            self._attempt = self._sink = None
            self.transport.abort()

    def abandon(self) -> None:
        """Close a connection whose making was given up.

        uvloop may have made it all the same, then closes it without `connection_lost`.
        """
        if self._state == "new":
            self._state = "unwanted"
        elif self._state == "open":
            self.transport.abort()
            self.connection_lost(None)

    def received_s(self) -> float:
        """Return when a byte of the answer under way last came; -inf where none has, or unknown."""
        received_s = self.deadline_s - self._deadlines.idle_s
        answering = self._sink is not None and self._responded
        return received_s if answering and received_s <= self._wheel.now_s else -NEVER

    def pause(self, attempt: CarriedRequest) -> None:
        """Stop reading; TCP holds the upstream back, and its idle deadline is suspended."""
        if self._attempt is attempt and not self._paused and not self.transport.is_closing():
            self._paused = True
            self.deadline_s = NEVER
            self.transport.pause_reading()

    def resume(self, attempt: CarriedRequest) -> None:
        """Read on."""
        if self._attempt is attempt and self._paused:
            self._paused = False
            if not self.transport.is_closing():
                self.deadline_s = self._wheel.now_s + self._deadlines.idle_s
                self.transport.resume_reading()

    def close(self) -> None:
        """Close an idle connection, or fail the request on it."""
        if self._sink is None:
            self.transport.abort()
        else:
            self._fail("reset", "the connection pool was closed")

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self.transport = cast("asyncio.Transport", transport)
        tune(transport.get_extra_info("socket"))
        self._wheel.add(self)
        self._home.opened(self)
        unwanted = self._state == "unwanted"
        self._state = "open"
        if unwanted:
            self.abandon()

    def data_received(self, data: bytes) -> None:
        """Pass on what the bytes hold; 0.5 us beyond the parser's own time."""
        sink = self._sink
        try:
            if sink is None:
                self.transport.abort()
                return
            on_chunk, reader = sink.on_chunk, self._reader
            if on_chunk is not None and reader.between_chunks:
                take, write = on_chunk
                if taken := take(data, reader.unseen):
                    if isinstance(taken, bytes):
                        data = taken  # of a stream that is kept
                    elif taken != TAKEN:  # one chunk in 16
                        self._pass_taken(sink, write, data, taken)
                        return
                    # Writing may pause this connection, which suspends the deadline.
                    self.deadline_s = self._wheel.now_s + self._deadlines.idle_s
                    write(data)
                    return
            if self._responded or not self._take_known(sink, data):
                self._parse(sink, data)
        except Exception as error:  # noqa: BLE001  the request's edge: it is told
            self._crash(sink, error)

    def _pass_taken(
        self,
        sink: UpstreamSink,
        write: Callable[[bytes], None],
        data: bytes,
        taken: int | tuple[int, bytes],
    ) -> None:
        """Pass on chunks that were taken: they have changed, are the last, or tokens are due."""
        if isinstance(taken, tuple):
            taken, data = taken
        if taken < ENDED:
            self.deadline_s = self._wheel.now_s + self._deadlines.idle_s
            write(data)
            if taken & DUE:
                sink.on_due()
            return
        self._reader.take_end()
        if taken & DUE:
            sink.on_due()
        if self._sink is sink:
            self._complete(True, sink.on_last_chunks, data)

    def _parse(self, sink: UpstreamSink, data: bytes) -> None:
        """Pass on what the parser finds."""
        reader = self._reader
        before = reader.stage
        try:
            body = reader.feed(data)
        except ValueError as error:
            self._fail("malformed", str(error))
            return
        after = reader.stage
        if after is HEAD:
            return
        if before is HEAD:
            self._begin_response(sink)
            if self._sink is not sink:
                return
        if after is COMPLETE:
            self._complete(reader.reusable, sink.on_end, body)
            return
        if body:
            sink.on_body(body)
            if self._sink is not sink:
                return
        if (body or before is HEAD) and not self._paused:
            self.deadline_s = self._wheel.now_s + self._deadlines.idle_s

    def _take_known(self, sink: UpstreamSink, data: bytes) -> bool:
        """Pass `data` on unparsed if it is, or begins, a response with a head that is known here or
        is like most: that is read in one compiled pass. Chunks behind it are read as always.
        """
        self._responded = True
        attempt, known = self._attempt, self._home.known_answer
        if attempt is None or self._bodiless:
            return False
        if known is not None:
            pattern, head = known
            body = match_head(data, pattern.before, pattern.behind, MAX_KNOWN_BODY)
            if body is not None:
                attempt.request, attempt.head = None, b""
                head.length = len(body)
                self._complete(True, sink.on_whole, head, body)
                return True
        found = take_answer(data, _MOST_HEAD, _MOST_HEADERS, MAX_KNOWN_BODY)
        if found is None or found[0] != OK:
            return False  # who leaves an answer for its status leaves the connection, too
        attempt.request, attempt.head = None, b""
        status, lines, start, body = found
        head = ResponseHead(status, lines)
        if body is not None:
            head.length = len(body)
            self._home.whole_answer(data, body, head)
            self._complete(True, sink.on_whole, head, body)
            return True
        self._reader.take_head(data[:start], status)
        sink.on_head(head)
        if self._sink is sink:
            if start < len(data):
                self._parse(sink, data[start:])
            elif not self._paused:
                self.deadline_s = self._wheel.now_s + self._deadlines.idle_s
        return True

    def _begin_response(self, sink: UpstreamSink) -> None:
        if self._attempt is not None:
            self._attempt.request, self._attempt.head = None, b""
        reader = self._reader
        headers, reader.headers = reader.headers, []
        sink.on_head(ResponseHead(reader.status, headers))

    def eof_received(self) -> bool:
        """Take the upstream's FIN: the end of a response without a length, else a failure."""
        self._closed(None)
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        """Let go of everything."""
        if self._state == "lost":
            return
        self._state = "lost"
        self._wheel.discard(self)
        self._closed(exc)
        self._home.lost(self)
        self._reader.close()

    def is_idle(self) -> bool:
        """Return whether no request is on it."""
        return self._sink is None

    def on_deadline(self, now: float) -> None:
        """Give up on a silent upstream, or close a connection idle for too long."""
        del now
        if self._sink is None:
            self.transport.abort()
            return
        limit = self._deadlines.idle_s if self._responded else self._deadlines.first_byte_s
        self._fail("timeout", f"nothing received for {limit:g} s")

    def crash(self, error: Exception) -> None:
        """Give the connection up for an error of ours, and tell the request on it."""
        self._crash(self._sink, error)

    def _complete(
        self, reusable: bool, tell: Callable[P, None], /, *reported: P.args, **more: P.kwargs
    ) -> None:
        """Be free for another request, or close, then `tell` the sink."""
        try:
            if self._paused and self._attempt is not None:
                self.resume(self._attempt)
            self._attempt = self._sink = None
            self.served += 1
            transport = self.transport
            if not reusable or transport.get_write_buffer_size() or transport.is_closing():
                transport.abort()
            else:
                self._home.released(self)
        except Exception:
            self.transport.abort()
            raise
        finally:
            tell(*reported, **more)

    def _closed(self, exc: Exception | None) -> None:
        sink = self._sink
        if sink is None:
            return
        try:
            if self._reader.stage is BODY and self._reader.until_close and exc is None:
                self._complete(False, sink.on_end)
            elif self._responded:
                self._fail("truncated", "connection closed in the middle of the response")
            else:
                reason = f": {exc}" if exc else ""
                self._fail("reset", f"connection closed before the response{reason}")
        except Exception as error:  # noqa: BLE001  the request's edge: it is told
            self._crash(sink, error)

    def _crash(self, sink: UpstreamSink | None, error: Exception) -> None:
        """Tell `sink`, and close unless the connection carries another request already."""
        if self._sink is sink:
            self._attempt = self._sink = None
            self.transport.abort()
        if sink is None:
            structlog.get_logger().error("upstream connection crashed", exc_info=error)
        else:
            sink.crash(error)

    def _fail(
        self, kind: Literal["timeout", "reset", "truncated", "malformed"], message: str
    ) -> None:
        attempt = self._attempt
        self._attempt = self._sink = None
        self.transport.abort()
        if attempt is not None:
            stage: Literal["after_send", "mid_response"] = (
                "mid_response" if self._responded else "after_send"
            )
            text = f"{self._origin}: {message}"
            attempt.failed(UpstreamFailure(stage, kind, text, self._origin))
