"""A whole index put together from parts, checked before it replaces a living one."""

from collections.abc import Iterator, Sequence
from typing import Final

from kvmesh.core.blocks.events import ENDS, Reuse, WorkerId
from kvmesh.core.index.block_table import Holding, TableLoader
from kvmesh.core.index.ends import Ends
from kvmesh.core.index.slots import Slots
from kvmesh.core.index.tier import Tier

_SLICE_SETS: Final = 512


class IndexImage:
    """The tables of an index under construction.

    Worker i of `workers` has bit i; `masks` are the sets of workers, to which parts refer by
    number. Add every part, then go through `account`.
    """

    def __init__(self, workers: Sequence[WorkerId], masks: list[int]) -> None:
        self.slots = Slots()
        self.tiers: list[Tier] = []
        self.ends = Ends()
        self._masks = masks
        self._loaders: dict[int, TableLoader] = {}
        for worker in workers:
            self.slots.assign(worker)
        self._open(0)

    def add(self, tier: int, shard: int, keys: memoryview, numbers: memoryview, width: int) -> bool:
        """Add blocks of a shard: 7 bytes a key, `width` bytes for the number of its mask.

        False when a block comes twice. Raises `IndexError` for a number that there is not.
        """
        self._open(tier)
        return self._loaders[tier].add(shard, keys, numbers, width)

    def follow(self, worker: WorkerId, rule: Reuse) -> None:
        """Have the ends of `worker`, one of `workers`, read by `rule`."""
        self.ends.follow(worker, self.slots.bits[worker], rule)

    def account(self) -> Iterator[None]:
        """Count up what each worker holds, in slices."""
        for tier, loader in self._loaders.items():
            table = self._tier(tier).young
            for number, mask in enumerate(self._masks):
                if number % _SLICE_SETS == 0:
                    yield
                blocks, digest = loader.total(number)
                if not blocks:
                    continue
                for worker in self.slots.decode(mask):
                    holding = table.admit(worker, self.slots.bits[worker])
                    holding.blocks += blocks
                    holding.digest += digest

    def holding(self, tier: int, worker: WorkerId) -> Holding | None:
        """Return what a worker holds, once accounted; None for nothing."""
        known = tier in self._loaders
        return self._tier(tier).young.holdings.get(worker) if known else None

    def _tier(self, tier: int) -> Tier:
        return self.tiers[tier] if tier < ENDS else self.ends.tiers[tier - ENDS]

    def _open(self, tier: int) -> None:
        tiers, first = (self.tiers, 0) if tier < ENDS else (self.ends.tiers, ENDS)
        while tier - first >= len(tiers):
            made = Tier()
            self._loaders[first + len(tiers)] = made.young.loader(self._masks)
            tiers.append(made)
