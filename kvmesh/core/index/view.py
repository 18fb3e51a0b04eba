"""What a search needs of an index, looked up once."""

from collections.abc import Sequence
from typing import Final

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import Hashes
from kvmesh.core.index.block_table import Drops, EndTables, Groups, Holding, Table
from kvmesh.core.index.search import cut_drops
from kvmesh.core.index.slots import Decoder

_SPREAD: Final = 256


class PureView:
    """The tables of a tier, the worker of each slot, and which slots count.

    It never changes, but what the tables hold does. The compiled one does the same.
    """

    def __init__(
        self,
        young: Table,
        old: Table | None,
        names: Sequence[WorkerId],
        live: int,
        ends: EndTables | None = None,
    ) -> None:
        if live.bit_length() > len(names):
            slot, count = live.bit_length() - 1, len(names)
            raise ValueError(f"slot {slot} is live, but only {count} have names")
        self.young = young
        self.old = old
        self.names = tuple(names)
        self.live = live
        self._ends = ends
        self._decode = Decoder(self.names).decode
        self._spread: dict[tuple[int, int], dict[WorkerId, int]] = {}
        tables = (young,) if old is None else (young, old)
        self._holdings: list[list[Holding]] = [
            [table.holdings[worker] for table in tables if worker in table.holdings]
            if live >> slot & 1
            else []
            for slot, worker in enumerate(self.names)
        ]

    def find_matches(self, hashes: Hashes) -> dict[WorkerId, int]:
        """Return the cached prefix length, in blocks, of every worker that holds any of it.

        O(drops x log(depth) + workers found), see `find_groups`.
        """
        drops, _ = self._find_drops(hashes)
        if not drops:
            return {}
        # The shallowest are mostly the most, the others mostly one worker each.
        depth, mask = drops.pop()
        matches = self._spread_out(mask, depth)
        for depth, mask in drops:
            for worker in self._decode(mask):
                matches[worker] = depth
        return matches

    def find_groups(self, hashes: Hashes) -> Groups:
        """Return disjoint (depth, workers), deepest first, depth > 0.

        O(drops x log(depth)), where a drop is a depth at which some worker's prefix ends: it hardly
        depends on how many workers or blocks there are.
        """
        return self.find_hits(hashes)[0]

    def find_hits(self, hashes: Hashes) -> tuple[Groups, dict[WorkerId, int]]:
        """Return the groups, and whose hit is shorter than the chain of blocks that they hold: how
        long that is.
        """
        drops, cut = self._find_drops(hashes)
        chains = {worker: depth for depth, mask in cut for worker in self._decode(mask)}
        return [(depth, self._decode(mask)) for depth, mask in drops], chains

    def sizes(self) -> list[int]:
        """Return how many blocks the worker of each slot holds, 0 where the slot does not count."""
        return [sum(one.blocks for one in holdings) for holdings in self._holdings]

    def _find_drops(self, hashes: Hashes) -> tuple[Drops, Drops]:
        """Return the drops by where hits end, and those of the workers that lose by it."""
        drops = self.young.find_drops(hashes, self.live, self.old)
        return (drops, []) if self._ends is None else cut_drops(self._ends, drops, hashes)

    def _spread_out(self, mask: int, depth: int) -> dict[WorkerId, int]:
        """Return a new dict of the workers of `mask`, each with `depth`.

        The same many workers mostly end at the same depths, where system prompts do: 50 of them are
        then copied in 0.2 us instead of put together in 1.5.
        """
        place = mask, depth
        known = self._spread.get(place)
        if known is None:
            if len(self._spread) >= _SPREAD:
                self._spread.clear()
            known = self._spread[place] = dict.fromkeys(self._decode(mask), depth)
        return known.copy()
