"""The dicts of a table, read as they were at one moment, and filled from a snapshot."""

import struct
from collections import Counter
from collections.abc import Sequence
from typing import Final, Self

from kvmesh.core.blocks.events import HASH_BYTES
from kvmesh.core.blocks.hashing import pack_hashes, unpack_run
from kvmesh.core.index.search import SHARDS

KEY_BYTES: Final = 7
NARROW: Final = 1 << 16
"""So many sets have numbers of two bytes."""

_CODES: Final = {2: "H", 4: "I"}


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


def columns_of(held: dict[int, int], numbers: dict[int, int]) -> tuple[int, int, bytes]:
    """Return how many blocks, the width of their sets' numbers, and the keys and numbers."""
    sets = list(map(numbers.__getitem__, held.values()))
    width = 2 if len(numbers) <= NARROW else 4
    keys = bytearray(pack_hashes(held))
    del keys[KEY_BYTES::HASH_BYTES]
    return len(held), width, bytes(keys) + struct.pack(f"<{len(sets)}{_CODES[width]}", *sets)


class PurePart:
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
    """A table as it was: a shard is copied only when it is about to change before it was read.

    Copying 4,000 blocks (a shard of a 1M-block table) takes 0.1 ms. `close` it when done.
    """

    def __init__(self, shards: list[dict[int, int]], register: "list[FrozenShards]") -> None:
        self._shards = shards
        self._register = register
        self._pending = set(range(SHARDS))
        self._copies: dict[int, dict[int, int]] = {}

    def keep(self, run: bytes) -> None:
        """Copy the shards of a packed run if they are still to be read."""
        for number in self._pending.intersection(run[::HASH_BYTES]):
            self.keep_shard(number)

    def keep_shard(self, number: int) -> None:
        """Copy one shard if it is still to be read."""
        if number in self._pending:
            self._pending.discard(number)
            self._copies[number] = self._shards[number].copy()

    def blocks(self, number: int) -> int:
        """Return how many blocks of one shard there are to be read."""
        return len(self._copies.get(number, self._shards[number]))

    def take(self, number: int) -> dict[int, int]:
        """Return one shard's content once; not to be changed, or kept for long."""
        copy = self._copies.pop(number, None)
        if copy is None:
            self._pending.discard(number)
            copy = self._shards[number]
        return copy

    def columns(
        self,
        number: int,
        live: int | None,
        numbers: dict[int, int],
        /,
        *older: Self,
    ) -> tuple[int, int, bytes]:
        """Return one shard, with that of an older table, as a snapshot has it. About 0.15 us a
        block.
        """
        held = merged([one.take(number) for one in (self, *older)])
        return columns_of(held if live is None else masked(held, live), numbers)

    def part(
        self,
        number: int,
        live: int | None,
        numbers: dict[int, int],
        /,
        *older: Self,
    ) -> PurePart:
        """Return what yields the same."""
        return PurePart(*self.columns(number, live, numbers, *older))

    def close(self) -> None:
        """Copy no more; safe to call twice."""
        if self in self._register:
            self._register.remove(self)


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
