"""What is followed of one engine's blocks, up to which bounds, and what could not be."""

from typing import Final

import msgspec

MOST_REFERENCES: Final = (1 << 24) - 1
"""How often a tier may have stored one block; beyond that it is not counted."""

MOST_BLOCKS: Final = 1 << 24
"""Blocks of one engine that are followed: 0.3 TB of cache at 20 KB a block."""

MOST_TWINS: Final = 64
"""Contents that one engine hash may stand for."""


class ResidencyStatistics(msgspec.Struct, frozen=True):
    """What is held, and what could not be followed. All but `blocks` count since the start.

    `crowded` blocks were stored beyond `MOST_BLOCKS`, or as one more than `MOST_TWINS` of one hash.

    `orphans` blocks stored under an unknown parent; `partial_blocks` shorter than the block size;
    `ignored_groups` blocks of cache groups that do not decide a prefix hit; `placeholders` blocks
    stored without tokens that were not known; `unknown_removals` blocks removed but not held;
    `mismatched_blocks` blocks whose size contradicts the configured one.
    """

    blocks: int
    orphans: int = 0
    partial_blocks: int = 0
    ignored_groups: int = 0
    placeholders: int = 0
    unknown_removals: int = 0
    mismatched_blocks: int = 0
    crowded: int = 0


class HeldBlock(msgspec.Struct, frozen=True):
    """One engine block as it is handed over; `references` has 24 bits a tier."""

    engine_hash: int
    parent: int
    contents: tuple[int, ...]
    root: int
    references: int


class Handover(msgspec.Struct, frozen=True):
    """What is held of an engine's only group, for whoever follows several, and what was counted."""

    group: int
    block_size: int
    blocks: tuple[HeldBlock, ...]
    counts: ResidencyStatistics
