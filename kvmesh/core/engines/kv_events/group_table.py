"""What every group of an engine holds of each prefix, and what that means for hits."""

from collections.abc import Sequence

import msgspec

from kvmesh.core.blocks.events import Event, Removed, Stored
from kvmesh.core.engines.kv_events import residency
from kvmesh.core.engines.kv_events.closure import MAX_HIDDEN, ClosureStatistics
from kvmesh.core.engines.kv_events.group_boundaries import (
    TIER_BITS,
    Boundaries,
    Boundary,
    upto,
)
from kvmesh.core.engines.kv_events.group_hits import TierHits
from kvmesh.core.engines.kv_events.group_kinds import Group, Groups, Role


class Place(msgspec.Struct, frozen=True):
    """The prefix that a hash names: its key, content hash, namespace's root and length in units."""

    key: int
    content: int
    root: int
    depth: int


class Path(msgspec.Struct, frozen=True):
    """The boundaries that a store leads through, each a unit behind the one before, the first
    behind that of key `before`, or the first of a sequence.
    """

    before: int | None
    root: int
    keys: Sequence[int]
    contents: Sequence[int]


class Blocks(msgspec.Struct, frozen=True):
    """Blocks that a group stored in a tier, each `times`: engine hashes, and the keys of the
    boundaries that they end at, None for those to be left out. `span`: the units of each, if they
    are several blocks in one.
    """

    group: Group
    tier: int
    hashes: Sequence[int]
    ends: Sequence[int | None]
    span: int = 0
    times: int = 1


