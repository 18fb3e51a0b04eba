"""`GroupTable` compiled, for hashes that cover nothing behind their block."""

from collections.abc import Sequence
from typing import Final

from kvmesh._native import GroupTable as NativeTable
from kvmesh.core.blocks.events import Event, Removed, Stored
from kvmesh.core.engines.kv_events import closure, residency
from kvmesh.core.engines.kv_events.closure import ClosureStatistics
from kvmesh.core.engines.kv_events.group_kinds import Group, Groups
from kvmesh.core.engines.kv_events.group_table import Blocks, GroupTable, Path, Place

_NO_PATH: Final = Path(None, 0, (), ())


class CompiledGroupTable:
    """As `GroupTable`, in a sixth of the memory. Where memory ends in the middle of a change it
    raises `MemoryError` until `clear`.
    """

    def __init__(self, groups: Groups, *, max_hidden: int = closure.MAX_HIDDEN) -> None:
        self._groups = groups
        self._opened: list[Event] = []
        self._native = NativeTable(
            *(Stored, Removed, residency.MOST_BLOCKS, residency.MOST_REFERENCES),
            *(max_hidden, closure.MAX_RUN),
        )
        self._publish_rule()

    @property
    def blocks(self) -> int:
        """Return how many blocks are held."""
        return self._native.counts()[0]

    @property
    def boundaries(self) -> int:
        """Return how many prefixes are known."""
        return self._native.counts()[1]

    def find(self, engine_hash: int) -> Place | None:
        """Return the prefix that a hash names, if any group holds a block of it."""
        found = self._native.find(engine_hash)
        return None if found is None else Place(found[0], *found)

    def open(self, tier: int) -> None:
        """Follow a tier from now on, if it was not used before: all nearer blocks belong to it."""
        self._opened += self._native.open(tier)

    def store(self, blocks: Blocks, path: Path | None = None) -> int:
        """Count blocks; return how many did not fit. See `GroupTable`."""
        way = path or _NO_PATH
        return self._native.store(
            blocks.group.slot,
            blocks.tier,
            blocks.span,
            blocks.times,
            blocks.hashes,
            blocks.ends,
            way.before,
            way.root,
            way.keys,
        )

    def remove(self, group: Group, tier: int, hashes: Sequence[int]) -> int:
        """Count blocks less, each as often as it is named; return how many were not held there."""
        return self._native.remove(group.slot, tier, hashes)

    def settle(self) -> list[Event]:
        """Return what became visible since the last call, or no longer is. See `GroupTable`."""
        opened, self._opened = self._opened, []
        return opened + self._native.settle()

    def take_ends(self) -> tuple[list[Removed], list[Stored]]:
        """Return the ends that are none any more, and the new ones, since the last call."""
        return self._native.take_ends()

    def settle_rule(self) -> None:
        """Work out anew what the blocks mean by a rule, or of groups, that changed."""
        self._opened.clear()
        self._publish_rule()

    def clear(self) -> None:
        """Forget every block, and the farther tiers."""
        self._opened.clear()
        self._native.clear()
        self._publish_rule()

    def dump(self) -> list[Event]:
        """Return events that store everything visible, nearest tier first. O(blocks)."""
        return self._native.dump()

    def count(self, group: Group) -> int:
        """Return how many blocks a group holds."""
        return self._native.counts()[2][group.slot]

    def visible(self) -> int:
        """Return how many blocks are visible, in the tier that has most."""
        return max(held - hidden for held, hidden, _ in self._native.counts()[3])

    def closures(self) -> tuple[ClosureStatistics, ...]:
        """Return the counts of each tier."""
        return tuple(ClosureStatistics(*one) for one in self._native.counts()[3])

    def _publish_rule(self) -> None:
        groups = self._groups
        described = tuple((int(one.role), one.step, one.need) for one in groups.all())
        self._native.settle_rule(described, groups.align, groups.drop)


def new_table(
    groups: Groups, *, max_hidden: int = closure.MAX_HIDDEN
) -> GroupTable | CompiledGroupTable:
    """Return an empty table, compiled unless hashes cover what follows their block."""
    made = GroupTable if groups.lookahead else CompiledGroupTable
    return made(groups, max_hidden=max_hidden)
