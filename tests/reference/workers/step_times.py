"""The naive model of `StepTimes` in kvmesh/native/speeds/speeds.c."""

from typing import Final

MAX_STEP_TOKENS: Final = 4096.0
"""No step's fixed time is taken to be worth more tokens than that."""

_HALF_LIFE_SAMPLES: Final = 256.0
_KEEP: Final = 0.5 ** (1.0 / _HALF_LIFE_SAMPLES)
_LEAST_SAMPLES: Final = 16.0
_LEAST_SPREAD: Final = 0.02
_BALANCE_TOKENS: Final = 256.0


class StepTimes:
    """Fits `ms = a (step_tokens + tokens)` to steps: decayed least squares, relative to the size.

    `step_tokens` is the fixed time in tokens, the same whatever a worker's speed; 0 until enough
    steps of different sizes were seen. Without it short prompts make every token look expensive.
    """

    __slots__ = (
        "_tokens",
        "_tokens_ms",
        "_tokens_tokens",
        "_weight",
        "_weighted_ms",
        "step_tokens",
    )

    def __init__(self) -> None:
        self.step_tokens = 0.0
        self._weight = 0.0
        self._tokens = 0.0
        self._weighted_ms = 0.0
        self._tokens_tokens = 0.0
        self._tokens_ms = 0.0

    def fold(self, tokens: float, ms: float) -> None:
        """Add a step that prefilled `tokens` (> 0) in `ms` at the fleet's usual speed. O(1)."""
        weight = _BALANCE_TOKENS / (tokens + _BALANCE_TOKENS)
        self._weight = self._weight * _KEEP + weight
        self._tokens = self._tokens * _KEEP + weight * tokens
        self._weighted_ms = self._weighted_ms * _KEEP + weight * ms
        self._tokens_tokens = self._tokens_tokens * _KEEP + weight * tokens * tokens
        self._tokens_ms = self._tokens_ms * _KEEP + weight * tokens * ms
        squares = self._weight * self._tokens_tokens
        spread = squares - self._tokens * self._tokens
        if self._weight < _LEAST_SAMPLES * _BALANCE_TOKENS / (
            self._tokens / self._weight + _BALANCE_TOKENS
        ):
            return
        slope = self._weight * self._tokens_ms - self._tokens * self._weighted_ms
        if spread <= _LEAST_SPREAD * squares or slope <= 0.0:
            return
        slope /= spread
        fixed_ms = (self._weighted_ms - slope * self._tokens) / self._weight
        self.step_tokens = min(max(0.0, fixed_ms / slope), MAX_STEP_TOKENS)
