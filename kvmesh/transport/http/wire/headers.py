"""Header blocks: what a proxy must drop, status lines, and heads that come again and again."""

import re
import time
from collections.abc import Sequence
from email.utils import formatdate, parsedate_to_datetime
from http import HTTPStatus
from typing import Final

from kvmesh.bounds import MAX_SECONDS

Header = tuple[bytes, bytes]
"""Lower-case name, value."""
Headers = Sequence[Header]

_MAX_DIGITS: Final = 9
_LONGEST_DATE: Final = 64
_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,12})[ \t]*\r\n", re.IGNORECASE)
_HEAD_END: Final = b"\r\n\r\n"
_MAX_HEAD: Final = 4096
MAX_FRAMING_BYTES: Final = 16 * 1024
"""What may come of a body's framing (size lines, extensions, trailers) without any content."""
EAGER_HEAD_BYTES: Final = 4096
"""Beyond so many bytes of a head its parser is given whole lines: it copies a line that it has the
beginning of with each piece.
"""

HOP_BY_HOP: Final = frozenset(
    {
        b"connection",
        b"keep-alive",
        b"proxy-authenticate",
        b"proxy-authorization",
        b"proxy-connection",
        b"te",
        b"trailer",
        b"transfer-encoding",
        b"upgrade",
        b"http2-settings",
    }
)
"""Headers of one hop, never forwarded. Source: RFC 9110, 7.6.1; RFC 9113, 8.2.2."""

PLAIN_CONNECTION: Final = frozenset({b"keep-alive", b"close"})
"""Connection headers, in lower case, that name no other header."""

_REASONS: Final = {int(status): status.phrase.encode() for status in HTTPStatus}
STATUS_LINES: Final = {
    status: b"HTTP/1.1 %d %b\r\n" % (status, _REASONS.get(status, b""))
    for status in range(100, 1000)
}
"""CRLF included; codes that are not registered have an empty reason."""


def retry_after_s(headers: Headers) -> float:
    """Return the seconds that Retry-After asks for, a date's included; 0 without, or past, any."""
    for name, value in headers:
        if name == b"retry-after":
            if value.isdigit():
                return min(float(value[:_MAX_DIGITS]), MAX_SECONDS)
            try:
                until_s = parsedate_to_datetime(value[:_LONGEST_DATE].decode("latin-1")).timestamp()
            except (ValueError, OverflowError, TypeError):
                return 0.0
            return min(max(0.0, until_s - time.time()), MAX_SECONDS)
    return 0.0


def connection_options(headers: Headers) -> frozenset[bytes]:
    """Return the header names that Connection headers declare as of this hop only."""
    return frozenset(
        option.strip().lower()
        for name, value in headers
        if name == b"connection"
        for option in value.split(b",")
    )


def end_to_end(headers: Headers, also_drop: frozenset[bytes]) -> list[Header]:
    """Return `headers` without those of one hop and without `also_drop`."""
    drop = also_drop
    for name, value in headers:
        if name == b"connection" and value.lower() not in PLAIN_CONNECTION:
            drop = also_drop | connection_options(headers)
            break
    return [header for header in headers if header[0] not in drop and header[0] not in HOP_BY_HOP]


def whole_lines(held: bytearray | None, data: bytes) -> tuple[bytearray | None, bytes]:
    """Return what is held of a long head, and what its parser is given: nothing before a line that
    is `held` has ended. See `EAGER_HEAD_BYTES`.
    """
    line = held or bytearray()
    line += data
    return (None, bytes(line)) if b"\n" in data else (line, b"")


class HttpDate:
    """The Date header line, made once a second."""

    __slots__ = ("_second", "line")

    def __init__(self) -> None:
        self._second = -1
        self.line = b""
        self.refresh()

    def refresh(self) -> None:
        """Bring `line` up to the wall clock."""
        second = int(time.time())
        if second != self._second:
            self._second = second
            self.line = b"date: %b\r\n" % formatdate(second, usegmt=True).encode()


class HeadPattern:
    """A head that comes again and again, byte by byte the same but for the length of its body.

    `_native.match_head` knows whole messages by it: comparing costs 0.1 us where parsing costs 5.

    Only what a parser took without complaint may be learnt: it has made sure that a length occurs
    once at most, and is what it seems.
    """

    __slots__ = ("before", "behind")

    def __init__(self, before: bytes, behind: bytes | None) -> None:
        self.before = before
        self.behind = behind

    @classmethod
    def learn(cls, data: bytes, body: bytes) -> "HeadPattern | None":
        """Return the pattern of `data`, which is one message with just `body`; None if unfit."""
        end = data.find(_HEAD_END, 0, _MAX_HEAD) + len(_HEAD_END)
        if end < len(_HEAD_END) or len(data) != end + len(body):
            return None
        length = _LENGTH.search(data, 0, end)
        if length is not None:
            return cls(data[: length.start(1)], data[length.end(1) : end])
        return None if body else cls(data, None)
