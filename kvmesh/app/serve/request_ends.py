"""How requests ended, counted by outcome and by the class of what the client got."""

from collections.abc import Iterable
from typing import Final

from kvmesh.transport.http.server.scope import End

_CLASSES: Final = ("none", "1xx", "2xx", "3xx", "4xx", "5xx")

_SHOWN: Final = (
    *(("finished", "2xx"), ("finished", "4xx"), ("finished", "5xx"), ("cut", "2xx")),
    *(("client_gone", "2xx"), ("client_gone", "none"), ("refused", "4xx"), ("refused", "5xx")),
    *(("unserved", "2xx"), ("unserved", "4xx"), ("unserved", "5xx")),
    *(("crashed", "2xx"), ("crashed", "5xx")),
)
"""Shown from the start: a rate does not see the first of a series that was not there before."""


class RequestEnds:
    """Counts ends by (outcome, class of the client's status)."""

    def __init__(self) -> None:
        self._counts: dict[tuple[End, int], int] = {}

    def add(self, end: End, status: int) -> None:
        """Count an end; `status` is what the client got, of three digits, 0 for nothing. 0.2 us."""
        place = end, status // 100
        self._counts[place] = self._counts.get(place, 0) + 1

    def count(self, outcome: str, status: str) -> int:
        """Return how many ended so, with a status of that class."""
        return self._all().get((outcome, status), 0)

    def by_outcome(self) -> dict[str, int]:
        """Return how many ended in each way, whatever their status."""
        found = dict.fromkeys((outcome for outcome, _ in _SHOWN), 0)
        for (outcome, _), count in self._all().items():
            found[outcome] += count
        return found

    def total(self) -> int:
        """Return how many ended."""
        return sum(self._counts.values())

    def items(self) -> Iterable[tuple[tuple[str, str], int]]:
        """Return ((outcome, class), count), sorted: those shown from the start, or that came."""
        return sorted(self._all().items())

    def _all(self) -> dict[tuple[str, str], int]:
        found = dict.fromkeys(_SHOWN, 0)
        for (end, number), count in self._counts.items():
            name = _CLASSES[min(number, len(_CLASSES) - 1)]
            key = "unserved" if end == "failed" else end, name
            found[key] = found.get(key, 0) + count
        return found
