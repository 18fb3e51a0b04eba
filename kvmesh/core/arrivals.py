"""How fast requests come."""

from math import exp2, log
from typing import Final

HALF_LIFE_S: Final = 10.0
_PER_MS: Final = log(2.0) / HALF_LIFE_S / 1000.0


class Arrivals:
    """A decayed count of requests. Too low in the first seconds, never too high for long."""

    __slots__ = ("_count", "_last_s")

    def __init__(self) -> None:
        self._count = 0.0
        self._last_s = 0.0

    def fold(self, now: float) -> None:
        """Count one request. A clock that steps back counts as standing still."""
        self._count = self._kept(now) + 1.0
        self._last_s = max(now, self._last_s)

    def per_ms(self, now: float) -> float:
        """Return requests per millisecond."""
        return self._kept(now) * _PER_MS

    def _kept(self, now: float) -> float:
        return self._count * exp2(min(0.0, self._last_s - now) / HALF_LIFE_S)
