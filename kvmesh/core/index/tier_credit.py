"""What of a prefix is held in slower memory than the device's."""

from collections.abc import Mapping, Sequence
from typing import Final

from kvmesh.core.blocks.events import WorkerId

DEFAULT_WEIGHTS: Final = (1.0, 0.75, 0.25, 0.25)
"""What a cached block counts for before it is known how long it takes to bring it to the device: in
device memory, in the host's, on disk, elsewhere.
"""

HOST: Final = 1
DISK: Final = 2
ELSEWHERE: Final = 3
"""Tiers behind the device's, 0."""

TIER_NAMES: Final = ("device", "host", "disk", "elsewhere")

Parts = Mapping[int, int]
"""Blocks by tier, of those beyond the device's."""


def slower_parts(
    found: Sequence[Mapping[WorkerId, int]], at_device: Mapping[WorkerId, int]
) -> dict[WorkerId, tuple[int, Parts]]:
    """Return, for workers that hold more than their device does, (blocks held, those by tier).

    `found` tells per tier the prefix held there or nearer, `at_device` what is taken to be on the
    device anyway.
    """
    parts: dict[WorkerId, tuple[int, Parts]] = {}
    for worker, held in found[-1].items():
        nearer = at_device.get(worker, 0)
        if held <= nearer:
            continue
        by_tier: dict[int, int] = {}
        for number, tier in enumerate(found):
            depth = tier.get(worker, 0)
            if number and depth > nearer:
                by_tier[number] = depth - nearer
            nearer = max(nearer, depth)
        if by_tier:
            parts[worker] = held, by_tier
    return parts
