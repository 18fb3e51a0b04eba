"""The search for how deep each worker's cached prefix reaches.

A table maps block -> bitmask of the workers that hold it. Every worker's set is prefix-closed, so
along a prompt the masks only lose bits: two equal masks have nothing but equal masks between them,
and a bisection finds every depth at which a worker drops out without looking at all blocks.
"""

from collections.abc import Iterator, Sequence
from typing import Final, Protocol

from kvmesh.core.blocks.hash_chain import AHEAD
from kvmesh.core.blocks.hashing import Hashes, extend_hash, ids_behind, lookahead_digest
from kvmesh.core.index.block_table import Drops, EndTables, Table

SHARD_BITS: Final = 8
SHARDS: Final = 1 << SHARD_BITS


class Shard(Protocol):
    """One part of a table, by the low bits of the hash."""

    def get(self, key: int, /) -> int | None:
        """Return the mask of block `key << SHARD_BITS | shard number`, None when nobody has it."""
        ...


class Shards(Protocol):
    """A table: block hash h is key `h >> 8` of shard `h & 255`; equal masks are one object.

    Many small dicts grow in small steps (2 ms, where one dict of 5M blocks stops for 200 ms), and
    integers below 2^60 take 32 bytes where whole hashes take 48.
    """

    def __getitem__(self, number: int, /) -> Shard:
        """Return shard `number`."""
        ...


class Layers:
    """Two tables read as one: a worker holds a block when either says so.

    One object serves one search: it keeps equal masks one object.
    """

    def __init__(self, newer: Shards, older: Shards) -> None:
        self._newer = newer
        self._older = older
        self._masks: dict[int, int] = {}

    def __getitem__(self, number: int, /) -> "_Both":
        """Return shard `number` of both."""
        return _Both(self._newer[number], self._older[number], self._masks)


class _Both:
    __slots__ = ("_masks", "_newer", "_older")

    def __init__(self, newer: Shard, older: Shard, masks: dict[int, int]) -> None:
        self._newer = newer
        self._older = older
        self._masks = masks

    def get(self, key: int, /) -> int | None:
        mask = (self._newer.get(key) or 0) | (self._older.get(key) or 0)
        return self._masks.setdefault(mask, mask) if mask else None


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
    """Return the drops between the posts (index, mask); no live worker holds block `high`.

    Masks are compared by identity: quick, and it errs on the safe side, for taking equal masks for
    different ones costs look-ups only. Half of a routing decision is spent here, hence the locals.
    """
    drops: Drops = []
    seen = 0
    beyond: int | None = None
    while posts:
        low, mask = posts.pop()
        if mask is not beyond:
            while (middle := (low + high) >> 1) != low:
                block = blocks[middle]
                found = shards[block & 255].get(block >> 8)
                if found is beyond:
                    high = middle
                elif found is mask:
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


def cut_drops(ends: EndTables, drops: Drops, hashes: Hashes) -> tuple[Drops, Drops]:
    """Return `drops` by where hits of grouped workers end, and the drops of those who lose by it.

    A hit is the longest of the held prefixes that has an end, less what is dropped.
    O(drops + blocks without an end before where a worker drops out).
    """
    young, old, rules = ends
    grouped = sum(mask for _, _, mask in rules)
    if not any(mask & grouped for _, mask in drops):
        return drops, []
    left = {depth: mask & ~grouped for depth, mask in drops}
    cut: Drops = []
    for lookahead, dropped, members in rules:
        tables = [table for table in (young, old) if table is not None]
        for depth, place, mask in _find_ends(tables, lookahead, members, drops, hashes):
            hit = max(place - dropped, 0)
            left[hit] = left.get(hit, 0) | mask
            if hit < depth:
                cut.append((depth, mask))
    depths = sorted(left, reverse=True)
    return [(depth, left[depth]) for depth in depths if depth and left[depth]], cut


def _find_ends(
    tables: Sequence[Table], lookahead: int, members: int, drops: Drops, hashes: Hashes
) -> Iterator[tuple[int, int, int]]:
    """Yield (depth, where the last end at or before it is, mask) of all `members` of `drops`."""
    ahead = [(depth, mask & members) for depth, mask in reversed(drops) if mask & members]
    waiting: Drops = []
    place = 0
    while waiting or ahead:
        if not waiting:
            place = ahead[-1][0]
        if ahead and ahead[-1][0] == place:
            waiting.append(ahead.pop())
        ended = _ended(tables, lookahead, place, hashes) if place else members
        still: Drops = []
        for depth, mask in waiting:
            # Without the tokens a block that is held behind this one tells that they fit.
            here = mask & ended if ended is not None else mask if depth > place else 0
            if here:
                yield depth, place, here
            if mask != here:
                still.append((depth, mask & ~here))
        waiting = still
        place -= 1


def _ended(tables: Sequence[Table], lookahead: int, place: int, hashes: Hashes) -> int | None:
    """Return who has an end behind the first `place` blocks, None where nobody can tell."""
    block = hashes.upto(place)[place - 1]
    if lookahead:
        ids = ids_behind(hashes, place, lookahead)
        if not ids:
            return None if ids is None else 0
        block = extend_hash(block, lookahead_digest(ids))
    mask = 0
    for table in tables:
        mask |= table.mask(block)
    return mask
