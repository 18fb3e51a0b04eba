"""Whose turn it is to begin a conversation."""

from collections.abc import Collection, Iterable, Mapping
from math import exp2
from typing import Final

from kvmesh.core.cost.selection import next_in_turn

HALF_LIFE_S: Final = 60.0
"""A conversation begun so long ago counts half."""

MOST_AHEAD: Final = 8.0
"""Conversations by which a bucket may be ahead of the one that got fewest, and still be given one
for what it has cached of its beginning.
"""


class Turns:
    """Conversations that begin take turns; those with something cached may go where that is.

    The latter are counted with the others, decayed, for each unit of a bucket's weight. However
    many ask for one bucket, it is ahead of another by `MOST_AHEAD` + 2 at most, while both could
    have taken all of them and weigh the same.
    """

    def __init__(self) -> None:
        self._counts: dict[str, tuple[float, float]] = {}
        self._last = ""

    def choose(self, homes: Iterable[str], weights: Mapping[str, float], now: float) -> str:
        """Return the bucket, of those in `weights` (> 0), for a conversation whose beginning is
        cached in `homes`: one of these, that with the fewest, unless it is ahead of its turn; then
        the one with the fewest of all. Without homes strictly the next.
        """
        at_home = [name for name in homes if name in weights]
        if not at_home:
            return next_in_turn(sorted(weights), self._last)
        shares = {name: self._count(name, now) / weight for name, weight in weights.items()}
        found = {name: shares[name] for name in at_home}
        home, fewest = _fewest(found), _fewest(shares)
        ahead = (shares[home] - shares[fewest]) * weights[home]
        return home if ahead <= MOST_AHEAD else fewest

    def not_ahead(self, weights: Mapping[str, float], now: float) -> list[str]:
        """Return those of `weights` that are not ahead of their turn, at least one."""
        shares = {name: self._count(name, now) / weight for name, weight in weights.items()}
        least = min(shares.values())
        return [name for name in weights if (shares[name] - least) * weights[name] <= MOST_AHEAD]

    def take(self, name: str, now: float, *, in_turn: bool) -> None:
        """Count a conversation that begins in bucket `name`; `in_turn`: it had no home."""
        self._counts[name] = (self._count(name, now) + 1.0, now)
        if in_turn:
            self._last = name

    def forget_all_but(self, names: Collection[str]) -> None:
        """Forget buckets that are gone."""
        self._counts = {name: one for name, one in self._counts.items() if name in names}

    def _count(self, name: str, now: float) -> float:
        count, counted_s = self._counts.get(name, (0.0, now))
        return count * exp2(-max(0.0, now - counted_s) / HALF_LIFE_S)


def _fewest(shares: Mapping[str, float]) -> str:
    return min(sorted(shares), key=shares.__getitem__)
