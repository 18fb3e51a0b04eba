"""Searches the cheapest fleet that holds: few plays, as each takes seconds to minutes."""

from collections.abc import Callable, Sequence
from heapq import heappop, heappush
from typing import Final

from kvmesh_lab.plan.kinds import Kind, Mix, price_of

CLOSE: Final = 2
"""So many fewer than found are tried, too: the share that misses does not fall with each engine."""

LEAST_ALONE: Final = 0.5
"""Engines of which one alone is enough: one of them counts twice."""

MOST_MIXES: Final = 40
"""Mixes that are played at most, beside fleets of one kind …"""

MOST_KNOWN: Final = 200_000
"""… and looked at."""

Holds = Callable[[Mix], bool]


def fewest(holds: Callable[[int], bool], start: int, most: int) -> int | None:
    """Return the least number of engines from 1 to `most` that holds, and of which one more does.

    Doubles or halves from `start`, bisects, and looks at the neighbours: exact where what holds
    goes on to hold with more engines, near it otherwise. None: not even `most` holds.
    """
    low, high = 0, max(1, min(start, most))
    if holds(high):
        while high > 1 and holds(high // 2):
            high //= 2
        low = high // 2
    else:
        while not holds(high):
            if high == most:
                return None
            low, high = high, min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        low, high = (low, middle) if holds(middle) else (middle, high)
    for fewer in range(high - 2, max(0, high - 1 - CLOSE), -1):
        if holds(fewer) and holds(fewer + 1):
            high = fewer
    while high < most and not (holds(high) and holds(high + 1)):
        high += 1
    return high


def cheapest(kinds: Sequence[Kind], holds: Holds, starts: Sequence[int]) -> Mix | None:
    """Return the cheapest fleet that holds; None: none of one kind alone does.

    First each kind alone from `starts` on, then mixes in order of price, up to `MOST_MIXES`, but
    those that are part of one that does not hold and those that are plainly too little.
    """

    def fewest_of(place: int) -> int | None:
        start, most = starts[place], kinds[place].most
        return fewest(lambda count: holds(_only(kinds, place, count)), start, most)

    alone = [fewest_of(place) for place in range(len(kinds))]
    found = [_only(kinds, p, n) for p, n in enumerate(alone) if n is not None]
    if not found:
        return None
    best = min(found, key=lambda mix: (price_of(kinds, mix), sum(mix)))
    return best if len(kinds) == 1 else _mixed(kinds, holds, best, alone)


def _mixed(kinds: Sequence[Kind], holds: Holds, best: Mix, alone: Sequence[int | None]) -> Mix:
    limit, played = price_of(kinds, best), 0
    failed: list[Mix] = []
    nothing = (0,) * len(kinds)
    waiting, known = [(0.0, nothing)], {nothing}
    while waiting and played < MOST_MIXES and len(known) < MOST_KNOWN:
        price, mix = heappop(waiting)
        if price >= limit:
            break
        # Of each kind one engine fewer than `alone` was too little.
        most = sum(
            count / max(LEAST_ALONE, (needed or kind.most + 1) - 1)
            for count, needed, kind in zip(mix, alone, kinds, strict=True)
        )
        several = sum(map(bool, mix)) > 1
        if several and most > 1.0 and not any(_within(mix, one) for one in failed):
            played += 1
            if holds(mix):
                return mix
            failed.append(mix)
        for place, kind in enumerate(kinds):
            more = (*mix[:place], mix[place] + 1, *mix[place + 1 :])
            full = mix[place] >= min(kind.most, alone[place] or kind.most)
            if not full and more not in known and price + kind.price < limit:
                known.add(more)
                heappush(waiting, (price + kind.price, more))
    return best


def _only(kinds: Sequence[Kind], place: int, count: int) -> Mix:
    return tuple(count if one == place else 0 for one in range(len(kinds)))


def _within(mix: Mix, other: Mix) -> bool:
    return all(one <= most for one, most in zip(mix, other, strict=True))
