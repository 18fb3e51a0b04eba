"""From scores to one worker: the least with fair ties, or a softmax over the range."""

from collections.abc import Mapping, Sequence
from math import exp
from typing import Final, Protocol, TypeVar

import xxhash

from kvmesh.compiled import NATIVE

_Name = TypeVar("_Name", bound=str)


class Random(Protocol):
    """The randomness the core is given; `random.Random` is one."""

    def random(self) -> float:
        """Return a float in [0, 1)."""
        ...


def pick(count: int, rng: Random) -> int:
    """Return one of `count` indices, all equally likely; draws nothing when there is one."""
    return min(int(rng.random() * count), count - 1) if count > 1 else 0


def tie_limit(best: float, margin: float) -> float:
    """Return the largest cost that counts as equal to `best`, which with a margin is >= 0."""
    return best * (1.0 + margin)


def choose_least(
    costs: Sequence[float],
    rng: Random,
    tie_sizes: Sequence[int] | None = None,
    margin: float = 0.0,
) -> int:
    """Return the index of the least cost; among equals (within `margin`) a fair draw.

    `tie_sizes` (cached tree sizes) narrows equals to the smallest first. One draw however many
    are equal: the same distribution as reservoir sampling, and the same choice for the same rng.
    """
    ties = find_ties(costs, tie_sizes, margin)
    return ties[pick(len(ties), rng)]


def find_ties(
    costs: Sequence[float], tie_sizes: Sequence[int] | None = None, margin: float = 0.0
) -> list[int]:
    """Return the indices of the least costs, in order; of those only the smallest `tie_sizes`."""
    limit = min(costs) * (1.0 + margin)
    ties = [index for index, cost in enumerate(costs) if cost <= limit]
    if len(ties) > 1 and tie_sizes is not None:
        smallest = min(tie_sizes[index] for index in ties)
        ties = [index for index in ties if tie_sizes[index] == smallest]
    return ties


def pure_find_home(
    names: Sequence[_Name], overlaps: Mapping[_Name, int], blocks: Sequence[int]
) -> int:
    """Return the index of the name, among those with the most in `overlaps`, that the first of
    `blocks` beyond that belongs to, whatever other names there are; -1 where there is none.

    Highest random weight: names that come or go move only the blocks that are theirs.
    Source: D. Thaler and C. Ravishankar, "Using name-based mappings to increase hit rates", 1998.
    """
    held = [overlaps.get(name, 0) for name in names]
    most = max(held)
    if most >= len(blocks):
        return -1
    weights = [
        xxhash.xxh3_64_intdigest(name.encode(), blocks[most]) if overlap == most else -1
        for name, overlap in zip(names, held, strict=True)
    ]
    return weights.index(max(weights))


find_home: Final = NATIVE.find_home if NATIVE else pure_find_home
"""The compiled one takes a dict."""


def softmax_probabilities(costs: Sequence[float], temperature: float) -> list[float]:
    """Return the probability of each index: p ~ exp(-(c - min) / ((max - min) * temperature)).

    Scale-free: with two workers the better gets 1 / (1 + e^(-1/T)) whatever the costs; equal
    costs are uniform. `temperature` > 0.
    Source: Dynamo lib/kv-router, scheduling/selector, softmax sampling.
    """
    least = min(costs)
    spread = max(costs) - least
    if spread <= 0.0:
        return [1.0 / len(costs)] * len(costs)
    weights = [exp(max(-700.0, -(cost - least) / spread / temperature)) for cost in costs]
    total = sum(weights)
    return [weight / total for weight in weights]


def choose_softmax(costs: Sequence[float], temperature: float, rng: Random) -> int:
    """Return an index drawn by `softmax_probabilities` (inverse of the cumulative sum)."""
    mark = rng.random()
    probabilities = softmax_probabilities(costs, temperature)
    for index, probability in enumerate(probabilities):
        mark -= probability
        if mark < 0.0:
            return index
    return len(probabilities) - 1


def next_in_turn(names: Sequence[str], last: str) -> str:
    """Return the name after `last` in sorted `names`, from the start behind the end.

    Members may come and go between turns: nobody is served twice before the others.
    """
    return next((name for name in names if name > last), names[0])


def two_of(count: int, rng: Random) -> tuple[int, int]:
    """Return two different indices below `count` (>= 2), every pair equally likely."""
    first = pick(count, rng)
    second = pick(count - 1, rng)
    return first, second if second < first else second + 1
