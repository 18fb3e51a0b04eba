"""An index whose callers may tell of evictions in any order, as engines evict."""

from typing import Final

from kvmesh.bounds import DEFAULT_MAX_BLOCKS
from kvmesh.core.blocks.events import Cleared, Event, Removed, Reuse, Stored, WorkerId
from kvmesh.core.blocks.hashing import pack_hashes, unpack_hashes
from kvmesh.core.engines.kv_events.closure import Closure
from kvmesh.core.index.index import TIERS, KvIndex
from kvmesh.core.index.snapshot_reading import Snapshot, decode_snapshot

_SWEEP_BLOCKS: Final = 1024


class ClosedIndex:
    """A `KvIndex` behind one `Closure` for each worker and tier, which the index needs for its
    search: a removed block ends what is held behind it, until it is stored again.

    The journal of a mesh has such events already; those of the library's callers come from
    anywhere. About 250 B a block that a worker holds. A worker that would hold more than
    `max_blocks` in one tier has the rest counted as kept out.
    """

    def __init__(self, max_blocks: int = DEFAULT_MAX_BLOCKS) -> None:
        self._max_blocks = max_blocks
        self._closures: dict[WorkerId, dict[int, Closure]] = {}
        self.index = KvIndex(max_blocks)
        self._unclean = False

    def apply(self, worker: WorkerId, event: Event) -> int:
        """Fold one event; return how many of its blocks count for nothing as a block before them
        is not held, or as there is no room for them. Idempotent.

        Raises `CodecError`, and changes nothing, for hashes that are not whole u64s.
        """
        if self._unclean:
            self._unclean = not self.index.sweep(_SWEEP_BLOCKS)
        if isinstance(event, Cleared):
            self._closures.pop(worker, None)
        elif not isinstance(event, Reuse) and 0 <= event.tier < TIERS:
            closures = self._closures.setdefault(worker, {})
            closure = closures.get(event.tier)
            if closure is None:
                closure = closures[event.tier] = Closure(event.tier)
            if isinstance(event, Stored):
                return self._store(worker, event, closure)
            event = _closed(event, closure)
        return self.index.apply(worker, event)

    def remove_worker(self, worker: WorkerId) -> None:
        """Forget a worker. Later calls of `apply` give the index's memory back bit by bit."""
        self._closures.pop(worker, None)
        self.index.remove_worker(worker)
        self._unclean = True

    def restore(self, data: bytes) -> Snapshot:
        """Replace everything by a snapshot. It does not tell which block is behind which: a block
        in it closes nothing until it was stored anew, from the first of its prompt on.

        Raises `CodecError`, and changes nothing, for other bytes.
        """
        snapshot = decode_snapshot(data)
        self._closures.clear()
        self.index.load(snapshot.image, snapshot.truncated)
        self._unclean = False
        return snapshot

    def _store(self, worker: WorkerId, event: Stored, closure: Closure) -> int:
        told = unpack_hashes(event.hashes)
        hashes = self._fitting(told, closure)
        taken = event
        if len(hashes) < len(told):
            taken = Stored(event.parent, pack_hashes(hashes), event.tier)
        # As it was told, too: the index may have evicted blocks that the closure knows.
        missing = self.index.apply(worker, taken)
        for seen in closure.hold(event.parent, hashes):
            if seen != taken:
                self.index.apply(worker, seen)
        return missing + len(told) - len(hashes)

    def _fitting(self, hashes: tuple[int, ...], closure: Closure) -> tuple[int, ...]:
        """Return the beginning of a run that the closure has room for."""
        room = self._max_blocks - closure.statistics().held
        if len(hashes) <= room:
            return hashes
        for place, block in enumerate(hashes):
            if not closure.is_visible(block):
                room -= 1
                if room < 0:
                    return hashes[:place]
        return hashes


def _closed(event: Removed, closure: Closure) -> Removed:
    """Return the removal of all that is no longer seen: what is behind the blocks of `event`, and
    these, as a block that was restored is in no closure.
    """
    told = unpack_hashes(event.hashes)
    behind = b"".join(removed.hashes for removed in closure.drop(told))
    rest = dict.fromkeys(told)
    for block in unpack_hashes(behind):
        rest.pop(block, None)
    return Removed(behind + pack_hashes(rest), event.tier)
