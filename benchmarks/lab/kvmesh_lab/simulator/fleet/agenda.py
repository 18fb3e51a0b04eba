"""What happens next in virtual time."""

from heapq import heappop, heappush
from math import inf
from typing import Generic, TypeVar

T = TypeVar("T")


class Agenda(Generic[T]):
    """Entries by time, seconds; those of one time in the order in which they were made."""

    __slots__ = ("_entries", "_made")

    def __init__(self) -> None:
        self._entries: list[tuple[float, int, T]] = []
        self._made = 0

    def enter(self, time_s: float, entry: T) -> None:
        """Make an entry. O(log entries)."""
        self._made += 1
        heappush(self._entries, (time_s, self._made, entry))

    def next_s(self) -> float:
        """Return the time of the first entry, `inf` without any."""
        return self._entries[0][0] if self._entries else inf

    def take(self) -> tuple[float, T]:
        """Take the first entry out; return its time with it. Raises `IndexError` without any."""
        time_s, _, entry = heappop(self._entries)
        return time_s, entry
