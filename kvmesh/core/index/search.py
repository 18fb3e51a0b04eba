"""Where hits of grouped workers end, of the drops that a table's search found.

The search is the table's (`Table.find_drops`); a table has its blocks in `SHARDS` parts, by their
lowest byte.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from kvmesh._native import SHARDS as _SHARDS
from kvmesh._native import Table
from kvmesh.core.blocks.hashing import Hashes, extend_hash, ids_behind, lookahead_digest
from kvmesh.core.index.block_table import Drops, EndTables

SHARDS: Final = _SHARDS


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
