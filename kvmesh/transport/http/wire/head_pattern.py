"""A head that comes again and again, byte by byte the same but for the length of its body."""

import re
from typing import Final

_LENGTH: Final = re.compile(rb"\r\ncontent-length:[ \t]*([0-9]{1,12})[ \t]*\r\n", re.IGNORECASE)
_HEAD_END: Final = b"\r\n\r\n"
_MAX_HEAD: Final = 4096


class HeadPattern:
    """Knows whole messages with one head; comparing costs 0.3 us where parsing costs 5.

    Only what a parser took without complaint may be learnt: it has made sure that a length occurs
    once at most, and is what it seems.
    """

    __slots__ = ("_before", "_behind")

    def __init__(self, before: bytes, behind: bytes | None) -> None:
        self._before = before
        self._behind = behind

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

    def match(self, data: bytes, max_body: int) -> bytes | None:
        """Return the body if `data` is one whole message with this head, else None."""
        before, behind = self._before, self._behind
        if behind is None:
            return b"" if data == before else None
        if not data.startswith(before):
            return None
        start = len(before)
        end = data.find(b"\r", start, start + 12)
        digits = data[start:end]
        if end < 0 or not digits.isdigit() or not data.startswith(behind, end):
            return None
        body = data[end + len(behind) :]
        return body if len(body) == int(digits) <= max_body else None