class GroupTable:
    """Counts blocks by group, tier and engine hash, and follows what they mean for hits.

    `groups` says by which rule; call `settle_rule` when that changed. Each change is followed by
    `settle`, a batch by `take_ends`.
    """

    def __init__(self, groups: Groups, *, max_hidden: int = MAX_HIDDEN) -> None:
        self._groups = groups
        self._max_hidden = max_hidden
        self._tree = Boundaries()
        self._places: dict[int, Boundary] = {}
        self.blocks = 0
        self._opened: list[Event] = []
        self._hits = [self._new_hits(0)]

    @property
    def boundaries(self) -> int:
        """Return how many prefixes are known."""
        return len(self._tree)

    def find(self, engine_hash: int) -> Place | None:
        """Return the prefix that a hash names, if any group holds a block of it."""
        one = self._places.get(engine_hash)
        return None if one is None else Place(one.key, one.content, one.root, one.depth)

    def open(self, tier: int) -> None:
        """Follow a tier from now on, if it was not used before: all nearer blocks belong to it."""
        nearer = max((hits for hits in self._hits if hits.tier <= tier), key=lambda one: one.tier)
        if nearer.tier != tier:
            opened = nearer.copy(tier)
            self._opened += opened.chain()
            self._hits = sorted([*self._hits, opened], key=lambda one: one.tier)

    def store(self, blocks: Blocks, path: Path | None = None) -> int:
        """Count blocks; return how many did not fit. Boundaries of `path` are made where they are
        not there; one that nothing ends at, or behind, is not kept.
        """
        made = [] if path is None else self._grow(path)
        crowded = 0
        for engine_hash, key in zip(blocks.hashes, blocks.ends, strict=True):
            if key is not None:
                crowded += not self._hold(blocks, engine_hash, key)
        for boundary in reversed(made):
            if not boundary.uses and self._tree.get(boundary.key) is boundary:
                self._tree.prune(boundary)
        for boundary in made:
            if self._tree.get(boundary.key) is boundary:
                for hits in self._hits:
                    hits.made(boundary)
        return crowded

    def remove(self, group: Group, tier: int, hashes: Sequence[int]) -> int:
        """Count blocks less, each as often as it is named; return how many were not held there."""
        shift, unknown = tier * TIER_BITS, 0
        for engine_hash in hashes:
            references = group.held.get(engine_hash, 0)
            if not references >> shift & residency.MOST_REFERENCES:
                unknown += 1
                continue
            references -= 1 << shift
            group.held[engine_hash] = references
            if not references >> shift & residency.MOST_REFERENCES:
                self._uncover(group, engine_hash, tier)
            if not references:
                self._release(group, engine_hash)
        return unknown

    def settle(self) -> list[Event]:
        """Return what became visible since the last call, or no longer is: of tiers that were
        opened, then tier by tier.
        """
        opened, self._opened = self._opened, []
        return [*opened, *(event for hits in self._hits for event in hits.settle())]

    def take_ends(self) -> tuple[list[Removed], list[Stored]]:
        """Return the ends that are none any more, and the new ones, since the last call."""
        gone: list[Removed] = []
        new: list[Stored] = []
        for hits in self._hits:
            removed, stored = hits.take_ends()
            gone += removed
            new += stored
        return gone, new

    def settle_rule(self) -> None:
        """Work out anew what the blocks mean by a rule, or of groups, that changed."""
        for boundary in self._tree:
            boundary.held = [0] * len(self._groups)
        for group in self._groups.all():
            for engine_hash, references in group.held.items():
                for one in self._covered(group, engine_hash):
                    one.held[group.slot] += sum(1 << t * TIER_BITS for t in _tiers_of(references))
        self._hits = [self._new_hits(hits.tier) for hits in self._hits]
        self.settle()
        self.take_ends()

    def clear(self) -> None:
        """Forget every block, and the farther tiers."""
        self._tree.clear()
        self._places.clear()
        for group in self._groups.all():
            group.held.clear()
            group.spans.clear()
        self.blocks = 0
        self._opened.clear()
        self._hits = [self._new_hits(0)]

    def dump(self) -> list[Event]:
        """Return events that store everything visible, nearest tier first. O(blocks)."""
        return [run for hits in self._hits for run in hits.dump()]

    def count(self, group: Group) -> int:
        """Return how many blocks a group holds."""
        return len(group.held)

    def visible(self) -> int:
        """Return how many blocks are visible, in the tier that has most."""
        return max(map(len, self._hits))

    def closures(self) -> tuple[ClosureStatistics, ...]:
        """Return the counts of each tier."""
        return tuple(hits.statistics() for hits in self._hits)

    def _new_hits(self, tier: int) -> TierHits:
        return TierHits(tier, self._tree, self._groups, max_hidden=self._max_hidden)

    def _grow(self, path: Path) -> list[Boundary]:
        """Return the boundaries of a path that were not there."""
        made: list[Boundary] = []
        tree, groups = self._tree, len(self._groups)
        above = None if path.before is None else tree.get(path.before)
        for key, content in zip(path.keys, path.contents, strict=True):
            one = tree.get(key)
            if one is None:
                one = tree.add(key, content, path.root, above, groups)
                made.append(one)
            above = one
        return made

    def _hold(self, blocks: Blocks, engine_hash: int, key: int) -> bool:
        """Count a block; return whether there is room for it."""
        group, shift = blocks.group, blocks.tier * TIER_BITS
        references = group.held.get(engine_hash, 0)
        if not references:
            if self.blocks >= residency.MOST_BLOCKS - 1:
                return False
            place = self._places.get(engine_hash)
            if place is None:
                place = self._tree.get(key)
                assert place is not None
                self._places[engine_hash] = place
            place.uses += 1
            self.blocks += 1
            if blocks.span > group.step:
                group.spans[engine_hash] = blocks.span
        count = references >> shift & residency.MOST_REFERENCES
        added = min(blocks.times, residency.MOST_REFERENCES - count)
        group.held[engine_hash] = references + (added << shift)
        if not count:
            self._cover(group, engine_hash, blocks.tier)
        return True

    def _cover(self, group: Group, engine_hash: int, tier: int) -> None:
        shift = tier * TIER_BITS
        for one in self._covered(group, engine_hash):
            before = one.held[group.slot]
            one.held[group.slot] = before + (1 << shift)
            for hits in self._hits:
                if hits.tier >= tier and not before & upto(hits.tier):
                    hits.add(group, one)

    def _uncover(self, group: Group, engine_hash: int, tier: int) -> None:
        for one in reversed(self._covered(group, engine_hash)):
            after = one.held[group.slot] - (1 << tier * TIER_BITS)
            one.held[group.slot] = after
            for hits in self._hits:
                if hits.tier >= tier and not after & upto(hits.tier):
                    hits.remove(group, one)

    def _release(self, group: Group, engine_hash: int) -> None:
        """Forget a block that no tier holds; its hash is known as long as a group has one."""
        del group.held[engine_hash]
        group.spans.pop(engine_hash, None)
        self.blocks -= 1
        place = self._places[engine_hash]
        place.uses -= 1
        if not self._groups.hold(engine_hash):
            del self._places[engine_hash]
        if not place.uses:
            for gone in self._tree.prune(place):
                for hits in self._hits:
                    hits.gone(gone)

    def _covered(self, group: Group, engine_hash: int) -> list[Boundary]:
        """Return the boundaries at which a block is held: it may be several blocks in one, or end
        inside one of its group.
        """
        place, step = self._places[engine_hash], group.step
        span = group.spans.get(engine_hash, 0) if group.spans else 0
        is_full = group.role is Role.FULL
        if group.role is Role.STATE or (not span and (step == 1 or not is_full)):
            return [place]
        if is_full:
            return self._tree.covered(place, span or place.depth % step or step)
        return self._tree.covered(place, span)[::-step][::-1]


def _tiers_of(references: int) -> list[int]:
    """Return the tiers that have any count."""
    tiers = range(-(-references.bit_length() // TIER_BITS))
    return [t for t in tiers if references >> t * TIER_BITS & residency.MOST_REFERENCES]
