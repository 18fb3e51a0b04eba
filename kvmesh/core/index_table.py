"""Block hash -> bitmask of the workers that hold it, for one tier."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Final

from kvmesh.core.events import WorkerId
from kvmesh.core.index_search import SHARDS
from kvmesh.core.index_slots import Slots

_MAX_POOL: Final = 1 << 16


class Holding:
    """What one worker holds in one table; `digest` is the sum of its hashes, not yet mod 2^64."""

    __slots__ = ("bit", "blocks", "digest")

    def __init__(self, bit: int) -> None:
        self.bit = bit
        self.blocks = 0
        self.digest = 0


class BlockTable:
    """One table, in `SHARDS` dicts laid out as `index_search.Shards` says.

    Nothing in it is tracked by the garbage collector, however many blocks there are. Masks are
    pooled: equal masks are one object, until the pool was emptied (at 65,536 masks) in between.
    """

    def __init__(self) -> None:
        self.shards: list[dict[int, int]] = [{} for _ in range(SHARDS)]
        self.holdings: dict[WorkerId, Holding] = {}
        self._pool: dict[int, int] = {}
        self._frozen: list[FrozenTable] = []

    def admit(self, worker: WorkerId, bit: int) -> Holding:
        """Return the holding of `worker`, made when there is none."""
        holding = self.holdings.get(worker)
        if holding is None:
            holding = self.holdings[worker] = Holding(self.pooled(bit))
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

    def store(self, holding: Holding, run: Sequence[int]) -> None:
        """Add blocks; those already held change nothing."""
        for frozen in self._frozen:
            frozen.keep(run)
        shards, bit = self.shards, holding.bit
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
                if mask is not before:
                    before, after = mask, self.pooled(mask | bit)
                shard[key] = after
        holding.blocks += len(run) - len(repeated)
        holding.digest += sum(run) - sum(repeated)

    def remove(self, holding: Holding, run: Sequence[int]) -> list[int]:
        """Take blocks away; return those that were not held."""
        for frozen in self._frozen:
            frozen.keep(run)
        shards, bit = self.shards, holding.bit
        before = after = -1
        missing: list[int] = []
        for block in run:
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
        holding.blocks -= len(run) - len(missing)
        holding.digest -= sum(run) - sum(missing)
        return missing

    def discard(self, run: Sequence[int]) -> None:
        """Take blocks away from everyone. The caller accounts for the holdings."""
        for frozen in self._frozen:
            frozen.keep(run)
        for block in run:
            self.shards[block & 255].pop(block >> 8, None)

    def merge(self, run: Sequence[int], mask: int) -> None:
        """Add blocks for everyone in `mask`. The caller accounts for the holdings."""
        for frozen in self._frozen:
            frozen.keep(run)
        for block in run:
            shard, key = self.shards[block & 255], block >> 8
            shard[key] = self.pooled(shard.get(key, 0) | mask)

    def size(self) -> int:
        """Return how many blocks at least one worker holds, released ones included. O(shards)."""
        return sum(map(len, self.shards))

    def clear_bits(self, number: int, dead: int) -> int:
        """Clear the bits of `dead` in one shard; return how many blocks it had. O(its blocks)."""
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
        return size

    def freeze(self) -> "FrozenTable":
        """Return this table as it is now, for as long as the result is not closed. O(1)."""
        frozen = FrozenTable(self.shards, self._frozen)
        self._frozen.append(frozen)
        return frozen


def clear_released(slots: Slots, tables: Sequence[BlockTable]) -> Iterator[int]:
    """Take released bits out of every mask, a shard at a time; yield how many blocks it had."""
    dead = slots.begin_reclaim()
    for table in tables:
        for number in range(SHARDS):
            yield table.clear_bits(number, dead)
    slots.end_reclaim()


class FrozenTable:
    """A table as it was: a shard is copied only when it is about to change before it was read.

    Copying 4,000 blocks (a shard of a 1M-block table) takes 0.1 ms. `close` it when done.
    """

    def __init__(self, shards: list[dict[int, int]], register: "list[FrozenTable]") -> None:
        self._shards = shards
        self._register = register
        self._pending = set(range(SHARDS))
        self._copies: dict[int, dict[int, int]] = {}

    def keep(self, run: Iterable[int]) -> None:
        """Copy the shards of `run` if they are still to be read."""
        for number in {block & 255 for block in run} & self._pending:
            self.keep_shard(number)

    def keep_shard(self, number: int) -> None:
        """Copy one shard if it is still to be read."""
        if number in self._pending:
            self._pending.discard(number)
            self._copies[number] = self._shards[number].copy()

    def read(self) -> Iterator[tuple[int, dict[int, int]]]:
        """Yield each shard's number and content once; not to be changed, or kept for long."""
        for number in range(SHARDS):
            copy = self._copies.pop(number, None)
            if copy is None:
                self._pending.discard(number)
                copy = self._shards[number]
            yield number, copy

    def close(self) -> None:
        """Copy no more; safe to call twice."""
        if self in self._register:
            self._register.remove(self)
