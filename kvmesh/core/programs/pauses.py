"""When an agent's next turn will come, learned from the pauses of agents like it."""

from bisect import bisect_left, bisect_right
from collections.abc import Iterable
from itertools import accumulate, pairwise
from math import erf, exp, log, sqrt
from typing import Final, NamedTuple

from kvmesh.core.programs.turn import Client, Stop

LEAST_S: Final = 0.05
MOST_S: Final = 1e6
"""Shorter and longer pauses count as these: 11 days."""

_PER_DECADE: Final = 8
_STEP: Final = log(10.0) / _PER_DECADE
_BUCKETS: Final = int(log(MOST_S / LEAST_S) / _STEP) + 1
_EDGES: Final = tuple(LEAST_S * exp(_STEP * at) for at in range(_BUCKETS + 1))

_P90: Final = 1.2815515655446004
"""The normal distribution's 90th percentile, in standard deviations."""

PUBLISHED_S: Final[dict[Stop, tuple[float, float]]] = {
    "tool": (9.0, 70.0),
    "end": (218.0, 3785.0),
    "length": (10.0, 162.0),
    "": (10.0, 162.0),
}
"""Median and 90th percentile of 49,334 pauses of Claude Code sessions, s, after a tool call, after
the end of an answer, after any. Source: kv-cache-tester (Fox, 2026).
"""


class Pause(NamedTuple):
    """The time still to come until the next turn, if one comes: its median and 90th percentile, s;
    `samples` of agents like it have been seen, as far as they still count.
    """

    p50_s: float
    p90_s: float
    samples: int


class PauseOptions(NamedTuple):
    """A pause counts half after `half_life_s`, and no distribution weighs more than `most_samples`
    pauses. One of few samples is drawn towards that of more agents, by the weight of `pull` of
    theirs. At most `max_tools` tools are told apart: a newcomer takes the place of the one that
    weighs least, of those below one sample or, when there is none, the lightest below two.
    """

    half_life_s: float = 86_400.0
    most_samples: float = 4096.0
    pull: float = 16.0
    max_tools: int = 256


class _Histogram:
    """Pauses in buckets of equal width on a logarithmic scale; old ones weigh less."""

    __slots__ = ("at_s", "counts", "learned", "weight")

    def __init__(self, now: float) -> None:
        self.counts = [0.0] * _BUCKETS
        self.weight = 0.0
        self.learned = 0
        self.at_s = now

    def age(self, now: float, options: PauseOptions) -> None:
        """Have what was learned weigh less: by its age, and no more than the most samples."""
        age_s = max(0.0, now - self.at_s)
        most = options.most_samples / (self.weight + 1.0)
        kept = min(0.5 ** (age_s / options.half_life_s), most)
        self.counts = [kept * one for one in self.counts]
        self.weight *= kept
        self.at_s = now


_FEW: Final = 0.0015
"""Samples are aged after so many half-lives: that changes them by a thousandth."""

_BEYOND: Final = 1.02
"""A distribution may weigh so many times the most samples before all of it is made to weigh less:
that takes as long as to learn 40.
"""

_Key = tuple[Client, Stop, str]


class _Curve(NamedTuple):
    """`over[i]`: the share of pauses that are over by `_EDGES[i]`; made when `learned` were."""

    over: tuple[float, ...]
    learned: int
    samples: float


