"""A whole index put together from parts, checked before it replaces a living one."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from kvmesh.core.events import WorkerId
from kvmesh.core.index_search import SHARD_BITS
from kvmesh.core.index_slots import Slots
from kvmesh.core.index_table import Holding
from kvmesh.core.index_tier import Tier

_SLICE_SETS: Final = 512


class _Totals:
    """Per set of workers: how many blocks, and the sums of their keys and of their shards."""

    __slots__ = ("blocks", "keys", "shards")

    def __init__(self, sets: int) -> None:
        self.blocks = [0] * sets
        self.keys = [0] * sets
        self.shards = [0] * sets


class IndexImage:
    """The tables of an index under construction.

    Worker i of `workers` has bit i; `masks` are the sets of workers, to which parts refer by
    number. Add every part, then go through `account`.
    """

    def __init__(self, workers: Sequence[WorkerId], masks: Sequence[int]) -> None:
        self.slots = Slots()
        self.tiers: list[Tier] = []
        self._masks = masks
        self._totals: list[_Totals] = []
        for worker in workers:
            self.slots.assign(worker)
        self._open(0)

    def add(self, tier: int, shard: int, keys: Sequence[int], sets: Sequence[int]) -> bool:
        """Add a shard, once: block i is held by `masks[sets[i]]`; False when a block comes twice.

        `keys` are the blocks' hashes without their lowest byte, the shard's number. About 120 ns a
        block. Raises `IndexError` for a set that there is not.
        """
        self._open(tier)
        totals, masks = self._totals[tier], self._masks
        sums = totals.keys
        for key, number in zip(keys, sets, strict=True):
            sums[number] += key
        for number, count in Counter(sets).items():
            totals.blocks[number] += count
            totals.shards[number] += count * shard
        held = {key: masks[number] for key, number in zip(keys, sets, strict=True)}
        self.tiers[tier].young.shards[shard] = held
        return len(held) == len(keys)

    def account(self) -> Iterator[None]:
        """Count up what each worker holds, in slices."""
        for tier, totals in zip(self.tiers, self._totals, strict=True):
            table = tier.young
            for number, mask in enumerate(self._masks):
                if number % _SLICE_SETS == 0:
                    yield
                blocks = totals.blocks[number]
                if not blocks:
                    continue
                table.pooled(mask)
                digest = (totals.keys[number] << SHARD_BITS) + totals.shards[number]
                for worker in self.slots.decode(mask):
                    holding = table.admit(worker, self.slots.bits[worker])
                    holding.blocks += blocks
                    holding.digest += digest

    def holding(self, tier: int, worker: WorkerId) -> Holding | None:
        """Return what a worker holds, once accounted; None for nothing."""
        return self.tiers[tier].young.holdings.get(worker) if tier < len(self.tiers) else None

    def _open(self, tier: int) -> None:
        while tier >= len(self.tiers):
            self.tiers.append(Tier())
            self._totals.append(_Totals(len(self._masks)))
