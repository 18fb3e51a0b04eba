"""Making one worker's cache prefix-closed, so that the index may bisect over depth."""

from collections.abc import Collection, Iterable
from typing import Final

import msgspec

from kvmesh.core.blocks.events import ROOT, Removed, Stored
from kvmesh.core.blocks.hashing import pack_hashes

MAX_RUN: Final = 4096
"""Hashes in one event at most: 32 KiB, so that no journal message outgrows its limit."""

MAX_HIDDEN: Final = 65_536
"""Hidden blocks of one tier that are kept."""


class ClosureStatistics(msgspec.Struct, frozen=True):
    """How much is held, how much of it is hidden, and what was given up for lack of room."""

    held: int
    hidden: int
    forgotten: int


class Children:
    """The children of each block: most have one, which is kept by itself, others a set."""

    __slots__ = ("_of",)

    def __init__(self) -> None:
        self._of: dict[int, int | set[int]] = {}

    def __contains__(self, parent: int) -> bool:
        return parent in self._of

    def of(self, parent: int) -> Collection[int]:
        """Return the children of a block, in no order."""
        children = self._of.get(parent, ())
        return (children,) if isinstance(children, int) else children

    def link(self, parent: int, block: int) -> None:
        """Note a child that its parent has not got."""
        known = self._of.setdefault(parent, block)
        if known == block:
            return
        if isinstance(known, int):
            self._of[parent] = {known, block}
        else:
            known.add(block)

    def unlink(self, parent: int, block: int) -> None:
        """Forget a child."""
        known = self._of[parent]
        if isinstance(known, int):
            del self._of[parent]
            return
        known.discard(block)
        if len(known) == 1:
            self._of[parent] = known.pop()

    def clear(self) -> None:
        """Forget all."""
        self._of.clear()

    def copy(self) -> "Children":
        """Return the same, to be changed apart."""
        made = Children()
        made._of = {
            parent: children if isinstance(children, int) else children.copy()
            for parent, children in self._of.items()
        }
        return made


class Closure:
    """The greatest prefix-closed subset of what one worker holds in one tier.

    A held block is *visible* when every ancestor is held, else *hidden*: an evicted inner block
    hides its descendants, its return announces them again. Hidden blocks beyond `max_hidden` are
    forgotten, oldest first; a forgotten block comes back only when it is stored anew, so overlap
    is then counted too low, never too high. Children are gone through by their hashes, in rising
    order, as are first blocks in a dump. About 250 B a block.
    """

    def __init__(self, tier: int = 0, *, max_hidden: int = MAX_HIDDEN) -> None:
        self.tier = tier
        self.max_hidden = max_hidden
        self._parent: dict[int, int] = {}
        self._children = Children()
        self._hidden: dict[int, None] = {}
        self._forgotten = 0

    def __len__(self) -> int:
        """Return how many blocks are visible."""
        return len(self._parent) - len(self._hidden)

    def is_visible(self, block: int) -> bool:
        """Return whether a block and all before it are held."""
        return block in self._parent and block not in self._hidden

    def hold(self, parent: int, hashes: Iterable[int]) -> list[Stored]:
        """Take a run of blocks, each the parent of the next; return what became visible.

        Blocks already held change nothing. O(blocks that changed).
        """
        runs = Runs(self.tier)
        parents, children, hidden = self._parent, self._children, self._hidden
        for block in hashes:
            if block not in parents:
                parents[block] = parent
                if parent == ROOT or (
                    parent != block and parent in parents and parent not in hidden
                ):
                    runs.add(parent, block)
                    if block in children:
                        self._reveal(block, runs)
                else:
                    hidden[block] = None
                if parent != ROOT:
                    self._children.link(parent, block)
            parent = block
        if len(hidden) > self.max_hidden:
            self._forget()
        return runs.take()

    def drop(self, hashes: Iterable[int]) -> list[Removed]:
        """Take evictions in any order; return what is no longer visible. O(blocks that changed)."""
        gone: list[int] = []
        for block in hashes:
            parent = self._parent.get(block)
            if parent is None:
                continue
            if block in self._hidden:
                del self._hidden[block]
            else:
                if block in self._children:
                    for descendant in reversed(self._descendants(block)):
                        self._hidden[descendant] = None
                        gone.append(descendant)
                gone.append(block)
            del self._parent[block]
            if parent != ROOT:
                self._children.unlink(parent, block)
        if len(self._hidden) > self.max_hidden:
            self._forget()
        return [
            Removed(pack_hashes(gone[start : start + MAX_RUN]), self.tier)
            for start in range(0, len(gone), MAX_RUN)
        ]

    def clear(self) -> None:
        """Hold nothing."""
        self._parent.clear()
        self._children.clear()
        self._hidden.clear()

    def dump(self) -> list[Stored]:
        """Return runs that store every visible block, parents first. O(held)."""
        runs = Runs(self.tier)
        for block in sorted(block for block, parent in self._parent.items() if parent == ROOT):
            runs.add(ROOT, block)
            for descendant in self._descendants(block):
                runs.add(self._parent[descendant], descendant)
        return runs.take()

    def copy(self, tier: int) -> "Closure":
        """Return another that holds, and hides, the same in another tier."""
        made = Closure(tier, max_hidden=self.max_hidden)
        made._parent = self._parent.copy()
        made._children = self._children.copy()
        made._hidden = self._hidden.copy()
        return made

    def statistics(self) -> ClosureStatistics:
        """Return the present counts."""
        return ClosureStatistics(len(self._parent), len(self._hidden), self._forgotten)

    def _reveal(self, block: int, runs: "Runs") -> None:
        """Announce what was hidden behind a block that is visible now."""
        for descendant in self._descendants(block):
            del self._hidden[descendant]
            runs.add(self._parent[descendant], descendant)

    def _descendants(self, block: int) -> list[int]:
        """Return every held descendant, parents first: all visible when `block` is, else hidden."""
        found: list[int] = []
        stack = sorted(self._children.of(block))
        while stack:
            child = stack.pop()
            found.append(child)
            if child in self._children:
                stack += sorted(self._children.of(child))
        return found

    def _forget(self) -> None:
        while len(self._hidden) > self.max_hidden:
            block = next(iter(self._hidden))
            del self._hidden[block]
            self._children.unlink(self._parent.pop(block), block)
            self._forgotten += 1


class Runs:
    """Collects (parent, block) steps into the fewest `Stored` events of one tier."""

    def __init__(self, tier: int) -> None:
        self._tier = tier
        self._events: list[Stored] = []
        self._run: list[int] = []
        self._run_parent = ROOT

    def add(self, parent: int, block: int) -> None:
        """Take a block that is visible, and the one before it."""
        run = self._run
        if run and run[-1] == parent and len(run) < MAX_RUN:
            run.append(block)
            return
        self._flush()
        self._run_parent = parent
        run.append(block)

    def take(self) -> list[Stored]:
        """Return the events."""
        self._flush()
        return self._events

    def _flush(self) -> None:
        if self._run:
            self._events.append(Stored(self._run_parent, pack_hashes(self._run), self._tier))
            self._run.clear()
