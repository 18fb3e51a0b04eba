"""The naive model of `Arrivals` in kvmesh/native/loads/arrivals.c."""

from math import exp2, log
from typing import Final

HALF_LIFE_S: Final = 10.0
"""An arrival counts half after so long."""

WARM_UP_S: Final = 0.5
"""A first request tells of no rate: it counts as if it had come after so long."""

_PER_MS: Final = log(2.0) / HALF_LIFE_S / 1000.0


class Arrivals:
    """A decayed count of requests over the equally decayed time in which they came.

    Right from the first seconds on: a fleet just started has the caches cold and the rate full.
    """

    __slots__ = ("_count", "_first_s", "_last_s")

    def __init__(self) -> None:
        self._count = 0.0
        self._first_s = 0.0
        self._last_s = 0.0

    def fold(self, now: float) -> None:
        """Count one request. A clock that steps back counts as standing still."""
        if not self._count:
            self._first_s = self._last_s = now
        passed_s = now - self._last_s
        kept = self._count * exp2(-passed_s / HALF_LIFE_S) if passed_s > 0.0 else self._count
        self._count = kept + 1.0
        self._last_s = max(now, self._last_s)

    def per_ms(self, now: float) -> float:
        """Return requests per millisecond."""
        passed_s = now - self._last_s
        kept = self._count * exp2(-passed_s / HALF_LIFE_S) if passed_s > 0.0 else self._count
        seen_s = max(now, self._last_s) - self._first_s + WARM_UP_S
        return kept * _PER_MS / (1.0 - exp2(-seen_s / HALF_LIFE_S))
