"""How soon a prompt is asked for again, learned from those that were."""

from collections.abc import Iterable
from math import exp
from typing import Final

EDGES_S: Final = (0.0, *(2.0**power for power in range(13)))
"""Ages at which buckets of them begin, s; the last one has no end."""

MOST_SAMPLES: Final = 4096.0
"""Prompts of a class up to which all count alike; then older ones count half."""

_LIMITS: Final = (1, 2, 4, 8)
_PRIOR: Final = 1.0 / 3600.0
_PRIOR_S: Final = 300.0
_WHOLE: Final = 1.0


class Outlook:
    """The rates at which prompts come again, by `Returns`, at one time."""

    def __init__(self, rates: list[list[float]]) -> None:
        self._rates = rates

    def rate(self, turns: int, age_s: float, within_s: float) -> float:
        """Return the chance that a prompt of so many turns, unused for `age_s`, is asked for again
        within `within_s`, a second. O(buckets).
        """
        rates, end_s, expected = self._rates[_class_of(turns)], age_s + within_s, 0.0
        for place, begin_s in enumerate(EDGES_S):
            if begin_s >= end_s:
                break
            until_s = EDGES_S[place + 1] if place + 1 < len(EDGES_S) else end_s
            expected += rates[place] * max(0.0, min(end_s, until_s) - max(age_s, begin_s))
        return (_WHOLE - exp(-expected)) / within_s


class Returns:
    """Counts returns and the time waited for them, by number of turns and by age. Where little has
    been seen of a number of turns, that of all of them counts.
    """

    def __init__(self) -> None:
        classes = len(_LIMITS) + 1
        self._returns = [[0.0] * len(EDGES_S) for _ in range(classes)]
        self._waited_s = [[0.0] * len(EDGES_S) for _ in range(classes)]
        self._samples = [0.0] * classes

    def returned(self, turns: int, age_s: float) -> None:
        """Note that a prompt that had been asked for `turns` times was again, after `age_s`."""
        self.gone(turns, age_s)
        place = sum(edge <= age_s for edge in EDGES_S) - 1
        self._returns[_class_of(turns)][max(0, place)] += 1.0

    def gone(self, turns: int, age_s: float) -> None:
        """Note that one was not asked for again in `age_s`, and is no longer followed."""
        which = _class_of(turns)
        _wait(self._waited_s[which], age_s)
        self._samples[which] += 1.0
        if self._samples[which] >= MOST_SAMPLES:
            self._samples[which] /= 2.0
            for counts in (self._returns[which], self._waited_s[which]):
                counts[:] = [one / 2.0 for one in counts]

    def outlook(self, waiting: Iterable[tuple[int, float]]) -> Outlook:
        """Return what is expected now of those `waiting`: turns and age of each. O(waiting)."""
        waited = [list(one) for one in self._waited_s]
        for turns, age_s in waiting:
            _wait(waited[_class_of(turns)], age_s)
        together = [
            (sum(ns) + _PRIOR * _PRIOR_S) / (sum(ss) + _PRIOR_S)
            for ns, ss in zip(
                zip(*self._returns, strict=True), zip(*waited, strict=True), strict=True
            )
        ]
        return Outlook(
            [
                [
                    (n + all_of * _PRIOR_S) / (s + _PRIOR_S)
                    for n, s, all_of in zip(ns, ss, together, strict=True)
                ]
                for ns, ss in zip(self._returns, waited, strict=True)
            ]
        )


def _wait(waited_s: list[float], age_s: float) -> None:
    for place, begin_s in enumerate(EDGES_S):
        if begin_s >= age_s:
            break
        until_s = EDGES_S[place + 1] if place + 1 < len(EDGES_S) else age_s
        waited_s[place] += min(age_s, until_s) - begin_s


def _class_of(turns: int) -> int:
    return sum(turns > limit for limit in _LIMITS)