class PauseModel:
    """Distributions by stop reason, by client kind and stop reason, and by tool besides; each is
    drawn towards the wider one, the widest towards the published figures.

    `learn` takes 2 us, `expect` 3 us, and 17 us where a hundredth of the samples is new.
    """

    def __init__(self, options: PauseOptions = PauseOptions()) -> None:  # noqa: B008  immutable
        self.options = options
        self._stops: dict[Stop, _Histogram] = {}
        self._clients: dict[tuple[Client, Stop], _Histogram] = {}
        self._tools: dict[_Key, _Histogram] = {}
        self._curves: dict[_Key, _Curve] = {}
        self._histograms: dict[_Key, tuple[_Histogram, ...]] = {}
        self._full = options.most_samples * _BEYOND
        self._few_s = _FEW * options.half_life_s

    def learn(self, client: Client, stop: Stop, tool: str, pause_s: float, now: float) -> None:
        """Take the pause between the end of a turn and the next turn of its agent. What is no
        number of seconds counts for nothing.
        """
        if not pause_s >= 0.0:
            return
        bucket = bisect_right(_EDGES, pause_s, 1, _BUCKETS) - 1  # as `_bucket`, without a call
        found = self._histograms.get((client, stop, tool))
        if found is None:
            found = self._find((client, stop, tool), now)
        for one in found:
            if one.weight >= self._full or now - one.at_s >= self._few_s:
                one.age(now, self.options)
            one.counts[bucket] += 1.0
            one.weight += 1.0
            one.learned += 1

    def expect(self, client: Client, stop: Stop, tool: str, elapsed_s: float) -> Pause:
        """Return how long the next turn takes to come, which has not come in `elapsed_s`."""
        over, _, samples = self._curve(client, stop, tool)
        elapsed_s = min(max(0.0, elapsed_s), MOST_S)
        left = _left(over, elapsed_s)
        p50_s = max(0.0, _time(over, 1.0 - 0.5 * left) - elapsed_s)
        return Pause(p50_s, max(p50_s, _time(over, 1.0 - 0.1 * left) - elapsed_s), round(samples))

    def __len__(self) -> int:
        """Return how many tools are told apart."""
        return len(self._tools)

    def _find(self, key: _Key, now: float) -> tuple[_Histogram, ...]:
        """Return the distributions that a pause belongs to, the widest first."""
        client, stop, tool = key
        all_of = self._stops.get(stop)
        if all_of is None:
            all_of = self._stops[stop] = _Histogram(now)
        own = self._clients.get((client, stop))
        if own is None:
            own = self._clients[client, stop] = _Histogram(now)
        if tool and not self._has_place():
            return all_of, own
        found: tuple[_Histogram, ...] = (all_of, own)
        if tool:
            self._tools[key] = narrowest = _Histogram(now)
            self._curves.pop(key, None)
            found = (all_of, own, narrowest)
        self._histograms[key] = found
        return found

    def _has_place(self) -> bool:
        """Return whether one more tool may be told apart; the lightest makes room."""
        if len(self._tools) >= self.options.max_tools:
            lightest = min(self._tools, key=lambda one: (self._tools[one].weight, one))
            if self._tools[lightest].weight >= _HEAVY:
                return False
            del self._tools[lightest], self._histograms[lightest]
            self._curves.pop(lightest, None)
        return True

    def _curve(self, client: Client, stop: Stop, tool: str) -> _Curve:
        key = (client, stop, tool if (client, stop, tool) in self._tools else "")
        known = self._curves.get(key)
        widest = self._stops.get(stop)
        learned = 0 if widest is None else widest.learned
        if known is not None and (learned - known.learned) * _FRESH <= known.learned:
            return known
        narrow = (widest, self._clients.get((client, stop)), self._tools.get(key))
        found = [one for one in narrow if one is not None]
        samples = found[-1].weight if found else 0.0
        curve = _Curve(_blend(PRIORS[stop], found, self.options.pull), learned, samples)
        self._curves[key] = curve
        return curve


_HEAVY: Final = 2.0
_FRESH: Final = 100
"""A curve is made anew when a hundredth of what it was made of is new."""


def _bucket(pause_s: float) -> int:
    return bisect_right(_EDGES, pause_s, 1, _BUCKETS) - 1


def _blend(
    prior: tuple[float, ...], narrower: Iterable[_Histogram], pull: float
) -> tuple[float, ...]:
    """Return the distribution at each edge of the narrowest histogram, drawn towards the wider."""
    shares = list(prior)
    for one in narrower:
        whole = one.weight + pull
        shares = [
            (count + pull * share) / whole for count, share in zip(one.counts, shares, strict=True)
        ]
    return (0.0, *accumulate(shares[:-1]), 1.0)


def _left(over: tuple[float, ...], time_s: float) -> float:
    """Return the share of pauses longer than `time_s`, at most `MOST_S`; never quite 0."""
    at = _bucket(time_s)
    inside = min(max(0.0, log(max(time_s, LEAST_S) / _EDGES[at]) / _STEP), 1.0)
    return max(1.0 - over[at] - inside * (over[at + 1] - over[at]), _NEVER)


_NEVER: Final = 1e-9


def _time(over: tuple[float, ...], share: float) -> float:
    """Return by when that share of pauses is over."""
    high = min(max(1, bisect_left(over, share)), _BUCKETS)
    low = high - 1
    width = over[high] - over[low]
    inside = min(max(0.0, (share - over[low]) / width), 1.0) if width > 0.0 else 1.0
    return _EDGES[low] * exp(_STEP * inside)


def _log_normal(p50_s: float, p90_s: float) -> tuple[float, ...]:
    """Return the share of each bucket of the log-normal distribution with these percentiles."""
    width = log(p90_s / p50_s) / _P90

    def below(time_s: float) -> float:
        return 0.5 * (1.0 + erf(log(time_s / p50_s) / width / sqrt(2.0)))

    inner = [0.0, *(below(edge) for edge in _EDGES[1:-1]), 1.0]
    return tuple(high - low for low, high in pairwise(inner))


PRIORS: Final = {stop: _log_normal(*reported) for stop, reported in PUBLISHED_S.items()}
