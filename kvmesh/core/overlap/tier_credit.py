"""What a prefix is worth that is partly held in slower memory than the device's."""

from collections.abc import Mapping, Sequence
from typing import Final

from kvmesh.core.blocks.events import WorkerId

DEFAULT_WEIGHTS: Final = (1.0, 0.75, 0.25, 0.25)
"""What a cached block counts for: in device memory, in the host's, on disk, elsewhere."""


def slower_parts(
    found: Sequence[Mapping[WorkerId, int]], weights: Sequence[float]
) -> dict[WorkerId, tuple[int, float]]:
    """Return, for workers that hold more than device memory shows, (blocks held, blocks lost).

    `found` tells per tier the prefix held there or nearer. Of the blocks held, so many are lost to
    the weights of their tiers: fetching them costs that share of computing them anew.
    """
    parts: dict[WorkerId, tuple[int, float]] = {}
    for worker, held in found[-1].items():
        if held == found[0].get(worker, 0):
            continue
        worth, nearer = 0.0, 0
        for tier, weight in zip(found, weights, strict=False):
            depth = tier.get(worker, 0)
            worth += weight * (depth - nearer)
            nearer = depth
        parts[worker] = held, held - worth
    return parts
