"""What became of the requests of one arm: counts and times that add up over replicas."""

from bisect import bisect_left
from collections.abc import Iterable
from itertools import accumulate
from math import exp, isfinite, log
from typing import Final

import msgspec

LEAST_MS: Final = 0.125
PER_OCTAVE: Final = 3
MOST_BINS: Final = 64

EDGES: Final = tuple(LEAST_MS * 2.0 ** (number / PER_OCTAVE) for number in range(MOST_BINS - 1))
"""Upper edges of the bins, inclusive, ms: each is 26 % above the one before, the last bin has none.
0.125 ms to 209 s.
"""

MOST_COUNT: Final = 1 << 53


class Times(msgspec.Struct, frozen=True, array_like=True):
    """Times in ms: how many, the sum of their logarithms, of the squares of these, and how many
    fell into each bin of `EDGES` (trailing zeros are left out).
    """

    count: int = 0
    log_sum: float = 0.0
    log_squares: float = 0.0
    bins: tuple[int, ...] = ()

    def mean_ms(self) -> float:
        """Return the geometric mean, 0 of nothing."""
        return exp(self.log_sum / self.count) if self.count else 0.0

    def log_variance(self) -> float:
        """Return the variance of the logarithms, 0 of less than two."""
        if self.count < 2:  # noqa: PLR2004 - one value varies not
            return 0.0
        mean = self.log_sum / self.count
        return max(0.0, self.log_squares - self.count * mean * mean) / (self.count - 1)

    def quantile_ms(self, share: float) -> float:
        """Return the upper edge of the bin where `share` of the times is reached, 0 of nothing."""
        return EDGES[min(self.bin_of(share), len(EDGES) - 1)] if self.count else 0.0

    def bin_of(self, share: float) -> int:
        """Return the first bin up to whose edge at least `share` of the times lie."""
        return bisect_left(list(accumulate(self.bins)), share * self.count)

    def above(self, number: int) -> int:
        """Return how many times lie above the edge of bin `number`."""
        return sum(self.bins[number + 1 :])

    def wrong(self) -> str:
        """Return why this cannot be, "" when it can."""
        if not 0 <= self.count <= MOST_COUNT or len(self.bins) > MOST_BINS:
            return f"{self.count} times in {len(self.bins)} bins"
        if not all(0 <= one <= MOST_COUNT for one in self.bins) or sum(self.bins) != self.count:
            return f"bins do not sum up to {self.count}"
        if not (isfinite(self.log_sum) and isfinite(self.log_squares)) or self.log_squares < 0.0:
            return f"sums of logarithms {self.log_sum:g} and {self.log_squares:g}"
        return ""


NO_TIMES: Final = Times()


class Tally(msgspec.Struct, frozen=True, array_like=True):
    """The requests of an arm: those that ended, those of them that failed, the time to the first
    token of each that got one, and the time per token behind it.
    """

    requests: int = 0
    errors: int = 0
    ttft: Times = NO_TIMES
    tpot: Times = NO_TIMES

    def wrong(self) -> str:
        """Return why this cannot be, "" when it can."""
        if not 0 <= self.errors <= self.requests <= MOST_COUNT:
            return f"{self.errors} errors of {self.requests} requests"
        return self.ttft.wrong() or self.tpot.wrong()


class Clocked:
    """Collects `Times`. About 0.6 us a time."""

    __slots__ = ("_bins", "_count", "_squares", "_sum")

    def __init__(self) -> None:
        self._count = 0
        self._sum = self._squares = 0.0
        self._bins = [0] * MOST_BINS

    def observe(self, time_ms: float) -> None:
        """Count a time; one below `LEAST_MS` counts as that."""
        time_ms = max(LEAST_MS, time_ms)
        logarithm = log(time_ms)
        self._count += 1
        self._sum += logarithm
        self._squares += logarithm * logarithm
        self._bins[bisect_left(EDGES, time_ms)] += 1

    def times(self) -> Times:
        """Return what was counted."""
        return Times(self._count, self._sum, self._squares, _trimmed(self._bins))


class Counter:
    """Collects a `Tally`."""

    __slots__ = ("_errors", "_requests", "_tpot", "_ttft")

    def __init__(self) -> None:
        self._requests = self._errors = 0
        self._ttft = Clocked()
        self._tpot = Clocked()

    def began(self, ttft_ms: float) -> None:
        """Count a first token."""
        self._ttft.observe(ttft_ms)

    def ended(self, *, failed: bool, ms_per_token: float | None = None) -> None:
        """Count an end, with the time per token of what was served."""
        self._requests += 1
        self._errors += failed
        if ms_per_token is not None:
            self._tpot.observe(ms_per_token)

    def tally(self) -> Tally:
        """Return what was counted."""
        return Tally(self._requests, self._errors, self._ttft.times(), self._tpot.times())


def add_times(parts: Iterable[Times]) -> Times:
    """Return all of them as one."""
    count, log_sum, log_squares, bins = 0, 0.0, 0.0, [0] * MOST_BINS
    for one in parts:
        count += one.count
        log_sum += one.log_sum
        log_squares += one.log_squares
        for number, times in enumerate(one.bins):
            bins[number] += times
    return Times(count, log_sum, log_squares, _trimmed(bins))


def add_tallies(parts: Iterable[Tally]) -> Tally:
    """Return several replicas' tallies as one."""
    tallies = list(parts)
    return Tally(
        sum(one.requests for one in tallies),
        sum(one.errors for one in tallies),
        add_times(one.ttft for one in tallies),
        add_times(one.tpot for one in tallies),
    )


def _trimmed(bins: list[int]) -> tuple[int, ...]:
    used = next((at for at in range(len(bins), 0, -1) if bins[at - 1]), 0)
    return tuple(bins[:used])
