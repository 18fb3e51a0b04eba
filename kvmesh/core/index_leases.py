"""For how long each block is believed to be cached at one worker."""

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from math import inf

from kvmesh.core.block_table import Holding
from kvmesh.core.events import HASH_BYTES
from kvmesh.core.hashing import pack_hashes, unpack_run


class Leases:
    """One worker's blocks, each with the time until which it is believed to be there.

    A path is always extended as a whole, so along it times never grow, and blocks taken in the
    order of `take` never leave a held block without its parent. About 110 B a block, 200 B where
    `extend` noted what follows what.
    """

    __slots__ = ("_following", "_order", "_runs", "_until", "holding")

    def __init__(self, holding: Holding) -> None:
        self.holding = holding
        self._until: dict[int, float] = {}
        self._runs: dict[float, list[bytes]] = {}
        self._order: list[float] = []
        self._following: dict[int, list[int]] = {}

    def earliest(self) -> float | None:
        """Return when the next lease ends."""
        return self._order[0] if self._order else None

    def extend(
        self, blocks: Sequence[int], until: float, *, revocable: bool = False
    ) -> tuple[bytes, bool]:
        """Believe `blocks`, root first, until then; return, packed, those not believed before.

        True comes with them when nothing ended at that time before. Only `revocable` ones end with
        a block before them in `revoke`. O(log(blocks) + news).
        """
        held = self._until
        low, high = 0, len(blocks)
        while low < high:
            middle = (low + high) >> 1
            if held.get(blocks[middle], -inf) >= until:
                low = middle + 1
            else:
                high = middle
        longer = blocks[low:]
        if not longer:
            return b"", False
        high = len(blocks)
        while low < high:
            middle = (low + high) >> 1
            if blocks[middle] in held:
                low = middle + 1
            else:
                high = middle
        if revocable:
            self._follow(blocks, low)
        held.update(dict.fromkeys(longer, until))
        run = pack_hashes(longer)
        fresh = run[len(run) - HASH_BYTES * (len(blocks) - low) :]
        runs = self._runs.get(until)
        if runs is not None:
            runs.append(run)
            return fresh, False
        self._runs[until] = [run]
        heappush(self._order, until)
        return fresh, True

    def take(self, count: int) -> list[int]:
        """Give up at most `count` blocks, those whose leases end first, leaves first.

        Fewer than asked for, even none, may come although more are held: call again.
        """
        until = self._order[0]
        runs = self._runs[until]
        run = unpack_run(runs.pop())
        if len(run) > count:
            runs.append(pack_hashes(run[:-count]))
            run = run[-count:]
        if not runs:
            heappop(self._order)
            del self._runs[until]
        # A block whose lease was extended meanwhile is in a later run too.
        gone: list[int] = []
        for block in reversed(run):
            if self._until.get(block) == until:
                del self._until[block]
                self._following.pop(block, None)
                gone.append(block)
        return gone

    def revoke(self, blocks: Iterable[int]) -> list[int]:
        """Give up `blocks` and what follows them; return what of it was believed."""
        held, following = self._until, self._following
        waiting = [block for block in blocks if block in held]
        gone: list[int] = []
        while waiting:
            block = waiting.pop()
            if held.pop(block, None) is not None:
                gone.append(block)
                waiting += following.pop(block, ())
        return gone

    def clear(self) -> None:
        """Give up everything; the holding is the caller's affair."""
        self._until.clear()
        self._runs.clear()
        self._order.clear()
        self._following.clear()

    def _follow(self, blocks: Sequence[int], first: int) -> None:
        """Note what `blocks` from `first` on, none of them believed yet, follow."""
        following, held = self._following, self._until
        if 0 < first < len(blocks):
            siblings = following.setdefault(blocks[first - 1], [])
            if siblings and not len(siblings) & (len(siblings) - 1):
                siblings[:] = [one for one in siblings if one in held]
            siblings.append(blocks[first])
        for place in range(first + 1, len(blocks)):
            following[blocks[place - 1]] = [blocks[place]]
