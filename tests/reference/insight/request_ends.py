"""The naive model of how requests ended: kvmesh/native/insight/ends.c."""

from collections import Counter
from typing import Final, get_args

from kvmesh.transport.http.server.scope import End

CLASSES: Final = 6


class RequestEnds:
    """Counts by end and class of the client's status."""

    def __init__(self) -> None:
        self._counts: Counter[tuple[End, int]] = Counter()

    def add(self, end: End, status: int) -> None:
        if end not in get_args(End):
            raise ValueError(f"{end!r} is no end of a request")
        self._counts[end, min(max(0, status // 100), CLASSES - 1)] += 1

    def counts(self) -> list[tuple[str, int, int]]:
        ends, classes, counts = get_args(End), range(CLASSES), self._counts
        return [(end, number, counts[end, number]) for end in ends for number in classes]
