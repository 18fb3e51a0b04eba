"""Naive model of how kvmesh/native/decide/choose.c takes one of equals."""

from collections.abc import Mapping, Sequence
from typing import TypeVar

import xxhash

from kvmesh.core.cost.selection import Random

_Name = TypeVar("_Name", bound=str)


def pick(count: int, rng: Random) -> int:
    """Return one of `count` indices, all equally likely; draws nothing when there is one."""
    return min(int(rng.random() * count), count - 1) if count > 1 else 0


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


def find_home(
    names: Sequence[_Name], overlaps: Mapping[_Name, int], blocks: Sequence[int], seed: int = 0
) -> int:
    """Return the index of the name, among those with the most in `overlaps`, that the first of
    `blocks` beyond that belongs to, or a `seed`, whatever other names there are; -1 where there is
    neither.

    Highest random weight: names that come or go move only the blocks that are theirs.
    Source: D. Thaler and C. Ravishankar, "Using name-based mappings to increase hit rates", 1998.
    """
    held = [overlaps.get(name, 0) for name in names]
    most = max(held)
    if not seed and most >= len(blocks):
        return -1
    weights = [
        xxhash.xxh3_64_intdigest(name.encode(), seed or blocks[most]) if overlap == most else -1
        for name, overlap in zip(names, held, strict=True)
    ]
    return weights.index(max(weights))


def two_of(count: int, rng: Random) -> tuple[int, int]:
    """Return two different indices below `count` (>= 2), every pair equally likely."""
    first = pick(count, rng)
    second = pick(count - 1, rng)
    return first, second if second < first else second + 1
