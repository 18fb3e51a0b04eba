"""A body of several pieces, or a large one: put together and counted while it arrives."""

from io import BytesIO
from typing import Final

from kvmesh.core.prompts.json_size import JsonSize

CROWDED: Final = 1_000
"""Pieces of one read that take about 1 ms."""


class ArrivingBody:
    """Bytes that grow in one place: joined at the end, 64 MiB would stop the event loop for 30 ms,
    and pieces of one byte would each be an object.
    """

    __slots__ = ("_counted", "_grown", "_only", "_pieces", "_size")

    def __init__(self, piece: bytes) -> None:
        self._only = piece
        self._grown: BytesIO | None = None
        self._size = JsonSize()
        self._counted = 0
        self._pieces = 1

    def add(self, piece: bytes) -> None:
        """Take the next piece. O(bytes)."""
        grown = self._grown
        if grown is None:
            grown = self._grown = BytesIO()
            grown.write(self._only)
            self._only = b""
        grown.write(piece)
        self._pieces += 1

    def count(self) -> JsonSize:
        """Return what the body holds so far; only what is new is looked at."""
        if self._grown is None:
            if not self._counted:
                self._size.feed(self._only)
                self._counted = len(self._only)
            return self._size
        with self._grown.getbuffer() as view:
            if len(view) > self._counted:
                self._size.feed(view[self._counted :])
                self._counted = len(view)
        return self._size

    def crowded(self) -> bool:
        """Return whether more than `CROWDED` pieces came since the last question."""
        pieces, self._pieces = self._pieces, 0
        return pieces > CROWDED

    def take(self) -> bytes:
        """Return the body, without another copy of it: ask for nothing else afterwards."""
        return self._only if self._grown is None else self._grown.getvalue()
