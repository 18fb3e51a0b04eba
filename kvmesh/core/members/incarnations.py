"""Which incarnation of each worker's sidecar is followed, whatever the clocks say."""

from collections import deque
from typing import Final

MOST_FORMER: Final = 8
"""Incarnations of one worker that are remembered as former ones."""


class Incarnations:
    """Tells a new incarnation with a low epoch from a former one that still speaks.

    A sidecar draws a random mark when it starts; 0 is that of versions without marks. Its epoch is
    a guess: one that is not above the epoch known so far has to be raised, and it is the routers
    who know that one. A mark that was followed before is former for good, so two sidecars of one
    name cannot outbid each other without end. One row a worker until `forget`.
    """

    def __init__(self) -> None:
        self._followed: dict[str, int] = {}
        self._former: dict[str, deque[int]] = {}

    def to_pass(self, worker: str, mark: int, epoch: int, known: int | None) -> int | None:
        """Return the epoch that this incarnation has to be raised above; None: none.

        `known` is the worker's epoch so far, None for an unknown worker. O(1).
        """
        if not mark:
            return None
        followed = self._followed.get(worker, 0)
        if known is None or epoch > known or (epoch == known and not followed):
            self._follow(worker, mark)
            return None
        if mark == followed or mark in self._former.get(worker, ()):
            return None
        # With the epoch that is known it would not see that it has to go on: name one above.
        return known + (epoch == known)

    def forget(self, worker: str) -> None:
        """Drop what is known of a worker that is gone."""
        self._followed.pop(worker, None)
        self._former.pop(worker, None)

    def _follow(self, worker: str, mark: int) -> None:
        before = self._followed.get(worker, mark)
        self._followed[worker] = mark
        if before != mark:
            self._former.setdefault(worker, deque(maxlen=MOST_FORMER)).append(before)
