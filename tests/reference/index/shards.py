"""The naive models of kvmesh/native/table/frozen.c, part.c and loader.c: a table's dicts as they
were at one moment, and filled from a snapshot.
"""

import struct
from collections import Counter
from typing import Final

from kvmesh.core.blocks.events import HASH_BYTES
from kvmesh.core.blocks.hashing import pack_hashes, unpack_run
from kvmesh.core.index.freeze import KEY_BYTES, masked, merged

NARROW: Final = 1 << 16
"""So many sets have numbers of two bytes."""

_CODES: Final = {2: "H", 4: "I"}


def columns_of(held: dict[int, int], numbers: dict[int, int]) -> tuple[int, int, bytes]:
    """Return how many blocks, the width of their sets' numbers, and the keys and numbers."""
    sets = list(map(numbers.__getitem__, held.values()))
    width = 2 if len(numbers) <= NARROW else 4
    keys = bytearray(pack_hashes(held))
    del keys[KEY_BYTES::HASH_BYTES]
    return len(held), width, bytes(keys) + struct.pack(f"<{len(sets)}{_CODES[width]}", *sets)


class NaivePart:
    """The columns of one shard, made in one go."""

    def __init__(self, blocks: int, width: int, columns: bytes) -> None:
        self._size = blocks, width
        self._left = [columns]

    def prepare(self) -> tuple[int, int] | None:
        """Return how many blocks there are, and how many bytes the number of a set takes."""
        return self._size

    def piece(self) -> bytes | None:
        """Return the columns, and None behind them."""
        return self._left.pop() if self._left else None


class FrozenShards:
    """A table as it was: a copy."""

    def __init__(self, shards: list[dict[int, int]]) -> None:
        self._shards = [shard.copy() for shard in shards]

    def blocks(self, number: int) -> int:
        """Return how many blocks of one shard there are to be read."""
        return len(self._shards[number])

    def take(self, number: int) -> dict[int, int]:
        """Return one shard's content."""
        return self._shards[number]

    def columns(
        self, number: int, live: int | None, numbers: dict[int, int], *older: "FrozenShards"
    ) -> tuple[int, int, bytes]:
        """Return one shard, with that of an older table, as a snapshot has it."""
        held = merged([one.take(number) for one in (self, *older)])
        return columns_of(held if live is None else masked(held, live), numbers)

    def part(
        self, number: int, live: int | None, numbers: dict[int, int], *older: "FrozenShards"
    ) -> NaivePart:
        """Return what yields the same."""
        return NaivePart(*self.columns(number, live, numbers, *older))

    def close(self) -> None:
        """Do nothing: nothing is copied later."""


class ShardLoader:
    """Fills empty dicts with the parts of a snapshot, and counts what each mask got."""

    def __init__(self, shards: list[dict[int, int]], masks: list[int]) -> None:
        self._shards = shards
        self._masks = masks
        self._counts: Counter[int] = Counter()
        self._sums = [0] * len(masks)

    def add(self, shard: int, keys: memoryview, numbers: memoryview, width: int) -> bool:
        """Add blocks of a shard; False when a key comes twice. About 120 ns a block.

        Raises `IndexError` for a number that there is not.
        """
        sums, masks = self._sums, self._masks
        sets: tuple[int, ...] = struct.unpack(f"<{len(numbers) // width}{_CODES[width]}", numbers)
        hashes, whole = _widen(keys, shard)
        for block, number in zip(hashes, sets, strict=True):
            sums[number] += block
        self._counts.update(sets)
        held = self._shards[shard]
        before = len(held)
        held.update({key: masks[number] for key, number in zip(whole, sets, strict=True)})
        return len(held) - before == len(whole)

    def total(self, number: int) -> tuple[int, int]:
        """Return how many blocks a mask got, and the sum of their hashes."""
        return self._counts[number], self._sums[number]


def _widen(column: memoryview, shard: int) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the hashes of 7-byte keys of a shard, and the keys."""
    narrow = bytes(column)
    keys = bytearray(len(narrow) // KEY_BYTES * HASH_BYTES)
    for place in range(KEY_BYTES):
        keys[place::HASH_BYTES] = narrow[place::KEY_BYTES]
    hashes = bytearray(len(keys))
    hashes[1:] = keys[:-1]
    hashes[::HASH_BYTES] = bytes((shard,)) * (len(keys) // HASH_BYTES)
    return unpack_run(hashes), unpack_run(keys)
