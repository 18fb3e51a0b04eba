"""How long answers become, learned by how prompts begin: one system prompt, one kind of answer."""

from typing import Final

import msgspec

from kvmesh._native import OutputLengths

MAX_FAMILIES: Final = 1 << 13


class OutputForecast(msgspec.Struct, frozen=True, gc=False):
    """An answer's expected length, tokens; 0: nothing is known yet.

    `samples` answers of prompts that agree in `family_tokens` first tokens were the narrowest
    evidence; 0 `family_tokens` are all prompts.
    """

    tokens: float = 0.0
    samples: int = 0
    family_tokens: int = 0


Families = tuple[tuple[int, int], ...]
"""(agreeing tokens, sequence hash) of the families a prompt belongs to, the widest first."""


class OutputStatistics(msgspec.Struct, frozen=True):
    """`error_tokens` is how far forecasts were off on average, `mean_error_tokens` how far the
    mean over all prompts would have been: the difference is what families are worth.
    """

    families: int
    answers: int
    error_tokens: float
    mean_error_tokens: float


def new_lengths(block_size: int, *, max_families: int = MAX_FAMILIES) -> OutputLengths:
    """Return forecasts of answers of which nothing was seen."""
    return OutputLengths(OutputForecast, OutputStatistics, block_size, max_families)
