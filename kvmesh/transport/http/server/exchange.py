"""One request and its answer, as the handler sees them."""

import asyncio
from collections.abc import Callable
from enum import Enum
from math import inf
from typing import Final, Protocol

from kvmesh._native import render
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.server.scope import REQUEST_ID, Scope
from kvmesh.transport.http.wire.headers import STATUS_LINES, Headers, HttpDate
from kvmesh.transport.http.wire.problem import Problem

JSON: Final = b"application/json"
SWITCHING: Final = 101
_ANY_ANSWER: Final = b"HTTP/1.1 "
_WITHOUT_BODY: Final = frozenset({204, 304})
_JOIN_BELOW: Final = 64 * 1024


class Channel(Protocol):
    """The connection an exchange answers on."""

    transport: asyncio.Transport
    date: HttpDate
    last: bool
    """No other request is served behind this one."""

    def report(self, error: Exception, request_id: bytes) -> None:
        """Log and count an error of ours."""
        ...

    def reset(self) -> None:
        """Close so that the client gets an error, not an end."""
        ...

    def divert(self, take: Callable[[bytes], object], leave: Callable[[], object]) -> bool:
        """Give all further bytes to `take`; `leave` is called when the server closes."""
        ...

    def answered(self, *, reusable: bool) -> None:
        """Take the connection back: the answer is written, or cut."""
        ...


class Framing(Enum):
    """How the end of the body is told; NONE: not begun."""

    NONE = 0
    CHUNKED = 1
    LENGTH = 2
    UNTIL_CLOSE = 3
    BODILESS = 4
    ENDED = 5


_NONE: Final = Framing.NONE
_CHUNKED: Final = Framing.CHUNKED
_LENGTH: Final = Framing.LENGTH
_UNTIL_CLOSE: Final = Framing.UNTIL_CLOSE
_BODILESS: Final = Framing.BODILESS
_ENDED: Final = Framing.ENDED


