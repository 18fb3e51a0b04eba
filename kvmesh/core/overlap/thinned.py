"""A long prompt's routing, remembered by some of its blocks: each of the first, then each 16th."""

from array import array
from collections.abc import Sequence
from typing import Final

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import Hashes
from kvmesh.core.index.prefix_index import Groups, by_worker
from kvmesh.core.overlap.overlaps import RoutedIndex

WHOLE_BLOCKS: Final = 256
"""So far every block is kept: 4,096 tokens with blocks of 16."""

STRIDE: Final = 16
"""Beyond, each so many: what is found may be 15 blocks too few, less than a prefill step takes."""


class ThinnedIndex:
    """Keeps of prompts longer than `WHOLE_BLOCKS` each `STRIDE`th block more, and the last one.

    A block's hash stands for all before it, so nothing wrong is ever believed. 6,250 new blocks
    are 631 entries of `routed`; `blocks` counts entries, too.
    """

    def __init__(self, routed: RoutedIndex) -> None:
        self._routed = routed
        self.expire = routed.expire
        self.remove_worker = routed.remove_worker
        # Blocks that were not kept say nothing.
        self.revoke = routed.revoke
        self.blocks = routed.blocks

    def record(self, worker: WorkerId, hashes: Sequence[int], now: float, ttl_s: float) -> None:
        """Believe `hashes`, root first, cached at `worker` for `ttl_s` seconds."""
        known = hashes if isinstance(hashes, array) else array("Q", hashes)
        blocks = len(known)
        kept = known if blocks <= WHOLE_BLOCKS else thin(known, blocks)
        self._routed.record(worker, kept, now, ttl_s)

    def find_matches(self, hashes: Hashes) -> dict[WorkerId, int]:
        """Return the prefix length believed cached, in blocks, per worker that has any."""
        return by_worker(self.find_groups(hashes))

    def find_groups(self, hashes: Hashes) -> Groups:
        """Return disjoint (depth, workers), deepest first."""
        blocks = len(hashes)
        if blocks <= WHOLE_BLOCKS:
            return self._routed.find_groups(hashes)
        groups = self._routed.find_groups(_Thinned(hashes))
        return [(min(_depth(kept), blocks), workers) for kept, workers in groups]


class _Thinned:
    """Some of a long prompt's hashes, computed when asked for."""

    __slots__ = ("_hashes",)

    def __init__(self, hashes: Hashes) -> None:
        self._hashes = hashes

    def __len__(self) -> int:
        """Return how many blocks are kept, the last one included."""
        return WHOLE_BLOCKS - (WHOLE_BLOCKS - len(self._hashes)) // STRIDE

    def upto(self, count: int) -> "array[int]":
        """Return the first `count` of the kept hashes or more."""
        return thin(self._hashes.upto(_depth(count)), len(self._hashes))


def thin(known: "array[int]", blocks: int) -> "array[int]":
    """Return those to keep of a prompt's first hashes; it has so many `blocks`."""
    if len(known) <= WHOLE_BLOCKS:
        return known
    kept = known[:WHOLE_BLOCKS] + known[WHOLE_BLOCKS + STRIDE - 1 :: STRIDE]
    if len(known) == blocks and blocks % STRIDE:
        kept.append(known[-1])
    return kept


def _depth(kept: int) -> int:
    """Return where in the prompt the kept block of that number, from 1, stands, if not last."""
    return kept if kept <= WHOLE_BLOCKS else WHOLE_BLOCKS + STRIDE * (kept - WHOLE_BLOCKS)
