"""The naive model of kvmesh/native/index/search.c, on tables of block -> mask of those who hold it.

Along a prompt of prefix-closed workers the masks only lose bits, so a bisection finds every depth
at which a worker drops out. The compiled search takes the same steps, also where masks do not.
"""

from collections.abc import Sequence
from typing import Protocol

from kvmesh.core.blocks.hash_chain import AHEAD
from kvmesh.core.blocks.hashing import Hashes
from kvmesh.core.index.block_table import Drops


class Shard(Protocol):
    """One part of a table, by the low bits of the hash."""

    def get(self, key: int, /) -> int | None:
        """Return the mask of block `key << 8 | shard number`, None when nobody has it."""
        ...


class Shards(Protocol):
    """A table: block hash h is key `h >> 8` of shard `h & 255`."""

    def __getitem__(self, number: int, /) -> Shard:
        """Return shard `number`."""
        ...


class Layers:
    """Two tables read as one: a worker holds a block when either says so."""

    def __init__(self, newer: Shards, older: Shards) -> None:
        self._newer = newer
        self._older = older

    def __getitem__(self, number: int, /) -> "_Both":
        """Return shard `number` of both."""
        return _Both(self._newer[number], self._older[number])


class _Both:
    def __init__(self, newer: Shard, older: Shard) -> None:
        self._newer = newer
        self._older = older

    def get(self, key: int, /) -> int | None:
        return (self._newer.get(key) or 0) | (self._older.get(key) or 0) or None


def find_drops(shards: Shards, hashes: Hashes, live: int) -> Drops:
    """Return where along the prompt workers drop out; only bits of `live` count.

    Bits outside `live` may stand anywhere. O(drops x log(depth)) look-ups; hashes at most AHEAD
    blocks, or a quarter, of the prompt beyond what is held.
    """
    asked = AHEAD
    blocks = hashes.upto(asked)
    if not blocks:
        return []
    posts: list[tuple[int, int]] = []
    low = 0
    while True:
        block = blocks[low]
        mask = shards[block & 255].get(block >> 8)
        if mask is None or not mask & live:
            return _bisect(shards, blocks, posts, low, live) if posts else []
        posts.append((low, mask))
        last = len(blocks) - 1
        if last == low:
            # Fewer than were asked for are all there are.
            if last + 1 >= asked:
                asked = low + 1 + max(AHEAD, low >> 2)
                blocks = hashes.upto(asked)
                last = len(blocks) - 1
            if last == low:
                return _bisect(shards, blocks, posts, low + 1, live)
        low = last


def _bisect(
    shards: Shards, blocks: Sequence[int], posts: list[tuple[int, int]], high: int, live: int
) -> Drops:
    """Return the drops between the posts (index, mask); no live worker holds block `high`."""
    drops: Drops = []
    seen = 0
    beyond: int | None = None
    while posts:
        low, mask = posts.pop()
        if mask != beyond:
            while (middle := (low + high) >> 1) != low:
                block = blocks[middle]
                found = shards[block & 255].get(block >> 8)
                if found == beyond:
                    high = middle
                elif found == mask:
                    low = middle
                else:
                    posts.append((low, mask))
                    low, mask = middle, found or 0
            ending = mask & live & ~seen
            if ending:
                drops.append((low + 1, ending))
                seen |= ending
        high, beyond = low, mask
    return drops
