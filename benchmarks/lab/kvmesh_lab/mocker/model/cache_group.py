"""One cache group beside full attention, and what a request holds of it."""

from typing import Final

import msgspec

from kvmesh.core.blocks.events import HASH_BYTES
from kvmesh_lab.mocker.model.block_pool import Handle

HASH_BITS: Final = 8 * HASH_BYTES
FIRST_OTHER: Final = 1 << HASH_BITS
"""Keys below are of full attention, and hashes."""


class CacheGroup(msgspec.Struct, frozen=True):
    """One group: a window of so many tokens, or mamba states with 0. `number` is 1 or more."""

    number: int
    window: int

    def key(self, sequence_hash: int) -> int:
        """Return what the pool knows the group's block of this hash by: see `split_key`."""
        return (self.number << HASH_BITS) | sequence_hash


class Tail:
    """What a request holds of one group: `end` - `first` blocks, of a window in these places.

    `held` are those with content, by their place; all others are blank. Blocks before `seen` had
    their chance to be kept.
    """

    __slots__ = ("end", "first", "held", "seen")

    def __init__(self, first: int, end: int, held: dict[int, Handle]) -> None:
        self.first = first
        self.end = end
        self.seen = end
        self.held = held


def split_key(key: int) -> tuple[int, int]:
    """Return the number of the group and the sequence hash of a key; group 0: full attention."""
    return key >> HASH_BITS, key & (FIRST_OTHER - 1)
