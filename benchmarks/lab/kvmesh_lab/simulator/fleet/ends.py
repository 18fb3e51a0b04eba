"""Where hits may end at one simulated hybrid engine, as its sidecar would tell it."""

from collections import Counter
from collections.abc import Sequence

from kvmesh.core.blocks.events import ENDS, ROOT, Event, Removed, Reuse, Stored
from kvmesh.core.blocks.hashing import pack_hashes, unpack_hashes
from kvmesh_lab.mocker.model.cache_group import CacheGroup, split_key
from kvmesh_lab.mocker.model.request import BlocksRemoved, EngineEvent, GroupStored


class EngineEnds:
    """The blocks of full attention behind which a hit may end by the rule of `CacheGroups`.

    Held blocks are counted per group and copy. O(blocks that changed and those within a window
    behind them).
    """

    def __init__(self, groups: Sequence[CacheGroup], block_size: int) -> None:
        self._needs = {
            group.number: -(-(group.window - 1) // block_size) if group.window else 1
            for group in groups
        }
        self._windows = {group.number for group in groups if group.window}
        self._reach = max(self._needs.values())
        self._held: dict[int, Counter[int]] = {group.number: Counter() for group in groups}
        self._parents: dict[int, int] = {}
        self._children: dict[int, set[int]] = {}
        self._ends: set[int] = set()
        self._begun = False

    def fold(self, events: Sequence[EngineEvent], chain: Sequence[Event]) -> list[Event]:
        """Return what is published of a step: `chain`, which is what full attention has, and ends.

        The first of all is the rule.
        """
        touched = self._take(events)
        for event in chain:
            touched |= self._link(event)
        new, gone = self._changes(touched)
        published: list[Event] = [] if self._begun else [Reuse()]
        self._begun = True
        if gone:
            published.append(Removed(pack_hashes(sorted(gone)), ENDS))
        published += chain
        if new:
            published.append(Stored(ROOT, pack_hashes(sorted(new)), ENDS))
        return published

    def _take(self, events: Sequence[EngineEvent]) -> set[int]:
        """Count what the groups hold; return what changed."""
        touched: set[int] = set()
        for event in events:
            if isinstance(event, GroupStored):
                self._held[event.group.number].update(event.hashes)
                touched.update(event.hashes)
            elif isinstance(event, BlocksRemoved):
                for group, one in map(split_key, event.hashes):
                    if group:
                        self._drop(group, one)
                        touched.add(one)
        return touched

    def _drop(self, group: int, one: int) -> None:
        held = self._held[group]
        held[one] -= 1
        if not held[one]:
            del held[one]

    def _link(self, event: Event) -> set[int]:
        """Take a change of the chain; return its blocks."""
        assert isinstance(event, Stored | Removed)
        hashes = unpack_hashes(event.hashes)
        if isinstance(event, Stored):
            for parent, one in zip((event.parent, *hashes), hashes, strict=False):
                self._parents[one] = parent
                self._children.setdefault(parent, set()).add(one)
        else:
            for one in hashes:
                self._children[self._parents.pop(one)].discard(one)
        return set(hashes)

    def _changes(self, touched: set[int]) -> tuple[set[int], set[int]]:
        """Return the new ends and those that are none any more, of all that a change reaches."""
        reached, edge = set(touched), touched
        for _ in range(self._reach - 1):
            edge = {child for one in edge for child in self._children.get(one, ())}
            reached |= edge
        runs: dict[tuple[int, int], int] = {}
        ends = {one for one in reached if self._may_end(one, runs)}
        new, gone = ends - self._ends, (reached & self._ends) - ends
        self._ends |= new
        self._ends -= gone
        return new, gone

    def _may_end(self, one: int, runs: dict[tuple[int, int], int]) -> bool:
        return one in self._parents and all(
            self._run(group, one, runs) >= need
            if group in self._windows
            else one in self._held[group]
            for group, need in self._needs.items()
        )

    def _run(self, group: int, one: int, runs: dict[tuple[int, int], int]) -> int:
        """Return how many blocks in a row the group holds up to this one; at the start: enough."""
        way: list[int] = []
        while one != ROOT and (group, one) not in runs and one in self._held[group]:
            way.append(one)
            one = self._parents[one]
        found = self._reach if one == ROOT else runs.get((group, one), 0)
        for block in reversed(way):
            found += 1
            runs[group, block] = found
        return found
