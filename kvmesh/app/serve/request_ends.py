"""How requests ended, counted by outcome and by the class of what the client got."""

from collections import Counter
from collections.abc import Iterable
from typing import Final, cast

from kvmesh.compiled import NATIVE
from kvmesh.transport.http.server.scope import End

_ENDS: Final[tuple[End, ...]] = ("finished", "client_gone", "failed", "cut", "refused", "crashed")
_CLASSES: Final = ("none", "1xx", "2xx", "3xx", "4xx", "5xx")

_SHOWN: Final = (
    *(("finished", "2xx"), ("finished", "4xx"), ("finished", "5xx"), ("cut", "2xx")),
    *(("client_gone", "2xx"), ("client_gone", "none"), ("refused", "4xx"), ("refused", "5xx")),
    *(("unserved", "2xx"), ("unserved", "4xx"), ("unserved", "5xx")),
    *(("crashed", "2xx"), ("crashed", "5xx")),
)
"""Shown from the start: a rate does not see the first of a series that was not there before."""


class EndCounts:
    """Counts by end and class of the client's status; kvmesh/native/ends.c does the same."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[End, int]] = Counter()

    def add(self, end: End, status: int, /) -> None:
        """Count an end; `status` is what the client got, 0 for nothing. Raises `ValueError`."""
        if end not in _ENDS:
            raise ValueError(f"{end!r} is no end of a request")
        self._counts[end, min(max(0, status // 100), len(_CLASSES) - 1)] += 1

    def counts(self) -> list[tuple[str, int, int]]:
        """Return (end, class of the status, how many) of every pair."""
        classes, counts = range(len(_CLASSES)), self._counts
        return [(end, number, counts[end, number]) for end in _ENDS for number in classes]


class RequestEnds:
    """Counts ends by (outcome, class of the client's status)."""

    def __init__(self) -> None:
        self._counts = cast("EndCounts", NATIVE.RequestEnds()) if NATIVE else EndCounts()
        self.add = self._counts.add

    def count(self, outcome: str, status: str) -> int:
        """Return how many ended so, with a status of that class."""
        return self._all().get((outcome, status), 0)

    def by_outcome(self) -> dict[str, int]:
        """Return how many ended in each way, whatever their status."""
        found = dict.fromkeys((outcome for outcome, _ in _SHOWN), 0)
        for (outcome, _), count in self._all().items():
            found[outcome] += count
        return found

    def items(self) -> Iterable[tuple[tuple[str, str], int]]:
        """Return ((outcome, class), count), sorted: those shown from the start, or that came."""
        return sorted(self._all().items())

    def _all(self) -> dict[tuple[str, str], int]:
        found = dict.fromkeys(_SHOWN, 0)
        for end, number, count in self._counts.counts():
            if count:
                found["unserved" if end == "failed" else end, _CLASSES[number]] = count
        return found
