"""How long a prompt's KV cache takes from a prefill worker to a decode worker, as learned."""

from math import isfinite
from typing import Final

from kvmesh.core.cost.terms import Candidate

PRIOR_MS_PER_TOKEN: Final = 0.005
"""Assumed before any transfer: 100 KB a token at 20 GB/s."""

PRIOR_FIXED_MS: Final = 2.0
"""What a request more costs whatever its length: two answers' ways, and a look-up."""

MIN_SAMPLE_TOKENS: Final = 256
_WEIGHT: Final = 0.05
_OUTLIER: Final = 8.0
_MAX_MS: Final = 600_000.0
_LEAST_MS_PER_TOKEN: Final = 1e-6
"""Less is no transfer; from 0 no sample would lead back."""


def moved_tokens(chosen: Candidate) -> int:
    """Return how many tokens of the prompt a decode worker lacks."""
    return max(0, chosen.prompt_tokens - chosen.overlap_blocks * chosen.block_size)


class Transfers:
    """A decayed mean over the fleet; a sample is clipped to 1/8..8 times the present belief."""

    def __init__(self) -> None:
        self.ms_per_token = PRIOR_MS_PER_TOKEN
        self.samples = 0

    def predict_ms(self, tokens: int) -> float:
        """Return how long moving the KV cache of `tokens` takes, ms."""
        return PRIOR_FIXED_MS + self.ms_per_token * tokens if tokens > 0 else 0.0

    def seen(self, chosen: Candidate, elapsed_s: float) -> None:
        """Learn from a decode worker's first token, `elapsed_s` after it was chosen: what neither
        its backlog nor a step takes.
        """
        others_ms = chosen.wait_ms + chosen.ms_per_token * chosen.step_tokens
        self.learn(moved_tokens(chosen), elapsed_s - others_ms / 1000.0)

    def learn(self, tokens: int, elapsed_s: float) -> None:
        """Learn the time that moving `tokens` took. Few tokens are ignored; a clock that stepped
        does no harm.
        """
        if tokens < MIN_SAMPLE_TOKENS or not isfinite(elapsed_s):
            return
        elapsed_ms = min(elapsed_s * 1000.0, _MAX_MS) - PRIOR_FIXED_MS
        believed = self.ms_per_token
        sample = min(max(elapsed_ms / tokens, believed / _OUTLIER), believed * _OUTLIER)
        self.samples += 1
        # The first few say more than what was assumed.
        weight = max(_WEIGHT, 1.0 / (1 + self.samples))
        self.ms_per_token = max(believed + weight * (sample - believed), _LEAST_MS_PER_TOKEN)
