"""What an engine of several cache groups holds: the chain of blocks, and where a hit may end."""

from collections.abc import Sequence
from typing import Protocol

import msgspec

from kvmesh.core.blocks.events import ROOT, Cleared, Event, Reuse
from kvmesh.core.engines.engine_events import (
    EngineCleared,
    EngineEvent,
    EngineRemoved,
    EngineStored,
)
from kvmesh.core.engines.kv_events import residency
from kvmesh.core.engines.kv_events.closure import MAX_HIDDEN, ClosureStatistics
from kvmesh.core.engines.kv_events.compiled_groups import CompiledGroupTable, new_table
from kvmesh.core.engines.kv_events.group_boundaries import TIER_BITS
from kvmesh.core.engines.kv_events.group_kinds import (
    MOST_STEP,
    Group,
    Groups,
    GroupStatistics,
    Learned,
)
from kvmesh.core.engines.kv_events.group_placing import TOKEN_BYTES, path_of, positions
from kvmesh.core.engines.kv_events.group_table import Blocks, GroupTable, Path, Place
from kvmesh.core.engines.kv_events.residency import Handover, HeldBlock, ResidencyStatistics


class NewTable(Protocol):
    """Makes an empty table."""

    def __call__(self, groups: Groups, *, max_hidden: int) -> GroupTable | CompiledGroupTable:
        """Return one of these groups."""
        ...


