"""What is held in one tier or nearer: one table, or two when memory runs short."""

from collections.abc import Callable, Sequence

from kvmesh._native import Table
from kvmesh.core.blocks.events import HASH_BYTES, ROOT, WorkerId
from kvmesh.core.blocks.hashing import Hashes, pack_hashes, unpack_run
from kvmesh.core.index.block_table import Drops, Holding


class Tier:
    """The blocks of one tier, old ones apart from young ones once `rotate` was called.

    Without lineage nobody can tell a leaf, so eviction goes by age: `rotate` drops what is in the
    old table and makes the young one old. A block is young for a worker when it was stored behind
    a young parent (or the root), or was matched since the last rotation (`refresh`). Young blocks
    have young parents, so what is left is prefix-closed for every worker.
    """

    def __init__(self) -> None:
        self.young = Table()
        self.old: Table | None = None

    def find_drops(self, hashes: Hashes, live: int) -> Drops:
        """Return where along a prompt workers drop out, see `search.find_drops`."""
        return self.young.find_drops(hashes, live, self.old)

    def tables(self) -> list[Table]:
        """Return the table or both."""
        return [self.young] if self.old is None else [self.young, self.old]

    def holds(self, bit: int, block: int) -> bool:
        """Return whether the worker with that bit holds `block`; everyone holds ROOT."""
        return block == ROOT or any(table.holds(bit, block) for table in self.tables())

    def store(self, worker: WorkerId, bit: int, parent: int, run: bytes) -> bool:
        """Add a packed run behind `parent`; False, and no change, when that is not held."""
        young = self.young
        if parent != ROOT and not young.holds(bit, parent):
            return self.old is not None and self._store_old(self.old, worker, bit, parent, run)
        if self.old is not None:
            holding = self.old.holdings.get(worker)
            if holding is not None:
                self.old.remove(holding, run)
        young.store(young.admit(worker, bit), run)
        return True

    def _store_old(self, old: Table, worker: WorkerId, bit: int, parent: int, run: bytes) -> bool:
        """Add a run behind an old parent: it ages with its parent."""
        if not old.holds(bit, parent):
            return False
        new = [block for block in unpack_run(run) if not self.young.holds(bit, block)]
        old.store(old.holdings[worker], pack_hashes(new))
        return True

    def remove(self, worker: WorkerId, run: bytes) -> int:
        """Take packed blocks away; return how many the worker did not hold."""
        for table in self.tables():
            holding = table.holdings.get(worker)
            if holding is not None and run:
                run = pack_hashes(table.remove(holding, run))
        return len(run) // HASH_BYTES

    def forget(self, worker: WorkerId) -> None:
        """Drop the counts of a worker whose bit is no longer live. O(1)."""
        for table in self.tables():
            table.holdings.pop(worker, None)

    def holdings(self, worker: WorkerId) -> list[Holding]:
        """Return what is known of a worker, per table."""
        return [table.holdings[worker] for table in self.tables() if worker in table.holdings]

    def blocks(self, worker: WorkerId) -> int:
        """Return how many blocks a worker holds."""
        holding = self.young.holdings.get(worker)
        young = holding.blocks if holding is not None else 0
        if self.old is None:
            return young
        holding = self.old.holdings.get(worker)
        return young + holding.blocks if holding is not None else young

    def refresh(
        self, blocks: Sequence[int], live: int, decode: Callable[[int], tuple[WorkerId, ...]]
    ) -> None:
        """Make blocks young at everyone who holds them; they start at the root. O(blocks)."""
        old = self.old
        if old is None:
            return
        by_mask: dict[int, list[int]] = {}
        for block in blocks:
            mask = old.mask(block) & live
            if mask:
                by_mask.setdefault(mask, []).append(block)
        for mask, run in by_mask.items():
            old.move(pack_hashes(run), mask, self.young)
            for worker in decode(mask):
                before = old.holdings[worker]
                after = self.young.admit(worker, before.bit)
                for holding, sign in ((before, -1), (after, 1)):
                    holding.blocks += sign * len(run)
                    holding.digest += sign * sum(run)

    def only_table(self) -> Table | None:
        """Return the table if there is but one, as when nobody holds anything old. O(workers)."""
        if self.old is not None and not any(one.blocks for one in self.old.holdings.values()):
            self.old = None
        return self.young if self.old is None else None

    def rotate(self) -> Table | None:
        """Make the young blocks old; return the table of those that were old, no longer held."""
        dropped, self.old = self.old, self.young
        self.young = Table()
        return dropped
