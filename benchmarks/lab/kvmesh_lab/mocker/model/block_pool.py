"""Paged KV blocks of one engine: LRU eviction, prefix reuse, several copies of one block.

Behaves as the block pool of vLLM v1, but blocks that hold no reusable content are only counted:
the free queue always is "all blocks without content, then cached blocks, least recently used
first", because vLLM puts the former to the front of its queue and the latter to the end.

Source: vLLM `v1/core/block_pool.py`, `KVCacheManager.free` (0.32).
"""

from collections import OrderedDict
from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import NewType, cast

from kvmesh.errors import ConfigError

Handle = NewType("Handle", int)
"""One cached block: its sequence hash, or a negative number for a further copy of that content."""


class BlockPool:
    """All blocks of one engine, and which sequence hashes they hold.

    A request holds cached blocks (by handle, with a reference count, shared) and blank ones (its
    own, only counted). Every method is O(blocks it is given), 0.1-0.2 us a block.
    """

    def __init__(self, num_blocks: int) -> None:
        """Make `num_blocks` blocks, of which one is the engine's null block, never usable."""
        if num_blocks < 2:  # noqa: PLR2004  one usable block beside the null block
            raise ConfigError(f"num_gpu_blocks is {num_blocks}: at least 2 are needed")
        self.usable_blocks = num_blocks - 1
        self.free_blocks = self.usable_blocks
        self._references: dict[Handle, int] = {}
        self._free_cached: OrderedDict[Handle, None] = OrderedDict()
        self._copies: dict[int, list[Handle]] = {}
        self._hash_of_copy: dict[Handle, int] = {}
        self._last_copy = 0

    @property
    def active_blocks(self) -> int:
        """Return how many blocks requests hold; a shared one counts once."""
        return self.usable_blocks - self.free_blocks

    @property
    def cached_blocks(self) -> int:
        """Return how many blocks hold reusable content, held or free, copies included."""
        return len(self._references)

    def find_cached(self, hashes: Sequence[int], limit: int) -> list[Handle]:
        """Return the cached blocks of the longest prefix of `hashes[:limit]` that is cached."""
        limit = min(limit, len(hashes))
        is_cached = self._references.__contains__
        found: list[Handle] = list(takewhile(is_cached, _as_handles(hashes[:limit])))
        copies = self._copies
        while copies and len(found) < limit and hashes[len(found)] in copies:
            found.append(copies[hashes[len(found)]][0])
            found += takewhile(is_cached, _as_handles(hashes[len(found) : limit]))
        return found

    def find(self, key: int) -> Handle | None:
        """Return a cached block of this hash, None if there is none. O(1)."""
        handle = Handle(key)
        if handle in self._references:
            return handle
        copies = self._copies.get(key)
        return copies[0] if copies else None

    def count_free(self, handles: Sequence[Handle]) -> int:
        """Return how many of the blocks nobody holds: to hold them takes as many free blocks."""
        return list(map(self._references.__getitem__, handles)).count(0)

    def hold(self, handles: Iterable[Handle]) -> None:
        """Add a reference to each; a free one leaves the eviction queue."""
        references, free = self._references, self._free_cached
        for handle in handles:
            count = references[handle]
            if not count:
                del free[handle]
                self.free_blocks -= 1
            references[handle] = count + 1

    def take(self, count: int) -> list[int]:
        """Take `count` free blocks as blank ones, return the hashes evicted for them, in order.

        A hash is returned once per copy, even if another copy of it stays.
        """
        assert count <= self.free_blocks
        blank = self.free_blocks - len(self._free_cached)
        self.free_blocks -= count
        return self._evict(count - blank) if count > blank else []

    def store(self, hashes: Sequence[int]) -> list[Handle]:
        """Give as many of the caller's blank blocks content, return their handles.

        Content that is cached already makes a further copy, as in vLLM.
        """
        references, copies = self._references, self._copies
        if references.keys().isdisjoint(hashes) and (
            not copies or copies.keys().isdisjoint(hashes)
        ):
            fresh = dict.fromkeys(_as_handles(hashes), 1)
            if len(fresh) == len(hashes):
                references.update(fresh)
                return list(fresh)
        return [self._store_one(sequence_hash) for sequence_hash in hashes]

    def release(self, handles: Sequence[Handle], blank_blocks: int) -> None:
        """Give back what a request holds; `handles` in chain order, the tail is evicted first."""
        references, free = self._references, self._free_cached
        freed = blank_blocks
        for handle in reversed(handles):
            count = references[handle] - 1
            references[handle] = count
            if not count:
                free[handle] = None
                freed += 1
        self.free_blocks += freed

    def reset(self) -> bool:
        """Forget all content; False, and nothing done, while any block is held."""
        if self.active_blocks:
            return False
        for state in (self._references, self._free_cached, self._copies, self._hash_of_copy):
            state.clear()
        return True

    def hashes(self) -> list[int]:
        """Return the hash of every cached block, copies included, in no order. O(cached)."""
        return [self._hash_of_copy.get(handle, handle) for handle in self._references]

    def _store_one(self, sequence_hash: int) -> Handle:
        """Hold a new block; its handle is the hash itself unless that content is cached already."""
        handle = Handle(sequence_hash)
        known = self._copies.get(sequence_hash)
        if known is not None or handle in self._references:
            if known is None:
                known = self._copies[sequence_hash] = [handle]
            self._last_copy -= 1
            handle = Handle(self._last_copy)
            known.append(handle)
            self._hash_of_copy[handle] = sequence_hash
        self._references[handle] = 1
        return handle

    def _evict(self, count: int) -> list[int]:
        references, pop = self._references, self._free_cached.popitem
        handles = [pop(last=False)[0] for _ in range(count)]
        for handle in handles:
            del references[handle]
        if not self._copies:
            return list(handles)
        return [self._forget_copy(handle) for handle in handles]

    def _forget_copy(self, handle: Handle) -> int:
        """Return the hash of an evicted block, and drop it from the copies of that hash."""
        sequence_hash = self._hash_of_copy.pop(handle, handle)
        copies = self._copies.get(sequence_hash)
        if copies is not None:
            copies.remove(handle)
            if not copies or (len(copies) == 1 and copies[0] == sequence_hash):
                del self._copies[sequence_hash]
        return sequence_hash


def _as_handles(hashes: Sequence[int]) -> Sequence[Handle]:
    """Return `hashes` itself, typed: a hash is the handle of its oldest block."""
    return cast("Sequence[Handle]", hashes)
