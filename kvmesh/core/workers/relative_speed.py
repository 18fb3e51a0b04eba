"""How much slower or faster than its fleet a worker is, as far as chance cannot explain it."""

import math
from collections.abc import Callable
from typing import Final, cast

from kvmesh.compiled import NATIVE

DEVIATIONS: Final = 3.0
"""So many standard errors of a worker's mean are taken for chance."""

FIRST_VARIANCE: Final = 0.1
"""Squared relative error of one prefill's time, before any was seen."""

MOST_ERROR: Final = 2.0
"""A larger relative error counts as this: a worker whose speed changes is not noise for long."""

_MOST_PERSISTENCE: Final = 0.8
_HALF_LIFE_SAMPLES: Final = 64.0
_KEEP: Final = 0.5 ** (1.0 / _HALF_LIFE_SAMPLES)


class Ratio:
    """Decayed sum of ms over decayed sum of tokens.

    `squares` is the sum of the samples' squared weights, of which the mean's error follows;
    `error` the last sample's, relative to what the mean foretold. `factor` is the worker's time
    per token over its fleet's, 1.0 while that may be chance. In C where there is a compiled core.
    """

    __slots__ = ("error", "factor", "ms", "squares", "tokens")

    def __init__(self, ms: float = 0.0, tokens: float = 0.0) -> None:
        self.ms = ms
        self.tokens = tokens
        self.squares = 0.0
        self.error = 0.0
        self.factor = 1.0

    def fold(self, ms: float, tokens: float, half_life: float) -> None:
        """Add a sample; what was there counts half after `half_life` further tokens."""
        keep = 0.5 ** (tokens / half_life)
        self.ms = self.ms * keep + ms
        self.tokens = self.tokens * keep + tokens
        self.squares = self.squares * keep * keep + tokens * tokens

    def age(self, fleet_ms_per_token: float) -> None:
        """Go half of the way to the fleet's mean, half as sure: no sample came for long."""
        self.ms = 0.25 * (self.ms + fleet_ms_per_token * self.tokens)
        self.tokens *= 0.5
        self.squares *= 0.5
        if self.tokens < 1.0:
            self.ms = self.tokens = self.squares = 0.0
            self.factor = 1.0


class Scatter:
    """How far single prefills are from what their worker's mean foretold, over the whole fleet.

    Equal workers on a busy machine differ by their luck for a while. If their means were taken as
    they are, luck would decide where prompts go that cost little beside a step's fixed time.
    """

    __slots__ = ("_products", "_squares", "_weights")

    def __init__(self) -> None:
        self._weights = 0.0
        self._squares = 0.0
        self._products = 0.0

    @property
    def variance(self) -> float:
        """Return the squared relative error a mean has on account of each prefill in it.

        What disturbs one prefill often disturbs the next: so many of them are worth fewer.
        """
        if not self._weights:
            return FIRST_VARIANCE
        persistence = 0.0
        if self._products > 0.0:
            persistence = min(self._products / self._squares, _MOST_PERSISTENCE)
        return self._squares / self._weights * (1.0 + persistence) / (1.0 - persistence)

    def fold(self, own: Ratio, ms: float, tokens: float, expected_ms: float) -> None:
        """Count a prefill of `tokens` that took `ms` where `own` foretold `expected_ms` (> 0)."""
        error = min(ms / expected_ms - 1.0, MOST_ERROR)
        weight = tokens * tokens
        self._weights = self._weights * _KEEP + weight
        self._squares = self._squares * _KEEP + weight * error * error
        self._products = self._products * _KEEP + weight * error * own.error
        own.error = error

    def factor(self, own: Ratio, fleet_ms_per_token: float) -> float:
        """Return how much slower than the fleet `own` (not empty) surely is: 1.0 within chance.

        Beyond it the ratio itself, shrunk the less the surer it is: r ** (1 - (z e / (r - 1))^2)
        with e the standard error. Source: the garrote of L. Breiman, Technometrics 37, 1995.
        """
        ratio = own.ms / own.tokens / fleet_ms_per_token
        chance = DEVIATIONS * DEVIATIONS * self.variance * own.squares / (own.tokens * own.tokens)
        # The error is relative to the worker's own mean, its distance to the larger of both.
        distance = (ratio - 1.0) / max(ratio, 1.0)
        if distance * distance <= chance:
            return 1.0
        return math.pow(ratio, 1.0 - chance / (distance * distance))


new_ratio: Final = cast("Callable[[float, float], Ratio]", NATIVE.Ratio) if NATIVE else Ratio
"""Return a ratio of so many ms and tokens."""
