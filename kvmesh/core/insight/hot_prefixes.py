"""The prompt beginnings that most requests share, as a bounded tree of what came lately."""

from operator import itemgetter
from typing import Final

import msgspec

from kvmesh._native import PrefixCounts
from kvmesh.core.blocks.hashing import as_key

MAX_NODES: Final = 4096
"""Nodes kept, some 0.3 MB; beyond it the coldest half goes."""

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


class HotPrefixes:
    """The prompt beginnings that are shared most, of what `record` counted (`PrefixCounts`)."""

    def __init__(self, *, max_nodes: int = MAX_NODES) -> None:
        self._counts = PrefixCounts(max_nodes)
        self.record = self._counts.record

    def hottest(self, limit: int, now: float) -> list[HotPrefix]:
        """Return up to `limit` prefixes that more than one request shares, the hottest first.

        Of a chain that all the same requests go down only the deepest is named. A parent always
        stands before its children, but where somebody made up a block's hash behind two beginnings.
        O(nodes log nodes).
        """
        unit, total = self._counts.weight(now), self._counts.total()
        shared = [
            (weight, -depth, key, parent, cached)
            for key, parent, depth, visits, weight, cached in self._counts.rows()
            if visits > 1 and weight > _FAINT * unit
        ]
        shared.sort(key=itemgetter(0, 1, 2), reverse=True)
        heaviest: dict[bytes, float] = {}
        for weight, _, _, parent, _ in shared:
            heaviest.setdefault(as_key(parent), weight)
        found: list[HotPrefix] = []
        named = {as_key(0): 0}
        for weight, higher, key, parent, cached in shared:
            place = as_key(key)
            above = named.get(as_key(parent), 0)
            if heaviest.get(place, 0.0) >= _SAME * weight:
                named[place] = above
                continue
            named[place] = key
            if len(found) < limit:
                share, cached_share = weight / total, cached / weight
                found.append(HotPrefix(key, above, -higher, weight / unit, share, cached_share))
        return found

    def nodes(self) -> int:
        """Return how many nodes are kept."""
        return len(self._counts.rows())
