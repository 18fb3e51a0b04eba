"""The naive model of a histogram: kvmesh/native/insight/histograms.c."""

from bisect import bisect_left
from collections.abc import Sequence


class Histogram:
    """Counts values by upper bound, inclusive; the last bin has no bound."""

    def __init__(self, bounds: Sequence[float]) -> None:
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[float, int]]:
        rows: list[tuple[float, int]] = []
        count = 0
        for bound, bin_count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            count += bin_count
            rows.append((bound, count))
        return rows
