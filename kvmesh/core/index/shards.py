"""What a snapshot has of one shard of a table: keys of blocks, and the numbers of their sets."""

from collections.abc import Sequence
from typing import Final

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
