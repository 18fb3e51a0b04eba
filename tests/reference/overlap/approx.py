"""Naive model of kvmesh/native/beliefs/approx.c: an index of what was sent to workers lately."""

from array import array
from collections import deque
from collections.abc import Iterator, Sequence
from math import ceil, inf
from typing import Final

from sortedcontainers import SortedDict

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.graded import grade, graded_depth, graded_length
from kvmesh.core.blocks.hashing import Hashes, pack_hashes, unpack_run
from kvmesh.core.index.approx import (
    DEFAULT_MAX_ENTRIES,
    DEFAULT_TTL_S,
    PRUNE_TARGET,
    ApproxStatistics,
)
from kvmesh.core.index.block_table import Groups
from kvmesh.core.index.overlaps import by_worker
from kvmesh.core.index.slots import Slots, clear_released
from tests.reference.index.table import NAIVE
from tests.reference.overlap.leases import Leases
from tests.reference.overlap.thinned import WHOLE_BLOCKS, Graded, Thinned, depth_of, thin

_TICKS: Final = 16
_LONGEST_TICK_S: Final = 8.0
_LRU_TICK_S: Final = 1.0
_SLICE: Final = 2048
_MAX_RELEASED: Final = 256


class ApproxIndex:
    """Believes a prompt cached where it was sent, for a while; as `new_approx` says."""

    def __init__(
        self,
        ttl_s: float = DEFAULT_TTL_S,
        *,
        max_entries: int = DEFAULT_MAX_ENTRIES,
        prune_target: float = PRUNE_TARGET,
        worker_blocks: int | None = None,
        thinned: bool = False,
        graded: bool = False,
    ) -> None:
        self.ttl_s = ttl_s
        self._max_entries = max_entries
        self._prune_to = int(max_entries * prune_target)
        self._worker_blocks = worker_blocks
        self._thinned = thinned
        self._graded = graded
        self._longest_tick_s = _LONGEST_TICK_S if worker_blocks is None else _LRU_TICK_S
        self._slots = Slots()
        self._table = NAIVE()
        self._leases: dict[WorkerId, Leases] = {}
        self._ends: SortedDict[float, deque[Leases]] = SortedDict()
        self.next_end = inf
        self._pruning = False
        self._cleaning: Iterator[int] | None = None
        self._entries = self._expired = self._pruned = self._displaced = self._revoked = 0

    def record(
        self,
        worker: WorkerId,
        hashes: Hashes | Sequence[int],
        now: float,
        ttl_s: float | None = None,
    ) -> None:
        """Believe the blocks of `hashes`, root first, cached at `worker` from `now` on.

        `ttl_s` is for this prompt, default the index's own. What ended before `now` is dropped on
        the way, a slice at a time. O(log(depth) + depth / 64 + blocks not believed yet).
        """
        blocks = hashes if isinstance(hashes, (array, list)) else _listed(hashes)
        if self._graded:
            blocks = grade(blocks, len(blocks))
        elif self._thinned and len(blocks) > WHOLE_BLOCKS:
            blocks = thin(blocks, len(blocks))
        self._believe(worker, blocks, now, ttl_s)

    def record_graded(
        self,
        worker: WorkerId,
        graded: Sequence[int],
        blocks: int,
        now: float,
        ttl_s: float | None = None,
    ) -> None:
        """Do as `record` with a prompt of so many `blocks` of which `grade` made `graded`.

        What `grade` cannot have made of so many does not count. Raises `ValueError` unless the
        index is `graded`.
        """
        if not self._graded:
            raise ValueError("an index that keeps no graded blocks takes whole prompts")
        self._believe(worker, graded[: graded_length(max(0, blocks))], now, ttl_s)

    def _believe(
        self, worker: WorkerId, blocks: Sequence[int], now: float, ttl_s: float | None
    ) -> None:
        if self.next_end <= now:
            self.expire(now, _SLICE)
        ttl_s = self.ttl_s if ttl_s is None else ttl_s
        if not blocks or ttl_s <= 0:
            return
        tick_s = min(ttl_s / _TICKS, self._longest_tick_s)
        until = ceil((now + ttl_s) / tick_s) * tick_s
        leases = self._leases.get(worker) or self._admit(worker)
        updates, new_end = leases.extend(blocks, until)
        if new_end:
            self._ends.setdefault(until, deque()).append(leases)
            self.next_end = min(self.next_end, until)
        if updates:
            self._store(leases, updates)
        if self._pruning or self._entries > self._max_entries:
            self._prune(max(_SLICE, len(updates) // 4))

    def expire(self, now: float, budget: int | None = None) -> bool:
        """Drop what ended before or at `now`; True when nothing of it is left.

        `budget` bounds the entries dropped in this call, about 0.5 us each.
        """
        if self.next_end > now:
            return True
        left = self._entries + 1 if budget is None else budget
        while (leases := self._first()) is not None and self.next_end <= now:
            if left <= 0:
                return False
            gone = self._drop(leases, left)
            self._expired += gone
            left -= gone
        return True

    def revoke(self, worker: WorkerId, hashes: bytes) -> None:
        """Take the news that `worker` holds these packed blocks no longer, nor what follows them.

        O(blocks given, and dropped).
        """
        leases = self._leases.get(worker)
        if leases is not None and leases.holding.blocks:
            gone = leases.revoke(unpack_run(hashes))
            self._table.remove(leases.holding, pack_hashes(gone))
            self._entries -= len(gone)
            self._revoked += len(gone)

    def remove_worker(self, worker: WorkerId) -> None:
        """Forget everything believed of `worker`. O(1); `sweep` gives the memory back."""
        leases = self._leases.pop(worker, None)
        if leases is None:
            return
        self._entries -= leases.holding.blocks
        leases.clear()
        del self._table.holdings[worker]
        self._slots.release(worker)
        if self._slots.released() > _MAX_RELEASED:
            self.sweep(1 << 16)

    def sweep(self, budget: int) -> bool:
        """Do about `budget` blocks of cleaning up after removals; True when nothing is left."""
        while budget > 0 and self._slots.released():
            if self._cleaning is None:
                self._cleaning = clear_released(self._slots, [self._table])
            blocks = next(self._cleaning, None)
            if blocks is None:
                self._cleaning = None
            else:
                budget -= blocks + 1
        return not self._slots.released()

    def workers(self) -> list[WorkerId]:
        """Return the workers that something was recorded for."""
        return list(self._leases)

    def blocks(self, worker: WorkerId) -> int:
        """Return how many blocks `worker` is believed to hold."""
        leases = self._leases.get(worker)
        return leases.holding.blocks if leases is not None else 0

    def sizes(self, workers: Sequence[WorkerId]) -> list[int]:
        """Return how many blocks each of `workers` is believed to hold."""
        return [self.blocks(worker) for worker in workers]

    def find_matches(self, hashes: Hashes) -> dict[WorkerId, int]:
        """Return the prefix length believed cached, in blocks, per worker that has any."""
        return by_worker(self.find_groups(hashes))

    def find_groups(self, hashes: Hashes) -> Groups:
        """Return disjoint (depth, workers), deepest first; complexity as `KvIndex.find_groups`."""
        if self._graded:
            drops = (
                self._table.find_drops(Graded(hashes), self._slots.live) if self._entries else []
            )
            drops = [(min(graded_depth(kept), hashes.blocks), mask) for kept, mask in drops]
        elif self._thinned and (blocks := hashes.blocks) > WHOLE_BLOCKS:
            drops = self._table.find_drops(Thinned(hashes), self._slots.live)
            drops = [(min(depth_of(kept), blocks), mask) for kept, mask in drops]
        else:
            drops = self._table.find_drops(hashes, self._slots.live)
        return [(depth, self._slots.decode(mask)) for depth, mask in drops]

    def statistics(self) -> ApproxStatistics:
        """Return sizes and counts. O(shards)."""
        return ApproxStatistics(
            workers=len(self._leases),
            blocks=self._table.size(),
            entries=self._entries,
            expired=self._expired,
            pruned=self._pruned,
            displaced=self._displaced,
            revoked=self._revoked,
        )

    def _admit(self, worker: WorkerId) -> Leases:
        holding = self._table.admit(worker, self._slots.assign(worker))
        leases = self._leases[worker] = Leases(holding)
        return leases

    def _store(self, leases: Leases, updates: bytes) -> None:
        """Enter packed blocks, and drop others of a worker that has too many then."""
        holding = leases.holding
        self._entries -= holding.blocks
        self._table.store(holding, updates)
        self._entries += holding.blocks
        if self._worker_blocks is not None:
            while (excess := holding.blocks - self._worker_blocks) > 0:
                self._displaced += self._drop(leases, excess)

    def _first(self) -> Leases | None:
        """Return whose lease ends first of all, None when there are none."""
        while self._ends:
            self.next_end, holders = self._ends.peekitem(0)
            while holders:
                if holders[0].earliest() == self.next_end:
                    return holders[0]
                holders.popleft()
            del self._ends[self.next_end]
        self.next_end = inf
        return None

    def _drop(self, leases: Leases, at_most: int) -> int:
        """Drop the blocks of one worker that end first; return how many, perhaps none."""
        gone = leases.take(at_most)
        self._table.remove(leases.holding, pack_hashes(gone))
        self._entries -= len(gone)
        return len(gone)

    def _prune(self, at_most: int) -> None:
        """Drop up to so many of too many entries, those first that end first."""
        self._pruning = True
        while self._pruning and at_most > 0:
            excess = self._entries - self._prune_to
            leases = self._first() if excess > 0 else None
            if leases is None:
                self._pruning = False
                return
            gone = self._drop(leases, min(at_most, excess))
            self._pruned += gone
            at_most -= gone
            self._pruning = gone < excess


def _listed(hashes: Hashes | Sequence[int]) -> Sequence[int]:
    return hashes if isinstance(hashes, Sequence) else hashes.upto(hashes.blocks)
