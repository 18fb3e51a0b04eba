"""The beginning of a response: its head, heads that come again, and what is kept back of it."""

import re
from typing import Final

from kvmesh._native import render
from kvmesh.transport.http.upstream.passed_headers import passed_headers
from kvmesh.transport.http.wire.headers import Header, Headers

_EVENT_STREAM: Final = b"text/event-stream"
_BINARY: Final = (b"application/octet-stream", b"audio/", b"image/", b"multipart/")
_UNBUFFERED: Final[Header] = (b"x-accel-buffering", b"no")
MAX_KEPT_BYTES: Final = 64 * 1024
"""Of a whole answer; a longer one is passed on from there."""
_DATE_LINE: Final = re.compile(
    rb"\r\ndate: ([a-z]{3}, [0-9]{2} [a-z]{3} [0-9]{4} [0-9]{2}:[0-9]{2}:[0-9]{2} GMT)\r\n",
    re.IGNORECASE,
)


class ResponseHead:
    """Status and headers (lower-case names), those of one hop included.

    `length` is that of the body, None when not told; `events`: the body is an event stream;
    `opaque`: it is compressed, of a kind that nobody looks into, or a router has looked into it.
    One object may stand for responses that differ in their length or date alone: then `headers` do
    not tell it, and what is made of them is made once: `all_lines` and `foreign_lines` are what
    `lines` returned.
    """

    __slots__ = ("all_lines", "events", "foreign_lines", "headers", "length", "opaque", "status")

    def __init__(self, status: int, headers: Headers) -> None:
        self.status = status
        self.headers = headers
        self.length: int | None = None
        self.events = self.opaque = False
        for name, value in headers:
            if name == b"content-length":
                self.length = int(value)
            elif name == b"content-type":
                self.events = value.startswith(_EVENT_STREAM)
                self.opaque = self.opaque or value.startswith(_BINARY)
            elif name == b"content-encoding":
                self.opaque = self.opaque or value.lower() != b"identity"
            elif name == b"x-kvmesh-worker":
                self.opaque = True
        self.all_lines: bytes | None = None
        self.foreign_lines: bytes | None = None

    def without_length(self) -> "ResponseHead":
        """Return the head of responses like this one; `length` is set for each."""
        return ResponseHead(
            self.status, [header for header in self.headers if header[0] != b"content-length"]
        )

    def lines(self, *, ours: bool) -> bytes:
        """Return the lines that are passed on, without `ours` all but the x-kvmesh- ones.

        Raises `ValueError` for a header that holds a line break.
        """
        lines = self.all_lines if ours else self.foreign_lines
        if lines is None:
            kept = passed_headers(self.headers, ours=ours)
            if self.events and _UNBUFFERED not in kept:
                kept.append(_UNBUFFERED)
            lines = render(kept)
            if ours:
                self.all_lines = lines
            else:
                self.foreign_lines = lines
        return lines


class StreamHead:
    """The head of chunked answers, byte by byte the same but for the date, which is not passed on.

    `_native.match_dated` finds it in 0.1 us where parsing costs 5. Only what the parser took may be
    learnt.
    """

    __slots__ = ("after", "before", "head")

    def __init__(self, data: bytes, head: ResponseHead) -> None:
        date = _DATE_LINE.search(data)
        headers = [header for header in head.headers if header[0] != b"date"]
        self.before = data[: date.start(1)] if date is not None else data
        self.after = data[date.end(1) :] if date is not None else b""
        self.head = ResponseHead(head.status, headers)


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
