"""What one engine holds, as bytes that another process can go on from."""

import struct
from collections.abc import Sequence
from typing import Final

import msgspec

from kvmesh.bounds import MAX_COUNT
from kvmesh.errors import CodecError

FARTHEST: Final = 63

MOST_TIERS: Final = 8
"""Tiers of one engine; which of them stored a block is one byte."""

_HEAD: Final = struct.Struct("<QQQHB")


class SavedCache(msgspec.Struct, frozen=True, array_like=True):
    """The blocks of an engine of one cache group, by its own hashes.

    `group` is -1 and `block_size` 0 while no event said them; `tiers` are those in use, nearest
    first. Each of `blocks`, little-endian: the engine's hash, the content before the block and the
    namespace's root as u64; how many contents it stands for as u16; the tiers that stored it, a bit
    each, as u8; the contents as u64; for each such tier how often as u32. Of several contents of
    one hash the oldest comes first.
    """

    group: int
    block_size: int
    tiers: tuple[int, ...]
    blocks: bytes


class SavedBlock(msgspec.Struct, frozen=True):
    """One of the blocks; `counts` has how often each of `SavedCache.tiers` stored it."""

    engine_hash: int
    parent: int
    root: int
    contents: tuple[int, ...]
    counts: tuple[int, ...]


def pack_block(block: SavedBlock) -> bytes:
    """Return the bytes of one block."""
    stored = sum((count > 0) << tier for tier, count in enumerate(block.counts))
    said = [count for count in block.counts if count]
    numbers = len(block.contents)
    head = _HEAD.pack(block.engine_hash, block.parent, block.root, numbers, stored)
    return head + struct.pack(f"<{numbers}Q{len(said)}I", *block.contents, *said)


def check_saved(saved: SavedCache) -> None:
    """Raise `CodecError` unless the figures around the blocks can be an engine's."""
    tiers: Sequence[int] = saved.tiers
    in_order = list(tiers) == sorted(set(tiers))
    if not in_order or not 0 < len(tiers) <= MOST_TIERS or tiers[0] != 0 or tiers[-1] > FARTHEST:
        raise CodecError(f"saved cache has the tiers {list(tiers)[: MOST_TIERS + 1]}")
    if not -1 <= saved.group <= MAX_COUNT or not 0 <= saved.block_size <= MAX_COUNT:
        raise CodecError(f"saved cache has group {saved.group}, block size {saved.block_size}")
