"""What pure Python cannot go below: the C calls alone, with everything else known beforehand.

Whoever keeps a key a block must hash each block, look blocks up and build the answer. These do
that and no more, on the same prompts and events as the rest of bench_index; their rows are named
"floor". What they take is one C call and its cache misses a block, a look-up or a worker.
"""

import struct
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from itertools import repeat

import msgspec
from xxhash import xxh3_64_intdigest

from benchmarks.index.workload import BLOCK_BYTES, BLOCK_SIZE, Request
from kvmesh.core.blocks.events import Removed, Stored, WorkerId, decode_batch
from kvmesh.core.blocks.hash_chain import AHEAD
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes, unpack_run
from kvmesh.core.index.block_table import Groups
from kvmesh.core.index.index import KvIndex

Shard = dict[int, int]
LookUp = tuple[Callable[[int], int | None], int]
Masks = list[int | None]
Column = tuple[tuple[int, ...], list[int]]


def cut(packed: bytes) -> list[bytes]:
    """Return a prompt's blocks."""
    return [packed[at : at + BLOCK_BYTES] for at in range(0, len(packed), BLOCK_BYTES)]


def bare_hashes(blocks: Sequence[bytes]) -> list[int]:
    """One XXH3 call a block; seeded alike, so even the order is free."""
    return [xxh3_64_intdigest(block, 1) for block in blocks]


def look_ups_of(shards: Sequence[Shard], blocks: Sequence[int]) -> list[LookUp]:
    """Return what a search along a prompt looks up: it jumps ahead, and bisects where workers that
    hold all before drop out.
    """
    look_ups: list[LookUp] = []

    def mask(at: int) -> int:
        get, key = shards[blocks[at] & 255].get, blocks[at] >> 8
        look_ups.append((get, key))
        return get(key) or 0

    def bisect(low: int, here: int, high: int, there: int) -> None:
        if here != there and (middle := (low + high) >> 1) != low:
            found = mask(middle)
            bisect(low, here, middle, found)
            bisect(middle, found, high, there)

    low, here, last = 0, mask(0), len(blocks) - 1
    while here and low < last:
        high = min(last, low + max(AHEAD, low >> 2))
        there = mask(high)
        bisect(low, here, high, there)
        low, here = high, there
    return look_ups


def shards_of(index: KvIndex) -> list[Shard]:
    """Return the dicts that an index of Python objects would have."""
    return [held for _, _, held in index.freeze().parts()]


def searched(index: KvIndex, hashes: list[int]) -> tuple[list[LookUp], Groups]:
    """Return the look-ups of one search, and what it finds."""
    asked = BlockHashes.of(hashes, BLOCK_SIZE)
    return look_ups_of(shards_of(index), hashes), index.find_groups(asked)


def bare_matches(search: tuple[list[LookUp], Groups]) -> dict[WorkerId, int]:
    """The look-ups alone, in an order known beforehand, and the dict of the answer."""
    look_ups, groups = search
    for get, key in look_ups:
        get(key)
    matches: dict[WorkerId, int] = {}
    for depth, workers in groups:
        matches.update(dict.fromkeys(workers, depth))
    return matches


class BareChoice(msgspec.Struct, frozen=True):
    """The tokens that one search reads, and the search."""

    tokens: list[int]
    search: tuple[list[LookUp], Groups]


def needed(index: KvIndex, request: Request) -> BareChoice:
    """Return what choosing a worker has to read at the least."""
    asked = BlockHashes(request.tokens, BLOCK_SIZE)
    index.find_groups(asked)
    hashed = len(asked.upto(0)) * BLOCK_SIZE
    return BareChoice(request.tokens[:hashed], searched(index, request.hashes))


def bare_choice(choice: BareChoice) -> dict[WorkerId, int]:
    """Pack the tokens, hash their blocks, find: no loads, no costs, no choice, no reasons."""
    packed = struct.pack(f"<{len(choice.tokens)}I", *choice.tokens)
    bare_hashes(cut(packed))
    return bare_matches(choice.search)


class BareChange(msgspec.Struct, frozen=True):
    """Where the blocks of one event are, by shard and key, and what was there before."""

    stored: bool
    shards: list[Shard]
    keys: list[int]
    before: Masks


def bare_changes(table: list[Shard], message: bytes) -> list[BareChange]:
    """Return what the events of a journal message touch."""
    changes: list[BareChange] = []
    for event in decode_batch(message).events:
        blocks = unpack_run(event.hashes) if isinstance(event, (Stored, Removed)) else ()
        shards, keys = [table[block & 255] for block in blocks], [block >> 8 for block in blocks]
        before = list(map(dict.get, shards, keys))
        changes.append(BareChange(isinstance(event, Stored), shards, keys, before))
    return changes


def bare_apply(prepared: Iterable[tuple[bytes, list[BareChange]]]) -> None:
    """Decode, and set or take each block once, whoever else holds it."""
    for message, changes in prepared:
        decode_batch(message)
        for one in changes:
            if one.stored:
                deque(map(dict.setdefault, one.shards, one.keys, repeat(1)), maxlen=0)
            else:
                deque(map(dict.pop, one.shards, one.keys, repeat(None)), maxlen=0)


def undo(prepared: Iterable[tuple[bytes, list[BareChange]]]) -> None:
    """Put back what was there before `bare_apply`."""
    for _, changes in prepared:
        for one in changes:
            for shard, key, mask in zip(one.shards, one.keys, one.before, strict=True):
                if mask is None:
                    shard.pop(key, None)
                else:
                    shard[key] = mask


def bare_dump(index: KvIndex) -> list[tuple[bytes, list[int]]]:
    """Pack each key and read each mask once."""
    return [(pack_hashes(held), list(held.values())) for held in shards_of(index)]


def bare_columns(index: KvIndex) -> list[Column]:
    """Return each shard's keys and masks."""
    return [(tuple(held), list(held.values())) for held in shards_of(index)]


def bare_restore(columns: Iterable[Column]) -> list[Shard]:
    """Fill the dicts from keys and masks that are objects already."""
    return [dict(zip(keys, masks, strict=True)) for keys, masks in columns]
