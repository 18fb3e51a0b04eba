"""The naive model of kvmesh/native/index/view.c: what a search needs of an index."""

from collections.abc import Sequence

from kvmesh._native import Table
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import Hashes
from kvmesh.core.index.block_table import Drops, EndTables, Groups
from kvmesh.core.index.search import cut_drops
from kvmesh.core.index.slots import Decoder


class NaiveView:
    """The tables of a tier, the newer one first, the worker of each slot, and which slots count."""

    def __init__(
        self, tables: list[Table], names: Sequence[WorkerId], live: int, ends: EndTables | None
    ) -> None:
        if live.bit_length() > len(names):
            slot, count = live.bit_length() - 1, len(names)
            raise ValueError(f"slot {slot} is live, but only {count} have names")
        self.young, self.old = (*tables, None)[:2]
        self.names = tuple(names)
        self.live = live
        self._ends = ends
        self._decode = Decoder(self.names).decode
        self._holdings = [
            [table.holdings[worker] for table in tables if worker in table.holdings]
            if live >> slot & 1
            else []
            for slot, worker in enumerate(self.names)
        ]

    def find_matches(self, hashes: Hashes) -> dict[WorkerId, int]:
        """Return the cached prefix length, in blocks, of every worker that holds any of it."""
        return {worker: depth for depth, some in self.find_groups(hashes) for worker in some}

    def find_groups(self, hashes: Hashes) -> Groups:
        """Return disjoint (depth, workers), deepest first, depth > 0."""
        return self.find_hits(hashes)[0]

    def find_hits(self, hashes: Hashes) -> tuple[Groups, dict[WorkerId, int]]:
        """Return the groups, and whose hit is shorter than the chain of blocks that they hold: how
        long that is.
        """
        assert self.young is not None
        drops = self.young.find_drops(hashes, self.live, self.old)
        cut: Drops = []
        if self._ends is not None:
            drops, cut = cut_drops(self._ends, drops, hashes)
        chains = {worker: depth for depth, mask in cut for worker in self._decode(mask)}
        return [(depth, self._decode(mask)) for depth, mask in drops], chains

    def sizes(self) -> list[int]:
        """Return how many blocks the worker of each slot holds, 0 where the slot does not count."""
        return [sum(one.blocks for one in holdings) for holdings in self._holdings]
