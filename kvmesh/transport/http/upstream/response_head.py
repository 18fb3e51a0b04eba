"""The beginning of a response: its head, and what is kept back of it."""

from typing import Final

from kvmesh._native import Head, Names, render
from kvmesh.transport.http.upstream.passed_headers import (
    NOSNIFF,
    NOT_FOREIGN,
    NOT_PASSED,
    OURS,
    fit_head,
    is_inert,
)
from kvmesh.transport.http.wire.headers import PLAIN_CONNECTION, Header, Headers

_EVENT_STREAM: Final = b"text/event-stream"
_BINARY: Final = (b"application/octet-stream", b"audio/", b"image/", b"multipart/")
_UNBUFFERED: Final[Header] = (b"x-accel-buffering", b"no")
_LAST_LINES: Final = render((NOSNIFF,))
_LAST_OF_EVENTS: Final = render((NOSNIFF, _UNBUFFERED))
_WORKER: Final = b"x-kvmesh-worker"
_TELLING: Final = Names(
    (b"content-type", b"content-length", b"content-encoding", b"connection", _WORKER), b""
)
_ANY_OF_OURS: Final = Names((), OURS)
_LENGTH: Final = Names((b"content-length",), b"")
MAX_KEPT_BYTES: Final = 64 * 1024
"""Of a whole answer; a longer one is passed on from there."""


class ResponseHead:
    """Status and headers (lower-case names), those of one hop included. A `Head` is no list of
    headers before somebody asks.

    `length` is that of the body, None when not told; `events`: the body is an event stream;
    `opaque`: it is compressed, of a kind that nobody looks into, or a router has looked into it.
    One object may stand for responses that differ in their length or date alone: then `headers` do
    not tell it. `all_lines` and `foreign_lines` are what `lines` returns, None before it is asked;
    of nearly every head the one that is needed is made at once.
    """

    __slots__ = (
        "_given", "_head", "_last", "all_lines", "events", "foreign_lines", "length", "opaque",
        "status",
    )  # fmt: skip

    def __init__(self, status: int, headers: Headers | Head) -> None:
        self.status = status
        self._given: Headers | None = None
        if isinstance(headers, Head):
            head = headers
        else:
            head, self._given = Head(headers), headers
        self._head = head
        self.length: int | None = None
        events = opaque = False
        plain, types = True, 0
        for name, value in head.select(_TELLING):
            if name == b"content-type":
                events = value.startswith(_EVENT_STREAM)
                opaque = opaque or value.startswith(_BINARY)
                types += 1
                plain = plain and types == 1 and is_inert(value)
            elif name == b"content-length":
                self.length = int(value)
            elif name == b"content-encoding":
                opaque = opaque or value.lower() != b"identity"
            elif name == b"connection":
                plain = plain and value.lower() in PLAIN_CONNECTION
            else:
                opaque = True
        self.events, self.opaque = events, opaque
        self.all_lines: bytes | None = None
        self.foreign_lines: bytes | None = None
        buffered = events and head.get(_UNBUFFERED[0]) != _UNBUFFERED[1]
        self._last = _LAST_OF_EVENTS if buffered else _LAST_LINES
        if plain:
            self.all_lines = lines = head.render(NOT_PASSED) + self._last
            if not head.has(_ANY_OF_OURS):
                self.foreign_lines = lines

    @property
    def headers(self) -> Headers:
        """Return all headers."""
        given = self._given
        if given is None:
            given = self._given = self._head.headers()
        return given

    @property
    def request_id(self) -> bytes | None:
        """Return what the upstream calls the request, None if it does not say."""
        return self._head.get(b"x-request-id")

    def without_length(self) -> "ResponseHead":
        """Return the head of responses like this one; `length` is set for each."""
        return ResponseHead(self.status, self._head.replaced(_LENGTH, ()))

    def lines(self, *, ours: bool) -> bytes:
        """Return the lines that are passed on, without `ours` all but the x-kvmesh- ones.

        Raises `ValueError` for a header that holds a line break.
        """
        lines = self.all_lines if ours else self.foreign_lines
        if lines is None:
            lines = fit_head(self._head).render(NOT_PASSED if ours else NOT_FOREIGN) + self._last
            if ours:
                self.all_lines = lines
            else:
                self.foreign_lines = lines
        return lines


class HeldAnswer:
    """What came of an answer that is kept back until its end: no client can use less.

    So an upstream that dies before is one more that can be replaced. An event stream is kept back
    by its gate, until its first event is whole.
    """

    __slots__ = ("_pieces", "_size")

    def __init__(self) -> None:
        self._pieces: list[bytes] = []
        self._size = 0

    def take(self, data: bytes) -> bytes:
        """Keep a piece; return all that was kept when it must be passed on now, else nothing."""
        self._pieces.append(data)
        self._size += len(data)
        return self.body() if self._size > MAX_KEPT_BYTES else b""

    def body(self) -> bytes:
        """Return what came of the body."""
        if len(self._pieces) > 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0] if self._pieces else b""
