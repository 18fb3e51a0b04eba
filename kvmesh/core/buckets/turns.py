"""Whose turn it is to begin a conversation."""

from collections.abc import Iterable, Mapping, Sequence
from math import exp2
from typing import Final

from kvmesh.core.cost.selection import next_in_turn

HALF_LIFE_S: Final = 60.0
"""A conversation begun so long ago counts half."""

MOST_AHEAD: Final = 8.0
"""Conversations by which a bucket may be ahead of the one that got fewest, and still be given one
for what it has cached of its beginning.
"""

_TIE: Final = 1e-9


class Turns:
    """Counts the conversations that began in each bucket, decayed, for each unit of its weight.

    With equal weights, and conversations that begin with nothing cached, that is strict rotation.
    However many are given to a bucket for its cache, with equal weights no bucket is ever more
    than `MOST_AHEAD` + 1 ahead of another of the same `weights`.
    """

    def __init__(self) -> None:
        self._counts: dict[str, tuple[float, float]] = {}
        self._last = ""

    def least(self, weights: Mapping[str, float], now: float) -> str:
        """Return the bucket of `weights` (its size, > 0) whose turn it is."""
        return self._first({name: self.share(name, weights, now) for name in weights})

    def at_home(self, homes: Iterable[str], weights: Mapping[str, float], now: float) -> str:
        """Return one of `homes` that is not ahead of its turn, in turn; else as `least`."""
        shares = {name: self.share(name, weights, now) for name in weights}
        found = {name: shares[name] for name in homes if name in shares}
        if found:
            home, least = self._first(found), min(shares.values())
            if (shares[home] - least) * weights[home] <= MOST_AHEAD:
                return home
        return self._first(shares)

    def share(self, name: str, weights: Mapping[str, float], now: float) -> float:
        """Return the conversations of a bucket for each unit of its weight."""
        count, counted_s = self._counts.get(name, (0.0, now))
        return count * exp2(-max(0.0, now - counted_s) / HALF_LIFE_S) / weights[name]

    def take(self, name: str, now: float) -> None:
        """Count a conversation that begins in bucket `name`."""
        self._counts[name] = (self.share(name, {name: 1.0}, now) + 1.0, now)
        self._last = name

    def forget_all_but(self, names: Sequence[str]) -> None:
        """Forget buckets that are gone."""
        self._counts = {name: one for name, one in self._counts.items() if name in names}

    def _first(self, shares: Mapping[str, float]) -> str:
        limit = min(shares.values()) + _TIE
        return next_in_turn(sorted(n for n, one in shares.items() if one <= limit), self._last)
