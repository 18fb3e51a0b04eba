"""The cache groups of an engine: what each says of itself, and what a hit needs of it."""

import math
from collections.abc import Iterable, Sequence
from enum import IntEnum
from typing import Final

import msgspec

from kvmesh.core.engines.engine_events import (
    FULL_ATTENTION,
    EngineEvent,
    EngineRemoved,
    EngineStored,
)
from kvmesh.errors import CodecError

MOST_GROUPS: Final = 64
"""Cache groups of one engine: models have up to a dozen."""

ALL_BLOCKS: Final = 1 << 30
"""Blocks before a hit's end that a group needs of whose kind nothing is known."""

MOST_KINDS: Final = 8
MOST_SIZES: Final = 256
"""Times that an engine may tell another kind or window, or a longer block, of one group: with each
all that is held is worked out, and told, again. Partial blocks come in as many sizes as they have.
"""

MOST_STEP: Final = 1024
"""Units of a block: many of longer ones would take time as the square of their number."""

MOST_DROPPED: Final = 8
"""Units a hit may be shorter than what matched; where blocks are longer there are no hits."""

_WINDOWS: Final = frozenset({"sliding_window", "sliding_window_mla"})
_STATES: Final = frozenset({"mamba"})


class Role(IntEnum):
    """What a hit of L tokens needs of a group: all blocks before L, the last ones, or that at L."""

    FULL = 0
    WINDOW = 1
    STATE = 2


class Learned(IntEnum):
    """What events told of groups: nothing new, another rule, or that nothing held can be kept."""

    NOTHING = 0
    RULE = 1
    UNIT = 2


class GroupStatistics(msgspec.Struct, frozen=True):
    """One cache group as its engine describes it, and how many of its blocks are held.

    `understood` is False for a kind whose blocks are all taken to be needed by every hit.
    """

    index: int
    kind: str
    block_size: int
    window: int
    blocks: int
    understood: bool


