"""How long answers become, learned by how prompts begin: one system prompt, one kind of answer."""

from collections import OrderedDict
from functools import partial
from typing import Final, Protocol, cast

import msgspec

from kvmesh.compiled import NATIVE
from kvmesh.core.blocks.hashing import Hashes

FAMILY_TOKENS: Final = (64, 256, 1024)
"""Prompts that agree in so many first tokens are a family; a longer agreement tells more."""

MAX_FAMILIES: Final = 1 << 13

_PRIOR_SAMPLES: Final = 4.0
"""What the wider family's mean weighs beside a family's own answers."""

_NEWEST_WEIGHT: Final = 0.05
"""A family's mean follows its newest answers at least so much."""

_PLAIN_SAMPLES: Final = int(1 / _NEWEST_WEIGHT)
"""Until then the mean is that of all answers."""


class OutputForecast(msgspec.Struct, frozen=True, gc=False):
    """An answer's expected length, tokens; 0: nothing is known yet.

    `samples` answers of prompts that agree in `family_tokens` first tokens were the narrowest
    evidence; 0 `family_tokens` are all prompts.
    """

    tokens: float = 0.0
    samples: int = 0
    family_tokens: int = 0


NO_FORECAST: Final = OutputForecast()

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


class _Mean:
    __slots__ = ("samples", "tokens")

    def __init__(self) -> None:
        self.samples = 0
        self.tokens = 0.0


class OutputLengths:
    """Means of answers' lengths per family, each shrunk towards the wider one's. Bounded. In C
    where there is a compiled core (kvmesh/native/lengths.c): `new_lengths` knows.
    """

    def __init__(self, block_size: int, *, max_families: int = MAX_FAMILIES) -> None:
        self._depths = _depths(block_size)
        self._max_families = max_families
        self._all = _Mean()
        self._families: OrderedDict[int, _Mean] = OrderedDict()
        self._errors = _Mean()
        self._mean_errors = _Mean()

    def forecast(self, hashes: Hashes) -> tuple[Families, OutputForecast]:
        """Return the families of a prompt, for `learn`, and how long its answer will probably be.

        O(1).
        """
        known = hashes.upto(self._depths[-1][1])
        blocks = len(known)
        families = tuple(
            [(tokens, known[depth - 1]) for tokens, depth in self._depths if depth <= blocks]
        )
        if not self._all.samples:
            return families, NO_FORECAST
        tokens, samples, family = self._all.tokens, self._all.samples, 0
        for family_tokens, key in families:
            mean = self._families.get(key)
            if mean is None:
                break
            weight = mean.samples / (mean.samples + _PRIOR_SAMPLES)
            tokens += weight * (mean.tokens - tokens)
            samples, family = mean.samples, family_tokens
        return families, OutputForecast(tokens, samples, family)

    def learn(self, families: Families, tokens: int, foreseen: OutputForecast) -> None:
        """Take a whole answer of so many tokens, and what was `foreseen` of it."""
        lessons: list[tuple[_Mean, float]] = [(self._all, tokens)]
        if foreseen.samples:
            lessons.append((self._errors, abs(foreseen.tokens - tokens)))
            lessons.append((self._mean_errors, abs(self._all.tokens - tokens)))
        known = self._families
        for _, key in families:
            mean = known.get(key)
            if mean is None:
                mean = known[key] = _Mean()
            known.move_to_end(key)
            lessons.append((mean, tokens))
        for mean, sample in lessons:
            mean.samples += 1
            weight = 1.0 / mean.samples if mean.samples < _PLAIN_SAMPLES else _NEWEST_WEIGHT
            mean.tokens += weight * (sample - mean.tokens)
        while len(known) > self._max_families:
            known.popitem(last=False)

    def resize(self, block_size: int) -> None:
        """Find families by blocks of another size; those known by the old ones are forgotten."""
        self._depths = _depths(block_size)
        self._families.clear()

    def statistics(self) -> OutputStatistics:
        """Return the present figures."""
        return OutputStatistics(
            len(self._families), self._all.samples, self._errors.tokens, self._mean_errors.tokens
        )


def _depths(block_size: int) -> list[tuple[int, int]]:
    """Return the blocks that have each family's tokens."""
    return [(tokens, -(-tokens // block_size)) for tokens in FAMILY_TOKENS]


class NewLengths(Protocol):
    """Makes `OutputLengths`, empty."""

    def __call__(self, block_size: int, *, max_families: int = MAX_FAMILIES) -> OutputLengths:
        """Return those of prompts in blocks of so many tokens."""
        ...


new_lengths: Final = (
    cast(
        "NewLengths",
        partial(NATIVE.OutputLengths, OutputForecast, OutputStatistics, max_families=MAX_FAMILIES),
    )
    if NATIVE
    else OutputLengths
)
"""Return forecasts of answers of which nothing was seen."""
