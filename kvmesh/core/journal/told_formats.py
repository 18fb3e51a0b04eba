"""The journal format that replicas told a worker to write."""

from typing import Final

KEEP_S: Final = 30.0
"""What a replica told counts for so long: one that is gone tells nothing else."""

MOST: Final = 1024
"""Replicas whose word is kept: the latest."""


class ToldFormats:
    """The lowest that a replica told lately counts: two that hear different readers cannot make a
    worker change its format with each command.
    """

    def __init__(self, oldest: int, newest: int) -> None:
        self._oldest = oldest
        self._newest = newest
        self._told: dict[str, tuple[int, float]] = {}

    def take(self, router: str, number: int, now: float) -> int:
        """Take the command of `router` to write format `number`; return what to write now."""
        self._told.pop(router, None)
        late = [one for one, (_, told_s) in self._told.items() if now >= told_s + KEEP_S]
        if not late and len(self._told) >= MOST:
            late = [next(iter(self._told))]
        for one in late:
            del self._told[one]
        self._told[router] = (number, now)
        lowest = min(told for told, _ in self._told.values())
        return min(max(lowest, self._oldest), self._newest)