class Group:
    """One group. `step`: its block size in units; `need`: so many blocks in a row end at a hit.

    `held` has for each of the engine's hashes how often each tier stored it, 24 bits a tier;
    `spans` how many units those cover that are several blocks in one.
    """

    def __init__(self, index: int, slot: int) -> None:
        self.index = index
        self.slot = slot
        self.kind: str | None = None
        self.block_size = 0
        self.window: int | None = None
        self.role = Role.FULL
        self.understood = True
        self.step = 1
        self.need = 1
        self.held: dict[int, int] = {}
        self.spans: dict[int, int] = {}
        self._kinds = self._sizes = 0

    def receive(self, event: EngineStored) -> bool:
        """Take what a store says of its group; return whether that is news.

        A group that was told to be another too often is not understood from then on.
        """
        if self._is_inconstant():
            return False
        before = (self.kind, self.block_size, self.window)
        if event.kind is not None and (event.kind, event.window) != (self.kind, self.window):
            self.kind, self.window = event.kind, event.window
            self._kinds += 1
        if event.tier == 0 or not self.block_size:
            # A partial block is shorter, so the longest is the group's; offloaded ones may be
            # several in one.
            self.block_size = max(self.block_size, event.block_size)
        self._sizes += self.block_size != before[1]
        return before != (self.kind, self.block_size, self.window)

    def settle(self, unit: int, *, drops: bool) -> None:
        """Work out what a hit needs of it. Blocks that are too long count where they end alone."""
        self.step = max(1, self.block_size // unit)
        if self.step > MOST_STEP:
            self.step, self.role, self.need, self.understood = 1, Role.STATE, 1, False
            return
        self.role, self.need, self.understood = Role.FULL, 1, True
        if self._is_inconstant():
            self.role, self.need, self.understood = Role.WINDOW, ALL_BLOCKS, False
        elif self.kind in _STATES:
            self.role = Role.STATE
        elif self.kind in _WINDOWS and self.window:
            self.role = Role.WINDOW
            self.need = max(1, -(-(self.window - 1) // self.block_size)) + drops
        elif self.kind not in FULL_ATTENTION:
            self.role, self.need, self.understood = Role.WINDOW, ALL_BLOCKS, False

    def _is_inconstant(self) -> bool:
        return self._kinds > MOST_KINDS or self._sizes > MOST_SIZES

    def statistics(self, blocks: int) -> GroupStatistics:
        """Return what is known of it, of which so many blocks are held."""
        return GroupStatistics(
            index=self.index,
            kind=self.kind or "",
            block_size=self.block_size,
            window=self.window or 0,
            blocks=blocks,
            understood=self.understood,
        )


class Groups:
    """All groups of one engine, and the rule by which they let a hit end.

    A `unit` is the number of tokens of one content hash: what was said, if every group's block size
    is a multiple of it, else their greatest common divisor. A hit ends at multiples of `align`
    units, `drop` units before the boundary that has to match; hashes cover `lookahead` tokens
    behind their block.
    """

    def __init__(self, block_size: int | None, *, drops: bool) -> None:
        self.unit = 0
        self.align = 1
        self.drop = 0
        self.lookahead = 0
        self.full: tuple[Group, ...] = ()
        self.windows: tuple[Group, ...] = ()
        self.states: tuple[Group, ...] = ()
        self._stated = block_size
        self._drops = drops
        self._hash_size = 0
        self._updates = False
        self._by_index: dict[int, Group] = {}

    def get(self, index: int) -> Group | None:
        """Return a group that has told of itself."""
        return self._by_index.get(index)

    def all(self) -> Iterable[Group]:
        """Return every group, in the order in which they were met."""
        return self._by_index.values()

    def hold(self, engine_hash: int) -> bool:
        """Return whether any group holds a block of that hash."""
        for group in self._by_index.values():  # noqa: SIM110 - half the time of any()
            if engine_hash in group.held:
                return True
        return False

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._by_index)

    def learn(self, events: Sequence[EngineEvent]) -> Learned:
        """Take what a batch says of groups before any of it is folded. O(events).

        Raises `CodecError` for more groups than an engine can have.
        """
        lookahead = self.lookahead
        for event in events:
            if not isinstance(event, EngineStored) or not event.tokens or not event.block_size:
                continue
            group = self._by_index.get(event.group)
            if group is None:
                group = self._by_index[event.group] = self._met(event.group)
                self._updates = True
            if group.receive(event):
                self._updates = True
            if event.tier == 0 and (not self._hash_size or event.block_size % self._hash_size):
                self._hash_size = math.gcd(self._hash_size, event.block_size)
                self._updates = True
            if event.lookahead:
                lookahead = len(event.lookahead[0]) // 4
        if not self._updates and lookahead == self.lookahead:
            return Learned.NOTHING
        return self._settle(lookahead)

    def adopt(self, index: int, block_size: int, unit: int) -> Group:
        """Return the group that was the only one so far, of full attention."""
        group = self._by_index[index] = self._met(index)
        group.block_size = self._hash_size = block_size
        self._stated = unit
        self._settle(0)
        return group

    def order(
        self, events: Iterable[EngineStored | EngineRemoved]
    ) -> list[EngineStored | EngineRemoved]:
        """Return a batch's events so that hashes are told with tokens before others refer to them.

        Those of one group keep their order: only among them it matters.
        """
        return sorted(events, key=self._rank)

    def _met(self, index: int) -> Group:
        if len(self._by_index) == MOST_GROUPS:
            raise CodecError(
                f"engine batch names cache group {index} behind {MOST_GROUPS} others: "
                "more than a model has"
            )
        return Group(index, len(self._by_index))

    def _rank(self, event: EngineStored | EngineRemoved) -> int:
        group = self._by_index.get(event.group)
        return Role.FULL if group is None else group.role

    def _settle(self, lookahead: int) -> Learned:
        groups = tuple(self._by_index.values())
        sizes = [group.block_size for group in groups]
        before = (self.unit, self.lookahead)
        if not self.unit or any(size % self.unit for size in sizes):
            common = math.gcd(*sizes)
            said = self._stated
            self.unit = said if said and common % said == 0 else common
        self.lookahead, self._updates = lookahead, False
        for group in groups:
            group.settle(self.unit, drops=self._drops)
        self.full = tuple(group for group in groups if group.role == Role.FULL)
        self.windows = tuple(group for group in groups if group.role == Role.WINDOW)
        self.states = tuple(group for group in groups if group.role == Role.STATE)
        common = math.lcm(*(group.step for group in groups))
        self.align = 1 if self._is_fine() else min(common, ALL_BLOCKS)
        if any(group.block_size > MOST_STEP * self.unit for group in groups):
            self.align = ALL_BLOCKS
        steps = [group.step for group in groups if group.role != Role.STATE]
        self.drop = max(steps, default=1) if self._drops else 0
        if self.drop > MOST_DROPPED:
            self.drop, self.align = 0, ALL_BLOCKS
        return Learned.RULE if before == (self.unit, self.lookahead) else Learned.UNIT

    def _is_fine(self) -> bool:
        """Return whether hits may end inside blocks: states are kept at finer boundaries."""
        finest = self._hash_size
        return any(group.block_size > finest for group in self.states) and all(
            group.block_size == finest for group in self.windows
        )