class Exchange:
    """One request and the answer to it; all calls are synchronous and none blocks.

    `started`: a status line was written, no other can follow. `chunked`: the body is framed in
    chunks: behind the first piece the transport of the `channel` may be given chunks framed
    already, and `end_framed` the last. `added` are rendered header lines of any answer.

    Either `respond` once, or `start`, any number of `write`, then `end` or `abort`. After a
    disconnect they all do nothing, so that callers need not look.

    Its end, complete, cut or without a reader, is the request's: then its `scope` gives back all
    that the request holds. `on_disconnect` is called once if the client goes away before;
    `on_pause` and `on_resume` when the client reads slower than the answer is written.
    """

    __slots__ = (
        "_begun", "_framing", "_held", "_keep_alive", "_remaining", "added", "channel", "chunked",
        "disconnected", "on_disconnect", "on_pause", "on_resume", "request", "request_id", "scope",
        "started",
    )  # fmt: skip

    def __init__(self, request: Request, channel: Channel, request_id: bytes) -> None:
        self.request = request
        self.request_id = request_id
        self.scope = scope = Scope(request_id, channel.report)
        self.disconnected = self.started = self.chunked = False
        self.on_disconnect: Callable[[], None] | None = None
        self.on_pause: Callable[[], None] | None = None
        self.on_resume: Callable[[], None] | None = None
        self.channel = channel
        self._framing = _NONE
        self._keep_alive = True
        self._remaining = 0
        self._held = self.added = b""
        self._begun = 0
        scope.on_crash = self._report_crash
        scope.last = self._let_go

    @property
    def silent_s(self) -> float:
        """Return that a stream's client is shown comments while its request waits."""
        return inf

    @property
    def ended(self) -> bool:
        """Return whether the answer is complete, cut, or has nobody to read it."""
        return self.disconnected or self._framing is _ENDED

    def rename(self, request_id: bytes | None) -> None:
        """Call the request what an upstream does, if that is an id, before its answer begins."""
        if request_id is not None and REQUEST_ID.fullmatch(request_id):
            scope = self.scope
            self.request_id = scope.request_id = request_id
            if scope.trace is not None:
                scope.trace.request_id = request_id.decode("latin-1")

    def respond(
        self, status: int, body: bytes, *, content_type: bytes = JSON, headers: Headers = ()
    ) -> None:
        """Write a whole answer at once. The request id is added. Raises `RuntimeError` twice."""
        if self.disconnected:
            return
        own = ((b"content-type", content_type), (b"x-request-id", self.request_id))
        head = self._head(
            status, render((*own, *headers) if body else (own[1], *headers)), len(body)
        )
        if self._framing is _BODILESS:
            body = b""
        if len(body) < _JOIN_BELOW:
            self.channel.transport.write(head + body)
        else:
            self.channel.transport.write(head)
            self.channel.transport.write(body)
        self._finish(reusable=True)

    def fail(self, problem: Problem, headers: Headers = ()) -> None:
        """Answer with an error in OpenAI's shape, request id included."""
        body = problem.body(self.request_id.decode("latin-1"))
        self.respond(problem.status, body, headers=(*problem.headers(), *headers))

    def start(self, status: int, headers: Headers, content_length: int | None = None) -> None:
        """Write status and headers; without `content_length` the body is framed as it comes."""
        if not self.disconnected:
            head = self._head(status, render(headers), content_length)
            self.channel.transport.write(head)

    def pass_head(
        self, status: int, lines: bytes, headers: Headers, content_length: int | None
    ) -> None:
        """Begin with header lines that are rendered already, then the request id and `headers`.

        The head leaves with the first `write`, which may be one of nothing: one system call and
        one packet fewer.
        """
        if not self.disconnected:
            # Joined, not formatted: a third of the time.
            block = b"".join((lines, b"x-request-id: ", self.request_id, b"\r\n", render(headers)))
            self._held = self._head(status, block, content_length)

    def switch(self, lines: bytes, headers: Headers) -> None:
        """Answer 101 with rendered lines and `headers`; what is written then goes out as it is."""
        if self.disconnected:
            return
        self.started = True
        self.scope.status = SWITCHING
        self._framing = _UNTIL_CLOSE
        self._keep_alive = False
        head = (STATUS_LINES[SWITCHING], lines, b"x-request-id: ", self.request_id, b"\r\n",
                render(headers), self.added, b"\r\n")  # fmt: skip
        self.channel.transport.write(b"".join(head))

    def pass_whole(self, status: int, lines: bytes, headers: Headers, body: bytes) -> None:
        """Do as `pass_head`, `write` and `end` with a whole body."""
        if self.disconnected:
            return
        block = b"".join((lines, b"x-request-id: ", self.request_id, b"\r\n", render(headers)))
        head = self._head(status, block, len(body))
        self.channel.transport.write(head if self._framing is _BODILESS else head + body)
        self._finish(reusable=True)

    def write(self, data: bytes) -> None:
        """Write a piece of the body. Raises `RuntimeError` before `start` and after the end."""
        if self.disconnected:
            return
        held = self._held
        if held:
            self._held = b""
        framing = self._framing
        if framing is _CHUNKED and data:
            data = b"".join((held, b"%x\r\n" % len(data), data, b"\r\n"))
        elif framing is _LENGTH:
            self._remaining -= len(data)
            if self._remaining < 0:
                raise RuntimeError("body is longer than its content length")
            data = held + data
        elif framing is _BODILESS:
            data = held
        elif framing is _NONE or framing is _ENDED:
            raise RuntimeError(f"write to an answer in state {framing.name}")
        else:
            data = held + data
        if data:
            self.channel.transport.write(data)

    def end_framed(self, data: bytes) -> None:
        """Write what completes the body, framed already, the last chunk included."""
        if not self.disconnected:
            self.channel.transport.write(self._held + data)
            self._held = b""
            self._finish(reusable=True)

    def end(self) -> None:
        """Complete the body; a body shorter than its announced length is cut visibly."""
        if self.disconnected:
            return
        framing = self._framing
        if framing is _NONE or framing is _ENDED:
            raise RuntimeError(f"end of an answer in state {framing.name}")
        if framing is _LENGTH and self._remaining:
            self.abort()
            return
        last = self._held + b"0\r\n\r\n" if framing is _CHUNKED else self._held
        if last:
            self._held = b""
            self.channel.transport.write(last)
        self._finish(reusable=True)

    def abort(self) -> None:
        """Break off so that the client sees it: no last chunk, a short body, or a reset.

        What was written before is still delivered, unless only a reset can tell the client.
        """
        if self.ended:
            return
        if self._held:
            self.channel.transport.write(self._held)
            self._held = b""
        if self._framing is _UNTIL_CLOSE:
            self.channel.reset()
        self._finish(reusable=False)

    def reset(self) -> None:
        """Close with a TCP reset, whatever was answered so far."""
        if not self.ended:
            self.channel.reset()
            self._finish(reusable=False)

    def break_off(self, data: bytes) -> None:
        """Write `data` as it is, HTTP or not, and close."""
        if not self.ended:
            self.channel.transport.write(data)
            self._finish(reusable=False)

    def reach_out(self) -> None:
        """Write what comes next in any case, if anything does, so that a client that is gone shows.

        That is the answer's first bytes, a head that waits, or a zero in front of the size of the
        next chunk. Call it once at most.
        """
        ahead = self._held
        if ahead:
            self._held = b""
        elif self._framing is _NONE:
            ahead = _ANY_ANSWER
            self._begun = len(ahead)
        elif self._framing is _CHUNKED:
            ahead = b"0"
        if ahead and not self.disconnected:
            self.channel.transport.write(ahead)

    def lost(self) -> None:
        """Learn from the connection that the client is gone; tells the handler once."""
        if self.ended:
            return
        self.disconnected = True
        scope, callback = self.scope, self.on_disconnect
        scope.kind = "client_gone"
        self.on_disconnect = self.on_pause = self.on_resume = None
        if callback is not None:
            scope.enter(callback)
        scope.end()

    def _head(self, status: int, block: bytes, length: int | None) -> bytes:
        if self._framing is not _NONE:
            raise RuntimeError(f"second answer ({status}) to one request")
        request = self.request
        self.started = True
        self.scope.status = status
        channel = self.channel
        self._keep_alive = keep_alive = request.keep_alive and not channel.last
        lines = channel.date.line
        if status in _WITHOUT_BODY:
            self._framing = _BODILESS
        elif length is not None:
            self._framing = _LENGTH
            self._remaining = length
            lines = b"content-length: %d\r\n%b" % (length, lines)
        elif request.http_1_0:
            self._framing = _UNTIL_CLOSE
            self._keep_alive = keep_alive = False
        else:
            self._framing = _CHUNKED
            lines = b"transfer-encoding: chunked\r\n" + lines
        if request.method == "HEAD":
            self._framing = _BODILESS
        self.chunked = self._framing is _CHUNKED
        if not keep_alive:
            lines = b"connection: close\r\n" + lines
        elif request.http_1_0:
            lines = b"connection: keep-alive\r\n" + lines
        head = b"".join((STATUS_LINES[status], block, self.added, lines, b"\r\n"))
        return head[self._begun :] if self._begun else head

    def _finish(self, *, reusable: bool) -> None:
        self._framing = _ENDED
        self.on_disconnect = self.on_pause = self.on_resume = None
        channel = self.channel
        if self.request.budget is None:
            self.scope.last = None  # nothing is left to let go of
        try:
            channel.answered(reusable=reusable and self._keep_alive)
        except Exception:
            channel.transport.abort()
            raise
        finally:
            self.scope.end()

    def _report_crash(self, problem: Problem) -> None:
        """Answer with `problem`, or break off what was begun."""
        if self._framing is _NONE:
            self.fail(problem)
        else:
            self.abort()

    def _let_go(self) -> None:
        """Leave nobody waiting, and give the body's bytes back: the last that a request holds."""
        request = self.request
        try:
            if not (self.disconnected or self._framing is _ENDED):
                self.abort()
        finally:
            if request.budget is not None:
                request.uncharge()
