"""The naive model of what kvmesh/native/beliefs/approx.c keeps of a prompt: some of its blocks.

Own decisions by each of the first blocks, then each 16th; those of other replicas by graded ones.
"""

from array import array
from collections.abc import Sequence
from typing import Final

from kvmesh.core.blocks.graded import grade, graded_depth, graded_length
from kvmesh.core.blocks.hashing import Hashes

WHOLE_BLOCKS: Final = 128
"""So far every block is kept: 2,048 tokens with blocks of 16."""

STRIDE: Final = 16
"""Beyond, each so many: what is found may be 15 blocks too few, less than a prefill step takes."""


class Thinned:
    """Some of a long prompt's hashes, computed when asked for.

    They are each of the first `WHOLE_BLOCKS`, then each `STRIDE`th, and the last one. A block's
    hash stands for all before it, so nothing wrong is ever believed.
    """

    __slots__ = ("_hashes", "blocks")

    def __init__(self, hashes: Hashes) -> None:
        self._hashes = hashes
        self.blocks = WHOLE_BLOCKS - (WHOLE_BLOCKS - hashes.blocks) // STRIDE

    def upto(self, count: int) -> "array[int]":
        """Return the first `count` of the kept hashes or more."""
        return thin(self._hashes.upto(depth_of(count)), self._hashes.blocks)


class Graded:
    """A prompt's graded hashes (`core.blocks.graded`), computed when asked for."""

    __slots__ = ("_hashes", "blocks")

    def __init__(self, hashes: Hashes) -> None:
        self._hashes = hashes
        self.blocks = graded_length(hashes.blocks)

    def upto(self, count: int) -> "array[int]":
        """Return the first `count` of the graded hashes or more."""
        return grade(self._hashes.upto(graded_depth(count)), self._hashes.blocks)


def thin(hashes: Sequence[int], blocks: int) -> "array[int]":
    """Return those to keep of a prompt's first hashes; it has so many `blocks`."""
    known = hashes if isinstance(hashes, array) else array("Q", hashes)
    if len(known) <= WHOLE_BLOCKS:
        return known
    kept = known[:WHOLE_BLOCKS] + known[WHOLE_BLOCKS + STRIDE - 1 :: STRIDE]
    if len(known) == blocks and blocks % STRIDE:
        kept.append(known[-1])
    return kept


def depth_of(kept: int) -> int:
    """Return where in the prompt the kept block of that number, from 1, stands, if not last."""
    return kept if kept <= WHOLE_BLOCKS else WHOLE_BLOCKS + STRIDE * (kept - WHOLE_BLOCKS)
