"""Which of a prompt's blocks stand for it where not all may: the deeper, the fewer.

Each 4th of the first 32, then each 16th up to 256, each 64th up to 1,024, each 256th beyond, and
the last. A block's hash stands for all blocks before it, so a prompt that shares a prefix with
another shares the graded blocks of that prefix; what is found is too short by less than a step.
Those at multiples of 16 are *sharing keys*: each stands for the blocks since the key before it.
"""

from array import array
from collections.abc import Sequence
from typing import Final

GRADES: Final = ((32, 4), (256, 16), (1024, 64), (1 << 62, 256))
"""(up to this depth, each so many blocks)."""

KEY_GRADES: Final = ((256, 16), (1024, 64), (1 << 62, 256))
"""The same of sharing keys."""

_Grades = tuple[tuple[int, int], ...]


def graded_count(blocks: int) -> int:
    """Return how many graded blocks the first `blocks` have, without the last one."""
    return _count(blocks, GRADES)


def graded_depth(number: int) -> int:
    """Return where the graded block of that number, from 1, stands: blocks from the root."""
    return _depth(number, GRADES)


def graded_length(blocks: int) -> int:
    """Return how many hashes `grade` makes of all those of a prompt."""
    count = graded_count(blocks)
    return count + (graded_depth(count) != blocks)


def key_count(blocks: int) -> int:
    """Return how many sharing keys the first `blocks` have."""
    return _count(blocks, KEY_GRADES)


def key_depth(number: int) -> int:
    """Return where the sharing key of that number, from 1, stands; 0 for number 0."""
    return _depth(number, KEY_GRADES)


def grade(hashes: Sequence[int], blocks: int) -> "array[int]":
    """Return the graded ones of a prompt's first `hashes`, root first; it has so many `blocks`.

    The last block is among them where `hashes` reach it. O(what is returned).
    """
    known = min(len(hashes), blocks)
    kept = array("Q", (hashes[graded_depth(n) - 1] for n in range(1, graded_count(known) + 1)))
    if known and known == blocks and graded_depth(len(kept)) != blocks:
        kept.append(hashes[blocks - 1])
    return kept


def sharing_keys(hashes: Sequence[int]) -> "array[int]":
    """Return the sharing keys of a prompt's first `hashes`, root first."""
    numbers = range(1, key_count(len(hashes)) + 1)
    return array("Q", (hashes[key_depth(number) - 1] for number in numbers))


def keys_of_graded(graded: Sequence[int], blocks: int) -> "array[int]":
    """Return the sharing keys among what `grade` returned of a prompt of so many `blocks`."""
    placed = graded[: graded_count(blocks)]
    depths = map(graded_depth, range(1, len(placed) + 1))
    step = KEY_GRADES[0][1]
    return array("Q", (one for one, depth in zip(placed, depths, strict=True) if not depth % step))


def keys_of_strided(strided: Sequence[int]) -> "array[int]":
    """Return the sharing keys among the hashes of each 16th block, the first of them block 16's.

    Version 1 of the bookings tells those.
    """
    step = KEY_GRADES[0][1]
    numbers = range(1, key_count(len(strided) * step) + 1)
    return array("Q", (strided[key_depth(number) // step - 1] for number in numbers))


def _count(blocks: int, grades: _Grades) -> int:
    count = before = 0
    for upto, step in grades:
        if blocks <= before:
            break
        count += (min(blocks, upto) - before) // step
        before = upto
    return count


def _depth(number: int, grades: _Grades) -> int:
    before = 0
    for upto, step in grades[:-1]:
        here = (upto - before) // step
        if number <= here:
            return before + step * number
        number -= here
        before = upto
    return before + grades[-1][1] * number
