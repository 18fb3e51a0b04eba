"""The bound on an index's memory, and what is evicted to keep it."""

from collections import deque
from collections.abc import Iterable, Sequence
from typing import Final

from kvmesh._native import Table
from kvmesh.core.blocks.events import HASH_BYTES, WorkerId
from kvmesh.core.blocks.hashing import Hashes
from kvmesh.core.index.search import SHARDS
from kvmesh.core.index.slots import Slots
from kvmesh.core.index.tier import Tier

_FEWEST: Final = 4
_MATCHES: Final = 1024
_LAST_MINUTE_BLOCKS: Final = 8192


class BlockCap:
    """Keeps the tables of all `tiers` within `max_blocks` blocks (a block counts once a tier).

    When half of that is young, or all of it in use, the tiers are rotated: the old blocks, neither
    matched nor stored behind a young block since the rotation before, are evicted at once. Their
    memory is given back in small steps, so for a while half as much again may be in use.
    """

    def __init__(self, max_blocks: int, tiers: Sequence[Tier], slots: Slots) -> None:
        if max_blocks < _FEWEST:
            raise ValueError(f"max_blocks is {max_blocks}, it must be at least {_FEWEST}")
        self.evicted = 0
        self.truncated: set[WorkerId] = set()
        self._max = max_blocks
        self._tiers = tiers
        self._slots = slots
        self.room = 0
        self._refreshable = 0
        self._matches: deque[tuple[Hashes, int]] = deque(maxlen=_MATCHES)
        self._garbage: list[object] = []

    def fit(self, worker: WorkerId, run: bytes) -> bytes:
        """Make room for a packed run longer than `room`; return what then fits, nearly always all.

        Take shorter runs from `room` yourself. O(shards), once in thousands of runs.
        """
        blocks = len(run) // HASH_BYTES
        room = self._measure()
        if room < blocks:
            self._rotate()
            room = self._measure()
        if room < blocks:
            self._lose(worker, blocks - room)
            run = run[: room * HASH_BYTES]
        self.room = max(0, room - blocks)
        if self.give_back():
            # Come back soon to give back more.
            self.room = min(self.room, self._max // (2 * SHARDS))
        return run

    def note_match(self, hashes: Hashes, depth: int) -> None:
        """Remember that the first `depth` blocks were matched. O(1)."""
        self._matches.append((hashes, depth))

    def refresh(self, budget: int) -> int:
        """Make matched blocks young, the latest first, at most about `budget`; return how many.

        None stay remembered when fewer than `budget` were done.
        """
        done = 0
        while self._matches and done < budget:
            hashes, depth = self._matches.pop()
            done += depth
            if depth <= self._refreshable:
                self._refreshable -= depth
                for tier in self._tiers:
                    tier.refresh(hashes.upto(depth)[:depth], self._slots.live, self._slots.decode)
        return done

    def give_back(self) -> bool:
        """Free one more piece of what was evicted; False when there is none. O(blocks / 512)."""
        if self._garbage:
            self._garbage.pop()
            return True
        return False

    def adopt(self, slots: Slots, truncated: Iterable[WorkerId]) -> None:
        """Learn that slots and tables were replaced, and who is truncated in the new ones."""
        self._slots = slots
        self.truncated = set(truncated)
        self._matches.clear()
        self.room = 0

    def _measure(self) -> int:
        young = sum(tier.young.size() for tier in self._tiers)
        total = sum(table.size() for tier in self._tiers for table in tier.tables())
        return max(0, min(self._max // 2 - young, self._max - total))

    def _rotate(self) -> None:
        self.refresh(_LAST_MINUTE_BLOCKS)
        self._matches.clear()
        # Rotation leaves at most this share, and the half that was filled by stores, old.
        self._refreshable = self._max // 4
        self._garbage.clear()
        for tier in self._tiers:
            dropped = tier.rotate()
            if dropped is not None:
                self._garbage += self._evict(dropped)

    def _evict(self, dropped: Table) -> list[object]:
        for worker, holding in dropped.holdings.items():
            if holding.blocks:
                self._lose(worker, holding.blocks)
        return dropped.pieces()

    def _lose(self, worker: WorkerId, blocks: int) -> None:
        self.truncated.add(worker)
        self.evicted += blocks
