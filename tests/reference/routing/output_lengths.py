"""The naive model of kvmesh/native/speeds/lengths.c."""

from collections import OrderedDict
from typing import Final

from kvmesh.core.blocks.hashing import Hashes
from kvmesh.core.routing.output_lengths import (
    Families,
    OutputForecast,
    OutputStatistics,
)

NO_FORECAST: Final = OutputForecast()

FAMILY_TOKENS: Final = (64, 256, 1024)
"""Prompts that agree in so many first tokens are a family; a longer agreement tells more."""

PRIOR_SAMPLES: Final = 4.0
"""What the wider family's mean weighs beside a family's own answers."""

NEWEST_WEIGHT: Final = 0.05
"""A family's mean follows its newest answers at least so much."""

PLAIN_SAMPLES: Final = int(1 / NEWEST_WEIGHT)
"""Until then the mean is that of all answers."""


class _Mean:
    __slots__ = ("samples", "tokens")

    def __init__(self) -> None:
        self.samples = 0
        self.tokens = 0.0


class OutputLengths:
    """Means of answers' lengths per family, each shrunk towards the wider one's. Bounded."""

    def __init__(self, block_size: int, max_families: int) -> None:
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
            weight = mean.samples / (mean.samples + PRIOR_SAMPLES)
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
            weight = 1.0 / mean.samples if mean.samples < PLAIN_SAMPLES else NEWEST_WEIGHT
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
