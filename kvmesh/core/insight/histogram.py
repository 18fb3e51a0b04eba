"""How often values of each size came, in fixed bins: what Prometheus calls a histogram."""

from bisect import bisect_left
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Final, cast

from kvmesh.compiled import NATIVE

SECONDS: Final = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0,
)  # fmt: skip
"""Upper bounds for what a client waits for, seconds."""

MICROSECONDS: Final = tuple(
    scale * 10.0**power for power in (-6, -5, -4, -3, -2) for scale in (1.0, 2.5, 5.0)
)
"""Upper bounds for a decision's phases, 1 us to 50 ms, seconds."""


class Histogram:
    """Counts values by upper bound, inclusive; the last bin has no bound. 0.3 us a value, compiled
    0.05.
    """

    __slots__ = ("_bounds", "_counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        assert all(low < high for low, high in pairwise(bounds)), bounds
        self._bounds = bounds
        self._counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self._bounds, value)] += 1
        self.total += value

    def cumulative(self) -> list[tuple[float, int]]:
        """Return (bound, how many values were at most that), the last with bound infinity."""
        rows: list[tuple[float, int]] = []
        count = 0
        for bound, bin_count in zip((*self._bounds, float("inf")), self._counts, strict=True):
            count += bin_count
            rows.append((bound, count))
        return rows


new_histogram: Final = (
    cast("Callable[[Sequence[float]], Histogram]", NATIVE.Histogram) if NATIVE else Histogram
)
"""Return a histogram of nothing."""
