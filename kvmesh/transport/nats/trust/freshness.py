"""Which messages were taken already: a recorded one that is sent again is refused."""

from collections.abc import Callable
from typing import Final

import msgspec

from kvmesh.transport.nats.trust.seal import STALE_MS, Seal

MOST_SENDERS: Final = 10_000
"""Sessions and subjects remembered for each key; one key may be that of a whole fleet."""

KEEP_MS: Final = 2 * STALE_MS
"""What was taken longer ago was signed so long ago that it is stale by its age."""

Sender = tuple[str, str]
"""Session and subject."""


class _Taken(msgspec.Struct, eq=False):
    """What was taken of one key, the latest arrivals last.

    What is signed before `floor_ms` is refused of senders that are not remembered: some were
    forgotten to make room.
    """

    floor_ms: int = 0
    moments: dict[Sender, tuple[tuple[int, int], int]] = {}


class Freshness:
    """Remembers of each key, session and subject the last moment taken, on one subscription."""

    def __init__(self, most_senders: int = MOST_SENDERS) -> None:
        self._most = most_senders
        self._taken: dict[str, _Taken] = {}

    def __len__(self) -> int:
        """Return how many moments are remembered."""
        return sum(len(one.moments) for one in self._taken.values())

    def is_new(self, seal: Seal, subject: str) -> bool:
        """Return whether it was signed after all that was taken of its sender."""
        taken = self._taken.get(seal.key)
        if taken is None:
            return True
        last = taken.moments.get((seal.session, subject))
        return seal.time_ms > taken.floor_ms if last is None else seal.moment > last[0]

    def take(self, seal: Seal, subject: str, now_ms: int) -> None:
        """Remember a genuine seal of a trusted key. Amortised O(1)."""
        taken = self._taken.setdefault(seal.key, _Taken())
        moments, sender = taken.moments, (seal.session, subject)
        moments.pop(sender, None)
        moments[sender] = (seal.moment, now_ms)
        while True:
            oldest = next(iter(moments))
            moment, at_ms = moments[oldest]
            if len(moments) > self._most:
                taken.floor_ms = max(taken.floor_ms, moment[0])
            elif now_ms - at_ms <= KEEP_MS:
                return
            del moments[oldest]

    def retain(self, is_trusted: Callable[[str], bool]) -> None:
        """Forget the keys that are trusted no more."""
        for key in [key for key in self._taken if not is_trusted(key)]:
            del self._taken[key]
