"""How far predicted times are off, learned, as a distribution: the chance that one is exceeded."""

from math import exp, isfinite, log, pi, sqrt
from typing import Final

FLOOR_MS: Final = 20.0
"""Added to both times: how an arrival falls into an engine's step is no error of a prediction."""

MOST_RATIO: Final = 64.0
"""A sample beyond this ratio, or below its inverse, counts as so much: clocks may step."""

PRIOR_SAMPLES: Final = 8.0
PRIOR_SPREAD: Final = log(2.0)
"""Believed before anything was seen: two thirds of times within a factor of two."""

LEAST_SPREAD: Final = 0.05
_KEEP: Final = 0.5 ** (1.0 / 512.0)
_SCALE: Final = sqrt(3.0) / pi
_MOST_LOG: Final = log(MOST_RATIO)
_MOST_EXPONENT: Final = 500.0


class TimeErrors:
    """The ratio of actual to predicted time is taken to be log-logistic: its logarithm has a mean
    and a spread, decayed over some 700 samples, and heavier tails than a normal one.
    """

    __slots__ = ("_mean", "_squares", "samples")

    def __init__(self) -> None:
        self.samples = PRIOR_SAMPLES
        self._mean = 0.0
        self._squares = PRIOR_SAMPLES * PRIOR_SPREAD * PRIOR_SPREAD

    def learn(self, predicted_ms: float, actual_ms: float) -> None:
        """Take one prediction and what came of it. Nothing is learned of what is not finite."""
        if not (isfinite(predicted_ms) and isfinite(actual_ms)):
            return
        ratio = log((max(0.0, actual_ms) + FLOOR_MS) / (max(0.0, predicted_ms) + FLOOR_MS))
        ratio = min(max(-_MOST_LOG, ratio), _MOST_LOG)
        self.samples = self.samples * _KEEP + 1.0
        before = ratio - self._mean
        self._mean += before / self.samples
        self._squares = self._squares * _KEEP + before * (ratio - self._mean)

    @property
    def bias(self) -> float:
        """Return the typical ratio of actual to predicted times."""
        return exp(self._mean)

    @property
    def spread(self) -> float:
        """Return the standard deviation of the ratio's logarithm."""
        return max(LEAST_SPREAD, sqrt(max(0.0, self._squares) / self.samples))

    def chance_above(self, predicted_ms: float, limit_ms: float) -> float:
        """Return the chance, 0..1, that what is predicted takes longer than `limit_ms`."""
        distance = log((max(0.0, limit_ms) + FLOOR_MS) / (max(0.0, predicted_ms) + FLOOR_MS))
        exponent = (distance - self._mean) / (self.spread * _SCALE)
        return 1.0 / (1.0 + exp(min(exponent, _MOST_EXPONENT)))

    def longest(self, limit_ms: float, chance: float) -> float:
        """Return the prediction, ms, that stays within `limit_ms` with `chance`, which counts as at
        least 1 % and at most 99 %; negative where none does.
        """
        chance = min(max(0.01, chance), 0.99)
        distance = self._mean + self.spread * _SCALE * log(chance / (1.0 - chance))
        return (max(0.0, limit_ms) + FLOOR_MS) * exp(-distance) - FLOOR_MS
