"""Block hash -> bitmask of the workers that hold it, for one tier."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kvmesh.core.blocks.events import HASH_BYTES, ROOT, WorkerId
from kvmesh.core.blocks.hashing import Hashes, unpack_run
from kvmesh.core.index.block_table import Drops, EndTables, FoldedMessage, Holding, Table
from kvmesh.core.index.search import SHARDS, Layers, find_drops
from kvmesh.core.index.shards import FrozenShards, ShardLoader
from kvmesh.core.index.slots import Slots
from kvmesh.core.index.view import PureView

_MAX_POOL: Final = 1 << 16
_LONG_RUN_BYTES: Final = 16 * HASH_BYTES


class PureHolding:
    """What one worker holds in one table; `digest` is the sum of its hashes, not yet mod 2^64."""

    __slots__ = ("bit", "blocks", "digest")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.blocks = 0
        self.digest = 0


class BlockTable:
    """One table, in `SHARDS` dicts laid out as `search.Shards` says.

    Nothing in it is tracked by the garbage collector, however many blocks there are. Masks are
    pooled: equal masks are one object, until the pool was emptied (at 65,536 masks) in between.
    """

    def __init__(self) -> None:
        self.shards: list[dict[int, int]] = [{} for _ in range(SHARDS)]
        self.holdings: dict[WorkerId, Holding] = {}
        self._pool: dict[int, int] = {}
        self._frozen: list[FrozenShards] = []

    def admit(self, worker: WorkerId, bit: int) -> Holding:
        """Return the holding of `worker`, made when there is none."""
        holding = self.holdings.get(worker)
        if holding is None:
            holding = self.holdings[worker] = PureHolding(self.pooled(bit))
        return holding

    def pooled(self, mask: int) -> int:
        """Return the one object that stands for `mask`."""
        if len(self._pool) >= _MAX_POOL:
            self._pool.clear()
        return self._pool.setdefault(mask, mask)

    def holds(self, bit: int, block: int) -> bool:
        """Return whether the worker with that bit holds `block`."""
        mask = self.shards[block & 255].get(block >> 8)
        return mask is not None and mask & bit != 0

    def mask(self, block: int) -> int:
        """Return the mask of those who hold a block, 0 for nobody."""
        return self.shards[block & 255].get(block >> 8) or 0

    def extend(self, holding: Holding, parent: int, run: bytes) -> bool:
        """Add blocks behind `parent`, as `store`; False, and no change, when it is not held."""
        if parent != ROOT:
            mask = self.shards[parent & 255].get(parent >> 8)
            if mask is None or not mask & holding.bit:
                return False
        self.store(holding, run)
        return True

    def store(self, holding: Holding, run: bytes) -> None:
        """Add packed blocks; those already held change nothing.

        150 (in long runs) to 400 ns (alone) a block in warm caches, twice that in a large table.
        """
        if self._frozen:
            self.keep_frozen(run)
        if len(run) == HASH_BYTES:
            self._store_one(holding, int.from_bytes(run, "little"))
            return
        blocks = unpack_run(run)
        if len(run) > _LONG_RUN_BYTES:
            repeated = self._store_long(holding.bit, run)
        else:
            repeated = self._store_short(holding.bit, blocks)
        holding.blocks += len(blocks)
        holding.digest += sum(blocks)
        if repeated:
            holding.blocks -= len(repeated)
            holding.digest -= sum(repeated)

    def _store_one(self, holding: Holding, block: int) -> None:
        shard, key = self.shards[block & 255], block >> 8
        mask = shard.get(key)
        if mask is None:
            shard[key] = holding.bit
        elif mask & holding.bit:
            return
        else:
            shard[key] = self.pooled(mask | holding.bit)
        holding.blocks += 1
        holding.digest += block

    def _store_short(self, bit: int, run: Iterable[int]) -> list[int]:
        """Add blocks; return those that were held already."""
        shards = self.shards
        before = after = -1
        repeated: list[int] = []
        for block in run:
            shard = shards[block & 255]
            key = block >> 8
            mask = shard.get(key)
            if mask is None:
                shard[key] = bit
            elif mask & bit:
                repeated.append(block)
            else:
                # Masks change alike all along a run: each change is computed once.
                if mask is not before:
                    before, after = mask, self.pooled(mask | bit)
                shard[key] = after
        return repeated

    def _store_long(self, bit: int, run: bytes) -> list[int]:
        """Do as `_store_short`, with shard numbers and keys cut out as columns.

        That costs 0.6 us a run and saves 80 ns a block.
        """
        shards = self.shards
        before = after = -1
        repeated: list[int] = []
        keys = bytearray(run[1:])
        keys.append(0)
        keys[7::HASH_BYTES] = bytes(len(run) // HASH_BYTES)
        for number, key in zip(run[::HASH_BYTES], unpack_run(keys), strict=False):
            shard = shards[number]
            mask = shard.get(key)
            if mask is None:
                shard[key] = bit
            elif mask & bit:
                repeated.append(key << 8 | number)
            else:
                if mask is not before:
                    before, after = mask, self.pooled(mask | bit)
                shard[key] = after
        return repeated

    def remove(self, holding: Holding, run: bytes) -> list[int]:
        """Take packed blocks away; return those that were not held."""
        if self._frozen:
            self.keep_frozen(run)
        shards, bit = self.shards, holding.bit
        before = after = -1
        missing: list[int] = []
        blocks = unpack_run(run)
        for block in blocks:
            shard = shards[block & 255]
            key = block >> 8
            mask = shard.get(key)
            if mask == bit:
                del shard[key]
            elif mask is None or not mask & bit:
                missing.append(block)
            else:
                if mask is not before:
                    before, after = mask, self.pooled(mask ^ bit)
                shard[key] = after
        holding.blocks -= len(blocks)
        holding.digest -= sum(blocks)
        if missing:
            holding.blocks += len(missing)
            holding.digest += sum(missing)
        return missing

    def fold(
        self, holding: Holding, data: bytes, epoch: int, first_seq: int, room: int
    ) -> FoldedMessage | None:
        """Take no message for ordinary: events one by one are no slower here."""
        del holding, data, epoch, first_seq, room
        return None

    def fold_ends(
        self,
        holding: Holding,
        data: bytes,
        epoch: int,
        first_seq: int,
        room: int,
        ends: tuple["BlockTable", Holding],
    ) -> tuple[FoldedMessage, int, int] | None:
        """Take no message for ordinary either."""
        del holding, data, epoch, first_seq, room, ends
        return None

    def move(self, run: bytes, mask: int, target: "BlockTable") -> None:
        """Move blocks, which nobody alive outside `mask` holds here, into another table.

        The caller accounts for the holdings.
        """
        target.keep_frozen(run)
        self.keep_frozen(run)
        for block in unpack_run(run):
            number, key = block & 255, block >> 8
            self.shards[number].pop(key, None)
            shard = target.shards[number]
            shard[key] = target.pooled(shard.get(key, 0) | mask)

    def keep_frozen(self, run: bytes) -> None:
        """Let frozen views take what they still need of the shards of a run about to change."""
        for frozen in self._frozen:
            frozen.keep(run)

    def size(self) -> int:
        """Return how many blocks at least one worker holds, released ones included. O(shards)."""
        return sum(map(len, self.shards))

    def clear_bits(self, number: int, dead: int, place: int) -> tuple[int, int]:
        """Clear the bits of `dead` in one shard, whatever `place`; return how many blocks it had,
        and 0: no other place is left. O(its blocks).
        """
        del place
        shard = self.shards[number]
        size = len(shard)
        stale = {mask: mask & ~dead for mask in set(shard.values()) if mask & dead}
        if stale:
            for frozen in self._frozen:
                frozen.keep_shard(number)
            for key in [key for key, mask in shard.items() if mask in stale]:
                mask = stale[shard[key]]
                if mask:
                    shard[key] = self.pooled(mask)
                else:
                    del shard[key]
            if len(shard) < size // 2:
                self.shards[number] = dict(shard)
        return size, 0

    def find_drops(self, hashes: Hashes, live: int, older: "BlockTable | None" = None) -> Drops:
        """Return where along a prompt workers drop out, of this table and an older one together."""
        if older is None:
            return find_drops(self.shards, hashes, live)
        return find_drops(Layers(self.shards, older.shards), hashes, live)

    def view(
        self,
        older: "BlockTable | None",
        names: Sequence[WorkerId],
        live: int,
        ends: EndTables | None = None,
    ) -> PureView:
        """Return a view of this table and an older one; of grouped workers, with their `ends`."""
        return PureView(self, older, names, live, ends)

    def freeze(self) -> FrozenShards:
        """Return this table as it is now, for as long as the result is not closed. O(1)."""
        frozen = FrozenShards(self.shards, self._frozen)
        self._frozen.append(frozen)
        return frozen

    def loader(self, masks: list[int]) -> ShardLoader:
        """Return what fills this table, which must be empty."""
        return ShardLoader(self.shards, [self.pooled(mask) for mask in masks])

    def pieces(self) -> list[object]:
        """Return the shards, to be let go one by one."""
        return list(self.shards)


def clear_released(slots: Slots, tables: Sequence[Table]) -> Iterator[int]:
    """Take released bits out of every mask, a slice of a shard at a time; yield its blocks."""
    dead = slots.begin_reclaim()
    for table in tables:
        for number in range(SHARDS):
            blocks, place = table.clear_bits(number, dead, 0)
            yield blocks
            while place:
                blocks, place = table.clear_bits(number, dead, place)
                yield blocks
    slots.end_reclaim()
