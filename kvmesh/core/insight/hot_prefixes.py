"""The prompt beginnings that most requests share, as a bounded tree of what came lately."""

from bisect import bisect_right
from collections.abc import Sequence
from math import exp
from operator import itemgetter
from typing import Final, cast

import msgspec

from kvmesh.compiled import NATIVE
from kvmesh.core.blocks.hashing import as_key

HALF_LIFE_S: Final = 120.0
"""A request counts half after this long."""

MAX_NODES: Final = 4096
"""Nodes kept, some 1 MB; beyond it the coldest half goes."""

DEPTHS: Final = (1, 2, *(scale << power for power in range(20) for scale in (3, 4)))
"""Depths counted, in blocks: 1, 2, 3, 4, 6, 8, 12, 16, 24, …"""

_RATE: Final = 0.6931471805599453 / HALF_LIFE_S
_RESCALE_AT: Final = 1e12
_SAME: Final = 0.99
_FAINT: Final = 0.1


class HotPrefix(msgspec.Struct, frozen=True):
    """A beginning of `depth` blocks that `requests` lately shared, older ones counting less.

    `key` is the sequence hash of its last block, `parent` the key of the prefix it goes on from, 0
    for none. `share` is of all requests, `cached_share` how much of it was cached on average, 0..1.
    """

    key: int
    parent: int
    depth: int
    requests: float
    share: float
    cached_share: float


class _Node(msgspec.Struct, gc=False):
    parent: int
    depth: int
    visits: int = 0
    weight: float = 0.0
    cached: float = 0.0


class PrefixCounts:
    """Counts prompts at `DEPTHS`; times are the caller's, seconds.

    Counts decay by forward decay: a later request weighs more, nothing old is ever touched. A node
    is never kept without the one above it, for that one weighs at least as much.
    Source: forward decay, Cormode et al., ICDE 2009.
    """

    def __init__(self, max_nodes: int) -> None:
        self._max_nodes = max_nodes
        self._nodes: dict[int, _Node] = {}
        self._total = 0.0
        self._origin_s: float | None = None

    def record(self, hashes: Sequence[int], cached_blocks: int, now: float, /) -> None:
        """Count a prompt, given by all its sequence hashes, root first. O(log blocks)."""
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

    def weight(self, now: float, /) -> float:
        """Return what a request of this moment counts; start the scale anew before it overflows."""
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
        """Return what all requests count."""
        return self._total

    def rows(self) -> list[tuple[int, int, int, int, float, float]]:
        """Return key, parent, depth, visits, weight and cached weight of each node."""
        return [
            (key, one.parent, one.depth, one.visits, one.weight, one.cached)
            for key, one in self._nodes.items()
        ]

    def _shrink(self) -> None:
        """Keep the heavier half; equal weights: the shallower, so that no parent goes first."""
        ordered = sorted(self._nodes.items(), key=lambda item: (-item[1].weight, item[1].depth))
        self._nodes = dict(ordered[: self._max_nodes // 2])


class HotPrefixes:
    """The prompt beginnings that are shared most, of what `record` counted (`PrefixCounts`)."""

    def __init__(self, *, max_nodes: int = MAX_NODES) -> None:
        native = NATIVE.PrefixCounts(max_nodes) if NATIVE else PrefixCounts(max_nodes)
        self._counts = cast("PrefixCounts", native)
        self.record = self._counts.record

    def hottest(self, limit: int, now: float) -> list[HotPrefix]:
        """Return up to `limit` prefixes that more than one request shares, the hottest first.

        Of a chain that all the same requests go down only the deepest is named. A parent always
        stands before its children, but where somebody made up a block's hash behind two beginnings.
        O(nodes log nodes).
        """
        unit, total = self._counts.weight(now), self._counts.total()
        shared = [
            (node.weight, -node.depth, key, node)
            for key, node in ((row[0], _Node(*row[1:])) for row in self._counts.rows())
            if node.visits > 1 and node.weight > _FAINT * unit
        ]
        shared.sort(key=itemgetter(0, 1, 2), reverse=True)
        heaviest: dict[bytes, float] = {}
        for weight, _, _, node in shared:
            heaviest.setdefault(as_key(node.parent), weight)
        found: list[HotPrefix] = []
        named = {as_key(0): 0}
        for weight, _, key, node in shared:
            place = as_key(key)
            above = named.get(as_key(node.parent), 0)
            if heaviest.get(place, 0.0) >= _SAME * weight:
                named[place] = above
                continue
            named[place] = key
            if len(found) < limit:
                share, cached = weight / total, node.cached / weight
                found.append(HotPrefix(key, above, node.depth, weight / unit, share, cached))
        return found

    def nodes(self) -> int:
        """Return how many nodes are kept."""
        return len(self._counts.rows())
