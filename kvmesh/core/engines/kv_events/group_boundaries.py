"""The prefixes that an engine's blocks end behind, as a tree."""

from collections.abc import Iterator
from typing import Final

import msgspec

from kvmesh.core.blocks.events import ROOT
from kvmesh.core.engines.kv_events.closure import Children

TIER_BITS: Final = 24


def upto(tier: int) -> int:
    """Return the bits of the counts of `tier` and nearer ones."""
    return (1 << (tier + 1) * TIER_BITS) - 1


class Boundary(msgspec.Struct, gc=False):
    """One prefix, of `depth` units. `uses` blocks of the engine end behind it.

    `key` is its content hash, or, where hashes cover what follows, that with the ids behind it;
    `root` its namespace's. `held` has a packed count for each group: of blocks that cover its last
    unit for full attention, else of those that end here.
    """

    key: int
    parent: int
    content: int
    root: int
    depth: int
    held: list[int]
    uses: int = 0


class Boundaries:
    """All prefixes that are held, and what precedes them. A parent outlives its children.

    About 400 B a boundary.
    """

    def __init__(self) -> None:
        self._at: dict[int, Boundary] = {}
        self._children = Children()

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._at)

    def __iter__(self) -> Iterator[Boundary]:
        """Return all of them, parents first."""
        return iter(self._at.values())

    def get(self, key: int) -> Boundary | None:
        """Return the boundary of that key."""
        return self._at.get(key)

    def add(
        self, key: int, content: int, root: int, parent: Boundary | None, groups: int
    ) -> Boundary:
        """Return a new boundary, one unit behind `parent`."""
        above = ROOT if parent is None else parent.key
        depth = 1 if parent is None else parent.depth + 1
        made = self._at[key] = Boundary(key, above, content, root, depth, [0] * groups)
        self._children.link(above, key)
        return made

    def above(self, boundary: Boundary, units: int) -> Boundary | None:
        """Return the boundary so many units before, None for the beginning."""
        found: Boundary | None = boundary
        while units and found is not None:
            found = self._at.get(found.parent)
            units -= 1
        return found

    def covered(self, boundary: Boundary, units: int) -> list[Boundary]:
        """Return the last `units` boundaries up to `boundary`, as many as there are, in order."""
        found: list[Boundary] = []
        one: Boundary | None = boundary
        while one is not None and len(found) < units:
            found.append(one)
            one = self._at.get(one.parent)
        found.reverse()
        return found

    def below(self, boundary: Boundary, units: int) -> list[Boundary]:
        """Return the boundaries so many units behind. O(boundaries between)."""
        if boundary.key not in self._children:
            return [] if units else [boundary]
        found = [boundary]
        for _ in range(units):
            if not found:
                break
            found = [self._at[key] for one in found for key in self._children.of(one.key)]
        return found

    def prune(self, boundary: Boundary) -> list[Boundary]:
        """Drop what no block ends behind and nothing follows, from `boundary` up; return that."""
        gone: list[Boundary] = []
        one: Boundary | None = boundary
        while one is not None and not one.uses and one.key not in self._children:
            del self._at[one.key]
            self._children.unlink(one.parent, one.key)
            gone.append(one)
            one = self._at.get(one.parent)
        return gone

    def clear(self) -> None:
        """Forget all."""
        self._at.clear()
        self._children.clear()
