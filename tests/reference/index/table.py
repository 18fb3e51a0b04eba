"""The naive model of kvmesh/native/table/table.c: block hash -> bitmask of the workers that hold
it.
"""

from collections.abc import Sequence
from typing import cast

from kvmesh._native import Table
from kvmesh.core.blocks.events import ROOT, WorkerId
from kvmesh.core.blocks.hashing import Hashes, unpack_run
from kvmesh.core.index.block_table import Drops, EndTables, FoldedMessage
from kvmesh.core.index.search import SHARDS
from tests.reference.index.search import Layers, find_drops
from tests.reference.index.shards import FrozenShards, ShardLoader
from tests.reference.index.view import NaiveView


class NaiveHolding:
    """What one worker holds in one table; `digest` is the sum of its hashes, not yet mod 2^64."""

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.blocks = 0
        self.digest = 0


class NaiveTable:
    """One table: block hash h is key `h >> 8` of the dict of shard `h & 255`."""

    def __init__(self) -> None:
        self.shards: list[dict[int, int]] = [{} for _ in range(SHARDS)]
        self.holdings: dict[WorkerId, NaiveHolding] = {}

    def admit(self, worker: WorkerId, bit: int) -> NaiveHolding:
        """Return the holding of `worker`, made when there is none."""
        return self.holdings.setdefault(worker, NaiveHolding(bit))

    def holds(self, bit: int, block: int) -> bool:
        """Return whether the worker with that bit holds `block`."""
        return self.mask(block) & bit != 0

    def mask(self, block: int) -> int:
        """Return the mask of those who hold a block, 0 for nobody."""
        return self.shards[block & 255].get(block >> 8, 0)

    def extend(self, holding: NaiveHolding, parent: int, run: bytes) -> bool:
        """Add blocks behind `parent`, as `store`; False, and no change, when it is not held."""
        if parent != ROOT and not self.holds(holding.bit, parent):
            return False
        self.store(holding, run)
        return True

    def store(self, holding: NaiveHolding, run: bytes) -> None:
        """Add packed blocks; those already held change nothing."""
        for block in unpack_run(run):
            if not self.holds(holding.bit, block):
                self.shards[block & 255][block >> 8] = self.mask(block) | holding.bit
                holding.blocks += 1
                holding.digest += block

    def remove(self, holding: NaiveHolding, run: bytes) -> list[int]:
        """Take packed blocks away; return those that were not held."""
        missing: list[int] = []
        for block in unpack_run(run):
            if not self.holds(holding.bit, block):
                missing.append(block)
                continue
            self._change(block, self.mask(block) ^ holding.bit)
            holding.blocks -= 1
            holding.digest -= block
        return missing

    def _change(self, block: int, mask: int) -> None:
        if mask:
            self.shards[block & 255][block >> 8] = mask
        else:
            del self.shards[block & 255][block >> 8]

    def fold(self, *_message: object) -> FoldedMessage | None:
        """Take no message for ordinary."""
        return None

    def fold_ends(self, *_message: object) -> tuple[FoldedMessage, int, int] | None:
        """Take no message for ordinary either."""
        return None

    def move(self, run: bytes, mask: int, target: "NaiveTable") -> None:
        """Move blocks into another table; the caller accounts for the holdings."""
        for block in unpack_run(run):
            self.shards[block & 255].pop(block >> 8, None)
            target.shards[block & 255][block >> 8] = target.mask(block) | mask

    def size(self) -> int:
        """Return how many blocks at least one worker holds, released ones included."""
        return sum(map(len, self.shards))

    def clear_bits(self, number: int, dead: int, place: int) -> tuple[int, int]:
        """Clear the bits of `dead` in one shard, whatever `place`; return how many blocks it had,
        and 0: no other place is left.
        """
        del place
        held = self.shards[number].copy()
        for key, mask in held.items():
            if mask & dead:
                self._change(key << 8 | number, mask & ~dead)
        return len(held), 0

    def find_drops(self, hashes: Hashes, live: int, older: "NaiveTable | None" = None) -> Drops:
        """Return where along a prompt workers drop out, of this table and an older one together."""
        if older is None:
            return find_drops(self.shards, hashes, live)
        return find_drops(Layers(self.shards, older.shards), hashes, live)

    def view(
        self,
        older: "NaiveTable | None",
        names: Sequence[WorkerId],
        live: int,
        ends: EndTables | None = None,
    ) -> NaiveView:
        """Return a view of this table and an older one; of grouped workers, with their `ends`."""
        tables = [cast("Table", self)] if older is None else cast("list[Table]", [self, older])
        return NaiveView(tables, names, live, ends)

    def freeze(self) -> FrozenShards:
        """Return this table as it is now."""
        return FrozenShards(self.shards)

    def loader(self, masks: list[int]) -> ShardLoader:
        """Return what fills this table, which must be empty."""
        return ShardLoader(self.shards, masks)

    def pieces(self) -> list[object]:
        """Return the shards, to be let go one by one."""
        return list(self.shards)


NAIVE = cast("type[Table]", NaiveTable)
"""It, for whoever is made for the compiled one."""
