"""A whole index put together from parts, checked before it replaces a living one."""

from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Final

from kvmesh.core.events import WorkerId
from kvmesh.core.index_slots import Slots
from kvmesh.core.index_table import Holding
from kvmesh.core.index_tier import Tier

_SLICE_SETS: Final = 512


class IndexImage:
    """The tables of an index under construction.

    Worker i of `workers` has bit i; `masks` are the sets of workers, to which parts refer by
    number. Add every part, then go through `account`.
    """

    def __init__(self, workers: Sequence[WorkerId], masks: Sequence[int]) -> None:
        self.slots = Slots()
        self.tiers: list[Tier] = []
        self._masks = masks
        self._counts: list[Counter[int]] = []
        self._sums: list[list[int]] = []
        for worker in workers:
            self.slots.assign(worker)
        self._open(0)

    def add(
        self, tier: int, shard: int, hashes: Sequence[int], keys: Sequence[int], sets: Sequence[int]
    ) -> bool:
        """Add a shard, once: block i is held by `masks[sets[i]]`; False when a block comes twice.

        `keys` are the `hashes` without their lowest byte. About 120 ns a block. Raises `IndexError`
        for a set that there is not.
        """
        self._open(tier)
        sums, masks = self._sums[tier], self._masks
        for block, number in zip(hashes, sets, strict=True):
            sums[number] += block
        self._counts[tier].update(sets)
        held = {key: masks[number] for key, number in zip(keys, sets, strict=True)}
        self.tiers[tier].young.shards[shard] = held
        return len(held) == len(keys)

    def account(self) -> Iterator[None]:
        """Count up what each worker holds, in slices."""
        for tier, counts, sums in zip(self.tiers, self._counts, self._sums, strict=True):
            table = tier.young
            for number, mask in enumerate(self._masks):
                if number % _SLICE_SETS == 0:
                    yield
                if not counts[number]:
                    continue
                table.pooled(mask)
                for worker in self.slots.decode(mask):
                    holding = table.admit(worker, self.slots.bits[worker])
                    holding.blocks += counts[number]
                    holding.digest += sums[number]

    def holding(self, tier: int, worker: WorkerId) -> Holding | None:
        """Return what a worker holds, once accounted; None for nothing."""
        return self.tiers[tier].young.holdings.get(worker) if tier < len(self.tiers) else None

    def _open(self, tier: int) -> None:
        while tier >= len(self.tiers):
            self.tiers.append(Tier())
            self._counts.append(Counter())
            self._sums.append([0] * len(self._masks))
