"""The naive model of how often prompts began alike: kvmesh/native/insight/prefixes.c."""

from bisect import bisect_right
from collections.abc import Sequence
from math import exp
from typing import Final

import msgspec

HALF_LIFE_S: Final = 120.0

DEPTHS: Final = (1, 2, *(scale << power for power in range(20) for scale in (3, 4)))

_RATE: Final = 0.6931471805599453 / HALF_LIFE_S
_RESCALE_AT: Final = 1e12


class _Node(msgspec.Struct, gc=False):
    parent: int
    depth: int
    visits: int = 0
    weight: float = 0.0
    cached: float = 0.0


class PrefixCounts:
    """Counts prompts at `DEPTHS` by forward decay: a later request weighs more, nothing old is
    ever touched. A node is never kept without the one above it, for that one weighs at least as
    much.
    """

    def __init__(self, max_nodes: int) -> None:
        self._max_nodes = max_nodes
        self._nodes: dict[int, _Node] = {}
        self._total = 0.0
        self._origin_s: float | None = None

    def record(self, hashes: Sequence[int], cached_blocks: int, now: float) -> None:
        weight = self.weight(now)
        self._total += weight
        parent = 0
        for depth in DEPTHS[: bisect_right(DEPTHS, len(hashes))]:
            key = hashes[depth - 1]
            node = self._nodes.get(key)
            if node is None:
                node = self._nodes[key] = _Node(parent, depth)
            node.visits += 1
            node.weight += weight
            node.cached += weight if depth <= cached_blocks else weight * cached_blocks / depth
            parent = key
        if len(self._nodes) > self._max_nodes:
            self._shrink()

    def weight(self, now: float) -> float:
        if self._origin_s is None:
            self._origin_s = now
        weight = exp(_RATE * max(0.0, now - self._origin_s))
        if weight > _RESCALE_AT:
            self._origin_s = now
            self._total /= weight
            for node in self._nodes.values():
                node.weight /= weight
                node.cached /= weight
            return 1.0
        return weight

    def total(self) -> float:
        return self._total

    def rows(self) -> list[tuple[int, int, int, int, float, float]]:
        return [
            (key, one.parent, one.depth, one.visits, one.weight, one.cached)
            for key, one in self._nodes.items()
        ]

    def _shrink(self) -> None:
        ordered = sorted(self._nodes.items(), key=lambda item: (-item[1].weight, item[1].depth))
        self._nodes = dict(ordered[: self._max_nodes // 2])
