"""An index as it was at one moment, read while the index moves on."""

from collections.abc import Container, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from kvmesh.core.blocks.events import ENDS, Reuse, WorkerId
from kvmesh.core.index.block_table import FrozenTable, Holding
from kvmesh.core.index.search import SHARDS
from kvmesh.core.index.slots import Slots
from kvmesh.core.index.tier import Tier

KEY_BYTES: Final = 7


class SetNumbers(dict[int, int]):
    """mask -> number, in order of appearance."""

    def __missing__(self, mask: int) -> int:
        number = self[mask] = len(self)
        return number


def masked(held: dict[int, int], live: int) -> dict[int, int]:
    """Return what is left of key -> mask when only bits of `live` count."""
    return {key: mask & live for key, mask in held.items() if mask & live}


def merged(shards: Sequence[dict[int, int]]) -> dict[int, int]:
    """Return key -> mask of several tables' shards together, those of the first one first."""
    first = shards[0]
    for other in shards[1:]:
        first = first.copy()
        for key, mask in other.items():
            first[key] = first.get(key, 0) | mask
    return first


_U64: Final = (1 << 64) - 1


MOST_AT_ONCE: Final = 1 << 15
"""Blocks of a shard that are written in one go, 1 ms: shards of an index of 8M have so many."""


class Part(NamedTuple):
    """Whose columns these are, of how many blocks, and how many bytes the number of a set takes."""

    tier: int
    shard: int
    blocks: int
    width: int


class FrozenWorker(msgspec.Struct, frozen=True):
    """What one worker held: its bit in the masks, and blocks and digest per tier."""

    worker: WorkerId
    bit: int
    blocks: tuple[int, ...]
    digests: tuple[int, ...]
    truncated: bool


class FrozenEnds(msgspec.Struct, frozen=True):
    """By which rule hits of one worker ended, and how many ends it had, with their digest, per
    tier.
    """

    worker: WorkerId
    rule: Reuse
    ends: tuple[int, ...]
    digests: tuple[int, ...]


def freeze_ends(worker: WorkerId, rule: Reuse, held: Sequence[Sequence[Holding]]) -> FrozenEnds:
    """Return a grouped worker as it is now; `held` are its ends in the tables of each tier."""
    counts, digests = _sums(held)
    return FrozenEnds(worker, rule, counts, digests)


def freeze_worker(
    worker: WorkerId, bit: int, held: Sequence[Sequence[Holding]], *, truncated: bool
) -> FrozenWorker:
    """Return a worker as it is now; `held` is what it holds in the tables of each tier."""
    blocks, digests = _sums(held)
    return FrozenWorker(worker, bit, blocks, digests, truncated)


def _sums(held: Sequence[Sequence[Holding]]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return how many blocks there are in each tier, and the sum of their hashes."""
    blocks = tuple(sum(one.blocks for one in holdings) for holdings in held)
    return blocks, tuple(sum(one.digest for one in holdings) & _U64 for holdings in held)


class FrozenIndex:
    """A view of every block at the moment of `KvIndex.freeze`, without a copy of all of them.

    `tiers` are by their number in events; `grouped` are the workers with a rule of reuse.
    Freezing is O(workers). Then a block is copied only if its holders change before it was read,
    and one that is new is left out. Read `parts` once, to the end, or `close`.
    """

    def __init__(
        self,
        workers: tuple[FrozenWorker, ...],
        tiers: Mapping[int, tuple[FrozenTable, ...]],
        *,
        unclean: bool,
        grouped: tuple[FrozenEnds, ...] = (),
    ) -> None:
        self.workers = workers
        self.grouped = grouped
        self._live = sum(one.bit for one in workers)
        self._tiers = tiers
        self._unclean = unclean

    def parts(self) -> Iterator[tuple[int, int, dict[int, int]]]:
        """Yield (tier, shard number, key -> mask), every shard of every tier once, in order.

        The dict may be the index's own: finish with it before the index changes again.
        """
        for tier, shard, tables in self._shards():
            yield tier, shard, self._held(shard, tables)

    def columns(self, numbers: SetNumbers) -> Iterator[tuple[Part | None, bytes]]:
        """Yield the same as a snapshot has it: what a shard's part is, and its columns.

        `numbers` gets the number of each mask, in order of appearance. A large shard is yielded in
        slices: what it is comes once, and before and behind that None with more columns or none.
        """
        live = self._live if self._unclean else None
        for tier, shard, tables in self._shards():
            young, *older = tables
            if sum(table.blocks(shard) for table in tables) <= MOST_AT_ONCE:
                *sizes, columns = young.columns(shard, live, numbers, *older)
                yield Part(tier, shard, *sizes), columns
                continue
            slices = young.part(shard, live, numbers, *older)
            while (size := slices.prepare()) is None:
                yield None, b""
            yield Part(tier, shard, *size), b""
            while (piece := slices.piece()) is not None:
                yield None, piece

    def close(self) -> None:
        """Let the index go on without copying; safe to call twice."""
        for tables in self._tiers.values():
            for table in tables:
                table.close()

    def _shards(self) -> Iterator[tuple[int, int, tuple[FrozenTable, ...]]]:
        """Yield every shard of every tier, with the tables to read it from; close at the end."""
        try:
            for tier, tables in self._tiers.items():
                for shard in range(SHARDS):
                    yield tier, shard, tables
        finally:
            self.close()

    def _held(self, shard: int, tables: tuple[FrozenTable, ...]) -> dict[int, int]:
        held = merged([table.take(shard) for table in tables])
        return masked(held, self._live) if self._unclean else held


def freeze_index(
    slots: Slots,
    truncated: Container[WorkerId],
    tiers: Sequence[tuple[int, Tier]],
    grouped: tuple[FrozenEnds, ...],
) -> FrozenIndex:
    """Return what the tables of all `tiers`, by their number in events, hold as it is now."""
    near = [tier for number, tier in tiers if number < ENDS]
    workers = tuple(
        freeze_worker(one, bit, [tier.holdings(one) for tier in near], truncated=one in truncated)
        for one, bit in slots.bits.items()
    )
    tables = {number: tuple(one.freeze() for one in tier.tables()) for number, tier in tiers}
    return FrozenIndex(workers, tables, unclean=slots.released() > 0, grouped=grouped)