class GroupedCache:
    """Folds the events of an engine with several cache groups into journal events.

    An engine's hash names a prefix, whichever group's block ends behind it: once one event told its
    tokens, others need none. Stores are counted per group, tier and engine hash, as `EngineCache`
    does; a hash keeps the content that it was stored with first. `drops`: the engine computes the
    last matched block again (EAGLE, MTP).
    """

    def __init__(
        self,
        block_size: int | None = None,
        *,
        secret: bytes = b"",
        drops: bool = False,
        max_hidden: int = MAX_HIDDEN,
        new_table: NewTable = new_table,
    ) -> None:
        self._secret = secret
        self._max_hidden = max_hidden
        self._new_table = new_table
        self._groups = Groups(block_size, drops=drops)
        self._table = new_table(self._groups, max_hidden=max_hidden)
        self._counts: dict[str, int] = {}
        self._is_reported = False

    @property
    def block_size(self) -> int:
        """Return the tokens of the blocks that it tells of; 0 while that is unknown."""
        return self._groups.unit

    def take(self, events: Sequence[EngineEvent]) -> list[Event]:
        """Fold the events of one batch. O(blocks that changed, and the ends behind them).

        Raises `CodecError` for more groups than a model has.
        """
        begun = self._learn(events)
        chain: list[Event] = []
        segment: list[EngineStored | EngineRemoved] = []
        for event in events:
            if isinstance(event, EngineCleared):
                segment.clear()
                chain.clear()
                begun = self.clear()
            else:
                segment.append(event)
        for event in self._groups.order(segment):
            chain += self._fold(event)
        gone, new = self._table.take_ends()
        return [*begun, *gone, *chain, *new]

    def adopt(self, handover: Handover) -> None:
        """Take over what the engine's only group held so far, as far as its beginning is known.

        To be called before the first `take`, which then tells of it.
        """
        self._counts = msgspec.structs.asdict(handover.counts)
        del self._counts["blocks"]
        following: dict[int, list[HeldBlock]] = {}
        for block in sorted(handover.blocks, key=lambda one: one.engine_hash):
            following.setdefault(block.parent, []).append(block)
        if not following:
            return
        longest = max(len(block.contents) for block in handover.blocks)
        group = self._groups.adopt(
            handover.group, longest * handover.block_size, handover.block_size
        )
        self._table.settle_rule()
        waiting = following.pop(ROOT, [])
        while waiting:
            block = waiting.pop()
            self._take_over(group, block)
            waiting += following.pop(block.contents[-1], [])

    def clear(self) -> list[Event]:
        """Forget every block; what is known of the groups stays."""
        self._table.clear()
        return [Cleared(), self._rule()]

    def dump(self) -> list[Event]:
        """Return events that store everything visible, nearest tier first. O(blocks)."""
        return [self._rule(), *self._table.dump()]

    def visible(self) -> int:
        """Return how many blocks are visible, in the tier that has most."""
        return self._table.visible()

    def statistics(self) -> ResidencyStatistics:
        """Return the present counts."""
        return ResidencyStatistics(blocks=self._table.blocks, **self._counts)

    def closures(self) -> tuple[ClosureStatistics, ...]:
        """Return the counts of each tier."""
        return self._table.closures()

    def groups(self) -> tuple[GroupStatistics, ...]:
        """Return what is known of each group."""
        return tuple(one.statistics(self._table.count(one)) for one in self._groups.all())

    def _rule(self) -> Reuse:
        return Reuse(self._groups.lookahead, self._groups.drop)

    def _learn(self, events: Sequence[EngineEvent]) -> list[Event]:
        """Take what a batch tells of groups; return all anew if the rule is another now, or was
        never told.
        """
        learned = self._groups.learn(events)
        if learned is Learned.NOTHING and self._is_reported:
            return []
        self._is_reported = True
        if learned is Learned.UNIT:
            self._table = self._new_table(self._groups, max_hidden=self._max_hidden)
            return self.clear()
        self._table.settle_rule()
        return [Cleared(), *self.dump()]

    def _take_over(self, group: Group, block: HeldBlock) -> None:
        before = None if block.parent == ROOT else block.parent
        path = Path(before, block.root, block.contents, block.contents)
        tier, references = 0, block.references
        while references:
            count = references & residency.MOST_REFERENCES
            if count:
                self._table.open(tier)
                hashes, ends = (block.engine_hash,), (block.contents[-1],)
                self._table.store(Blocks(group, tier, hashes, ends, times=count), path)
            tier, references = tier + 1, references >> TIER_BITS

    def _fold(self, event: EngineStored | EngineRemoved) -> list[Event]:
        group = self._groups.get(event.group)
        if isinstance(event, EngineStored):
            if group is None:
                self._count("placeholders", len(event.hashes))
                return []
            self._table.open(event.tier)
            self._store(event, group)
        else:
            if group is None:
                self._count("unknown_removals", len(event.hashes))
                return []
            unknown = self._table.remove(group, event.tier, event.hashes)
            self._count("unknown_removals", unknown)
        return self._table.settle()

    def _store(self, event: EngineStored, group: Group) -> None:
        places = [self._table.find(engine_hash) for engine_hash in event.hashes]
        ends = [None if place is None else place.key for place in places]
        path = self._place(event, group, places, ends) if None in ends else None
        span = event.block_size // self._groups.unit if event.tier else 0
        span = span if span <= MOST_STEP else 0
        blocks = Blocks(group, event.tier, event.hashes, ends, span)
        self._count("crowded", self._table.store(blocks, path))

    def _place(
        self,
        event: EngineStored,
        group: Group,
        places: Sequence[Place | None],
        ends: list[int | None],
    ) -> Path | None:
        """Find the prefixes of hashes that are told for the first time, and the path to them; count
        those that have none.
        """
        why = self._why_not(event)
        before = None if event.parent is None else self._table.find(event.parent)
        if not why and event.parent is not None and before is None:
            why = "orphans"
        if why:
            self._count(why, ends.count(None))
            return None
        unit, size = self._groups.unit, event.block_size
        first = 0 if before is None else before.depth
        known = [None if one is None else (one.depth - first) * unit // size - 1 for one in places]
        blocks = len(event.tokens) // (TOKEN_BYTES * size)
        numbers = positions(blocks, known, group.need)
        path = path_of(event, before, numbers, unit, self._secret)
        for at, number in enumerate(numbers):
            if ends[at] is None and number is not None:
                ends[at] = path.keys[(number + 1) * size // unit - 1]
        self._count("orphans", ends.count(None))
        return path

    def _why_not(self, event: EngineStored) -> str:
        """Return what a store's hashes are counted as if they cannot be placed by its tokens."""
        unit, size = self._groups.unit, event.block_size
        if not event.tokens:
            return "placeholders"
        if size % unit or (self._groups.lookahead and not event.lookahead):
            return "partial_blocks"
        tokens = len(event.tokens) // TOKEN_BYTES
        if self._table.boundaries + tokens // unit > residency.MOST_BLOCKS:
            return "crowded"
        return "orphans" if event.extras and len(event.hashes) * size != tokens else ""

    def _count(self, name: str, blocks: int) -> None:
        if blocks:
            self._counts[name] = self._counts.get(name, 0) + blocks
