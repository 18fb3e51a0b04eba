"""Which worker holds which block: the index that events are folded into."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

from kvmesh._native import MAX_RELEASED, Table
from kvmesh.bounds import DEFAULT_MAX_BLOCKS
from kvmesh.core.blocks.events import ENDS, ROOT, Event, Removed, Reuse, Stored, WorkerId
from kvmesh.core.blocks.hashing import Hashes
from kvmesh.core.index.block_table import EndTables, FoldedMessage, Groups, Holding, IndexView
from kvmesh.core.index.cap import BlockCap
from kvmesh.core.index.digests import U64, digest_of, digest_of_all
from kvmesh.core.index.ends import Ends
from kvmesh.core.index.freeze import FrozenIndex, freeze_index
from kvmesh.core.index.image import IndexImage
from kvmesh.core.index.search import cut_drops
from kvmesh.core.index.slots import Slots, clear_released
from kvmesh.core.index.statistics import IndexStatistics
from kvmesh.core.index.tier import Tier

TIERS: Final = 4
_FORCED_SWEEP: Final = 1 << 16


class KvIndex:
    """The exact index of one bucket, folded from KV events.

    Each worker's blocks must be prefix-closed (a held block's parent is held): see
    `core.engines.kv_events.closure`; then every answer is exact. A store behind an unknown parent
    is refused and reported as a gap. Beyond `max_blocks` distinct blocks, unmatched ones are
    evicted (see `BlockCap`) and their workers marked truncated: overlap is then too low, never too
    high. About 35 B a block. `tiers` are those ever used, the device's first: to be counted by
    others. `view` is of the device's: another one, or None for a time, when slots or tables change.
    `stored` and `removed` count blocks of events. `watchers` are told of each run that leaves a
    worker's device by `remove`.
    """

    def __init__(self, max_blocks: int = DEFAULT_MAX_BLOCKS) -> None:
        self._slots = Slots()
        self._device = Tier()
        self.tiers = [self._device]
        self.ends = Ends()
        self.grouped = False
        self._all_tiers = [self._device]
        self._only_table: Table | None = self._device.young
        self.view: IndexView | None = None
        self._seen: tuple[Table, Table | None, int, EndTables | None] | None = None
        self._cap = BlockCap(max_blocks, self._all_tiers, self._slots)
        self.note_match = self._cap.note_match  # for whoever searches a `view`
        self._cleaning: Iterator[int] | None = None
        self._orphans = self._truncated_orphans = self._missing = self._unknown_tier = 0
        self.stored = self.removed = 0
        self.watchers: list[Callable[[WorkerId, bytes], None]] = []

    def apply(self, worker: WorkerId, event: Event) -> int:
        """Fold one event; return how many blocks a gap kept out (0: all is well).

        Repeating an event changes nothing. Never raises, whatever the event holds; one that breaks
        the worker's prefix property can falsify answers about that worker only. O(blocks).
        """
        if isinstance(event, Stored):
            return self.store(worker, event.parent, event.hashes, event.tier)
        if isinstance(event, Removed):
            self.remove(worker, event.hashes, event.tier)
        elif isinstance(event, Reuse):
            self._follow_rule(worker, event)
        else:
            self.clear(worker)
        return 0

    def fold(
        self, worker: WorkerId, data: bytes, epoch: int, first_seq: int
    ) -> tuple[int, int] | None:
        """Apply a journal message at once: return its events, and the blocks a gap kept out.

        None, and no change, for any but an ordinary one: see `Table.fold`.
        """
        table = self._only_table
        holding = None if table is None else table.holdings.get(worker)
        if table is None or holding is None:
            return None
        folded = table.fold(holding, data, epoch, first_seq, self._cap.room)
        if folded is None:
            if not self.grouped:
                return None
            folded = self._fold_ends(worker, table, holding, data, (epoch, first_seq))
            if folded is None:
                return None
        events, stored, removed, missing, orphans, gone = folded
        self.stored += stored
        self._cap.room -= stored
        if gone is not None:
            self.removed += removed - missing
            self._missing += missing
            for watcher in self.watchers:
                for run in gone:
                    watcher(worker, run)
        return events, self._refuse(worker, orphans) if orphans else 0

    def _fold_ends(
        self, worker: WorkerId, table: Table, holding: Holding, data: bytes, place: tuple[int, int]
    ) -> FoldedMessage | None:
        """Do as `Table.fold` with a message that tells of ends, too."""
        kept = self.ends.place(worker)
        folded = None
        if kept is not None:
            folded = table.fold_ends(holding, data, *place, self._cap.room, kept)
        if folded is None:
            return None
        of_blocks, ends, missing = folded
        self._cap.room -= ends
        self._missing += missing
        return of_blocks

    def store(self, worker: WorkerId, parent: int, hashes: bytes, tier: int = 0) -> int:
        """Take a run of blocks behind `parent` (ROOT for none), packed little-endian u64s.

        Return 0, or the length of the run when its parent is not held though it should be: for a
        truncated worker that is expected, and counted apart.
        """
        blocks = len(hashes) >> 3
        self.stored += blocks
        table = self._only_table
        if table is not None and tier == 0 and blocks <= self._cap.room:
            # Nearly all stores take this short cut, which halves the cost of a single block.
            holding = table.holdings.get(worker)
            if holding is not None and table.extend(holding, parent, hashes):
                self._cap.room -= blocks
                return 0
        if tier >= ENDS:
            self.stored -= blocks
            parent = ROOT
        return self._store(worker, parent, hashes, tier)

    def remove(self, worker: WorkerId, hashes: bytes, tier: int = 0) -> int:
        """Drop blocks, none with a held child; return how many were not held."""
        table = self._only_table
        missing = len(hashes) >> 3
        if table is not None and tier == 0:
            holding = table.holdings.get(worker)
            if holding is not None:
                missing = len(table.remove(holding, hashes))
        else:
            place = self._tier(tier)
            if place is not None:
                missing = place.remove(worker, hashes)
        self._missing += missing
        if tier == 0:
            self.removed += (len(hashes) >> 3) - missing
            for watcher in self.watchers:
                watcher(worker, hashes)
        elif tier < ENDS:
            self.removed += (len(hashes) >> 3) - missing
        return missing

    def clear(self, worker: WorkerId) -> None:
        """Forget every block of `worker` in every tier. O(1); `sweep` gives the memory back."""
        if any(holding.blocks for tier in self._all_tiers for holding in tier.holdings(worker)):
            self.remove_worker(worker)
            self._slots.assign(worker)
        self._forget_rule(worker)
        self._cap.truncated.discard(worker)

    def remove_worker(self, worker: WorkerId) -> None:
        """Forget `worker` and its blocks. O(1); `sweep` gives the memory back."""
        self._forget_rule(worker)
        self._slots.release(worker)
        self.view = None
        for tier in self._all_tiers:
            tier.forget(worker)
        self._cap.truncated.discard(worker)
        if self._slots.released() > MAX_RELEASED:
            # Someone clears faster than anyone sweeps: masks must not grow for ever.
            self.sweep(_FORCED_SWEEP)

    def sweep(self, budget: int) -> bool:
        """Do about `budget` blocks of cleaning up; True when nothing is left to do.

        A slice may overrun by one shard (1/256 of a table). Call it whenever there is time.
        """
        budget -= self._cap.refresh(budget)
        self._note_age()
        while budget > 0:
            if self._cap.give_back():
                budget -= 1
            elif self._slots.released():
                budget -= self._clean()
            else:
                return True
        return False

    def workers(self) -> list[WorkerId]:
        """Return every worker that stored anything and was not removed."""
        return list(self._slots.bits)

    def blocks(self, worker: WorkerId, tier: int = 0) -> int:
        """Return how many blocks `worker` holds in `tier` or nearer."""
        return self.tiers[tier].blocks(worker) if 0 <= tier < len(self.tiers) else 0

    def sizes(self, workers: Sequence[WorkerId]) -> list[int]:
        """Return how many blocks each of `workers` holds in device memory."""
        table = self._only_table
        if table is None:
            return [self.blocks(worker) for worker in workers]
        holdings = table.holdings
        return [holdings[one].blocks if one in holdings else 0 for one in workers]

    def truncated(self, worker: WorkerId) -> bool:
        """Return whether the cap took blocks from `worker` since it was last cleared."""
        return worker in self._cap.truncated

    def worker_digest(self, worker: WorkerId) -> int:
        """Return the sum of the hashes `worker` holds, mod 2^64, tier t weighted 2t + 1. O(1)."""
        table = self._only_table
        if table is not None and len(self._all_tiers) == 1:  # 0.4 us, a sixth of the time
            holding = table.holdings.get(worker)
            held = 0 if holding is None else holding.digest
            return (held + self.ends.digest(worker)) & U64
        return digest_of(worker, self._numbered(), self.ends)

    def digest(self) -> int:
        """Return one number for all that is held and nothing else, 0 for nothing. O(workers)."""
        return digest_of_all(self._slots.bits, self._numbered(), self.ends)

    def statistics(self) -> IndexStatistics:
        """Return sizes and counts. O(workers + shards)."""
        tables = [table for tier in self.tiers for table in tier.tables()]
        return IndexStatistics(
            workers=len(self._slots.bits),
            blocks=sum(table.size() for table in tables),
            entries=sum(one.blocks for table in tables for one in table.holdings.values()),
            tiers=len(self.tiers),
            orphans=self._orphans,
            truncated_orphans=self._truncated_orphans,
            truncated_workers=len(self._cap.truncated),
            missing=self._missing,
            evicted=self._cap.evicted,
            unknown_tier=self._unknown_tier,
            unclean=self._slots.released(),
            stored=self.stored,
            removed=self.removed,
            ends=sum(table.size() for tier in self.ends.tiers for table in tier.tables()),
            grouped=self.ends.grouped.bit_count(),
        )

    def find_matches(self, hashes: Hashes) -> dict[WorkerId, int]:
        """Return the cached prefix length, in blocks, of every worker that holds any of it. O(drops
        x log(depth) + workers found), see `find_groups`.
        """
        matches = self.current_view().find_matches(hashes)
        if self._only_table is None and matches:
            self.note_match(hashes, max(matches.values()))
        return matches

    def find_groups(self, hashes: Hashes) -> Groups:
        """Return disjoint (depth, workers) of device memory, deepest first, depth > 0.

        O(drops x log(depth)), where a drop is a depth at which some worker's prefix ends: it hardly
        depends on how many workers or blocks there are.
        """
        groups = self.current_view().find_groups(hashes)
        if self._only_table is None and groups:
            self.note_match(hashes, groups[0][0])
        return groups

    def find_hits(self, hashes: Hashes) -> tuple[Groups, dict[WorkerId, int]]:
        """Return the same, and whose hit is shorter than the chain of blocks that they hold: how
        long that is. For an index with `grouped` workers.
        """
        groups, chains = self.current_view().find_hits(hashes)
        if self._only_table is None and groups:
            self.note_match(hashes, groups[0][0])
        return groups, chains

    def current_view(self) -> IndexView:
        """Return `view`, made anew when workers or tables changed since. O(workers)."""
        if self.view is None:
            device, slots = self._device, self._slots
            ends = self.ends.tables(0)
            self.view = device.young.view(device.old, slots.names, slots.live, ends)
        return self.view

    def find_tier_matches(self, hashes: Hashes) -> list[dict[WorkerId, int]]:
        """Return, for tier 0, 1, ..., the prefix length held in that tier or nearer, per worker."""
        found = [self.find_matches(hashes)]
        for number, tier in enumerate(self.tiers[1:], 1):
            matches = found[-1].copy()
            drops, ends = tier.find_drops(hashes, self._slots.live), self.ends.tables(number)
            if ends is not None:
                drops, _ = cut_drops(ends, drops, hashes)
            for depth, mask in drops:
                for worker in self._slots.decode(mask):
                    matches[worker] = max(depth, matches.get(worker, 0))
            found.append(matches)
        return found

    def freeze(self) -> FrozenIndex:
        """Return a view of everything as it is now, to be read while the index moves on."""
        return freeze_index(self._slots, self._cap.truncated, self._numbered(), self.ends.freeze())

    def load(self, image: IndexImage, truncated: Iterable[WorkerId] = ()) -> None:
        """Replace everything by a finished `image`, which must not be used any more."""
        self._slots = image.slots
        self._device = image.tiers[0]
        self.tiers[:] = image.tiers
        self.ends = image.ends
        self.grouped = image.ends.grouped != 0
        self._all_tiers[:] = [*image.tiers, *image.ends.tiers]
        self._note_age()
        self._cap.adopt(image.slots, truncated)
        self._cleaning = None

    def _clean(self) -> int:
        """Rid one more shard of released bits; return the effort."""
        if self._cleaning is None:
            tables = [table for tier in self._all_tiers for table in tier.tables()]
            self._cleaning = clear_released(self._slots, tables)
        blocks = next(self._cleaning, -1)
        if blocks < 0:
            self._cleaning = None
        return blocks + 1

    def _store(self, worker: WorkerId, parent: int, run: bytes, tier: int) -> int:
        blocks = len(run) >> 3
        place = self._open(tier)
        if place is None or (tier >= ENDS and self.ends.rule(worker) is None):
            self._unknown_tier += blocks
            return 0
        bit = self._slots.bits.get(worker)
        if bit is None and parent == ROOT and run:
            bit = self._slots.assign(worker)
            self.view = None
        if bit is not None:
            if blocks <= self._cap.room:
                self._cap.room -= blocks
            elif place.holds(bit, parent):
                run = self._cap.fit(worker, run)
                self._note_age()
            if tier == 0 and worker not in place.young.holdings:
                self.view = None
            if place.store(worker, bit, parent, run):
                return 0
        return self._refuse(worker, blocks)

    def _refuse(self, worker: WorkerId, blocks: int) -> int:
        """Count blocks behind one not held; return those of them that a gap kept out."""
        if worker in self._cap.truncated:
            self._truncated_orphans += blocks
            return 0
        self._orphans += blocks
        return blocks

    def _note_age(self) -> None:
        """Keep the one table of the device tier at hand, while there is only one."""
        device = self._device
        self._only_table = device.only_table()
        ends = self.ends.tables(0) if self.ends.grouped else None
        seen = device.young, device.old, len(device.young.holdings), ends
        if seen != self._seen:
            self._seen, self.view = seen, None

    def _tier(self, tier: int) -> Tier | None:
        tiers, number = (self.ends.tiers, tier - ENDS) if tier >= ENDS else (self.tiers, tier)
        return tiers[number] if 0 <= number < len(tiers) else None

    def _open(self, tier: int) -> Tier | None:
        tiers, number = (self.ends.tiers, tier - ENDS) if tier >= ENDS else (self.tiers, tier)
        if not 0 <= number < TIERS:
            return None
        while number >= len(tiers):
            tiers.append(Tier())
            self._all_tiers.append(tiers[-1])
            self.view = None
        return tiers[number]

    def _numbered(self) -> list[tuple[int, Tier]]:
        """Return every tier with its number in events."""
        return [*enumerate(self.tiers), *enumerate(self.ends.tiers, ENDS)]

    def _follow_rule(self, worker: WorkerId, rule: Reuse) -> None:
        if self.ends.rule(worker) == rule:
            return
        bit = self._slots.bits.get(worker)
        if bit is None:
            bit = self._slots.assign(worker)
        self.ends.follow(worker, bit, rule)
        self.grouped = True
        self.view = None

    def _forget_rule(self, worker: WorkerId) -> None:
        if self.ends.rule(worker) is not None:
            self.ends.forget(worker)
            self.grouped = self.ends.grouped != 0
            self.view = None
