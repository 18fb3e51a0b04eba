"""The model of kvmesh/native/beliefs/leases.c: for how long each block is believed cached at one
worker.
"""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import repeat
from typing import Final

from kvmesh.core.blocks.hashing import pack_hashes
from kvmesh.core.index.block_table import Holding

_RUN_BLOCKS: Final = 64


class Leases:
    """One worker's blocks, each with the time until which it is believed to be there.

    A lease is for a run of up to 64 blocks, each the next one's parent, and is split where only the
    first of them are extended. A path is always extended as a whole, so along it times never grow,
    and blocks taken in the order of `take` never leave a held block without its parent. About 100 B
    a block, 280 B one that is a run of its own.
    """

    __slots__ = ("_due", "_following", "_lease", "_order", "_runs", "_serial", "_until", "holding")

    def __init__(self, holding: Holding) -> None:
        self.holding = holding
        # Leases are numbers, from 1: the collector walks over no dictionary of numbers.
        self._serial = 0
        self._lease: dict[int, int] = {}
        self._runs: dict[int, tuple[int, ...]] = {}
        self._until: dict[int, float] = {}
        self._due: dict[float, list[int]] = {}
        self._order: list[float] = []
        self._following: dict[int, list[int]] = {}

    def earliest(self) -> float | None:
        """Return when the next lease ends."""
        return self._order[0] if self._order else None

    def extend(self, blocks: Sequence[int], until: float) -> tuple[bytes, bool]:
        """Believe `blocks`, root first, until then; return, packed, those not believed before.

        True comes with them when nothing ended at that time before. O(blocks / 64 + news): 6,250
        blocks that were believed 35 us, new ones 0.8 ms.
        """
        low, extended = self._renew(blocks, until)
        if low == len(blocks) and not extended:
            return b"", False
        due = self._due.get(until)
        new_end = due is None
        if due is None:
            due = self._due[until] = []
            heappush(self._order, until)
        due += extended
        if low == len(blocks):
            return b"", new_end
        self._add(blocks, low, until, due)
        return pack_hashes(blocks[low:]), new_end

    def take(self, count: int) -> list[int]:
        """Give up at most `count` blocks, those whose leases end first, leaves first.

        Fewer than asked for, even none, may come although more are held: call again.
        """
        until = self._order[0]
        due = self._due[until]
        gone: list[int] = []
        while due and len(gone) < count:
            lease = due[-1]
            # A lease that was extended meanwhile is due later, too.
            if self._until.get(lease) != until:
                due.pop()
                continue
            kept = max(len(self._runs[lease]) - (count - len(gone)), 0)
            if not kept:
                due.pop()
            gone += reversed(self._cut(lease, kept))
        if not due:
            heappop(self._order)
            del self._due[until]
        for block in self._following.keys() & gone:
            del self._following[block]
        return gone

    def revoke(self, blocks: Iterable[int]) -> list[int]:
        """Give up `blocks` and what follows them; return what of it was believed."""
        lease_of, following = self._lease, self._following
        waiting = [block for block in blocks if block in lease_of]
        gone: list[int] = []
        while waiting:
            block = waiting.pop()
            lease = lease_of.get(block)
            if lease is not None:
                cut = self._cut(lease, self._runs[lease].index(block))
                gone += cut
                for one in cut:
                    waiting += following.pop(one, ())
        return gone

    def clear(self) -> None:
        """Give up everything; the holding is the caller's affair."""
        for part in (self._lease, self._runs, self._until, self._due, self._following):
            part.clear()
        self._order.clear()

    def _renew(self, blocks: Sequence[int], until: float) -> tuple[int, list[int]]:
        """Extend the leases of `blocks` that end earlier; return where they are believed no more,
        and what was extended.
        """
        lease_of, ends, runs = self._lease, self._until, self._runs
        place, size = 0, len(blocks)
        extended: list[int] = []
        while place < size and (lease := lease_of.get(blocks[place])) is not None:
            run = runs[lease]
            after = place + len(run)
            whole = after <= size and blocks[after - 1] == run[-1]
            if not whole:
                after = place
                while after < size and blocks[after] == run[after - place]:
                    after += 1
                if after == place:
                    # Two blocks have one hash: the later one counts.
                    break
            if ends[lease] < until:
                if not whole:
                    lease = self._split(lease, after - place)
                ends[lease] = until
                extended.append(lease)
            place = after
        return place, extended

    def _split(self, lease: int, count: int) -> int:
        """Return a new lease, of the first `count` blocks of another one.

        The rest keeps its number, and with it its turn: before its parent, after its children.
        """
        run = self._runs[lease]
        self._serial += 1
        self._runs[self._serial], self._runs[lease] = run[:count], run[count:]
        for block in run[:count]:
            if self._lease.get(block) == lease:
                self._lease[block] = self._serial
        self._follow(run[count - 1], run[count])
        return self._serial

    def _add(self, blocks: Sequence[int], low: int, until: float, due: list[int]) -> None:
        """Lease `blocks` from `low` on, none of them believed yet."""
        if low:
            self._follow(blocks[low - 1], blocks[low])
        for start in range(low, len(blocks), _RUN_BLOCKS):
            run = tuple(blocks[start : start + _RUN_BLOCKS])
            self._serial += 1
            self._runs[self._serial] = run
            self._until[self._serial] = until
            self._lease.update(zip(run, repeat(self._serial)))
            due.append(self._serial)
            if start > low:
                self._following[blocks[start - 1]] = [run[0]]

    def _follow(self, parent: int, block: int) -> None:
        """Note that `block`, the first of a lease, follows `parent`, the last or one within."""
        siblings = self._following.setdefault(parent, [])
        if siblings and not len(siblings) & (len(siblings) - 1):
            siblings[:] = [one for one in siblings if one in self._lease]
        siblings.append(block)

    def _cut(self, lease: int, kept: int) -> tuple[int, ...]:
        """Take away and return all but the first `kept` blocks of a lease."""
        run = self._runs[lease]
        if kept:
            self._runs[lease] = run[:kept]
        else:
            del self._runs[lease], self._until[lease]
        cut = run[kept:]
        held = list(map(self._lease.pop, cut, repeat(0)))
        if held.count(lease) == len(cut):
            return cut
        # Of two blocks with one hash only the later one is found by its lease.
        others = {block: one for block, one in zip(cut, held, strict=True) if one}
        self._lease.update((block, one) for block, one in others.items() if one != lease)
        return tuple(block for block, one in others.items() if one == lease)
