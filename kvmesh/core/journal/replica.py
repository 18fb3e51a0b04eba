"""One replica's view of the journal: the index, how far it is read, and how far it is right."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

from kvmesh.bounds import MAX_MEMBER
from kvmesh.core.blocks.events import (
    VERSION,
    Batch,
    Cleared,
    WorkerId,
    decode_batch,
)
from kvmesh.core.index.index import KvIndex
from kvmesh.core.journal.digest import Claim, DigestHistory, IndexDigest
from kvmesh.core.journal.ordering import Cursor, Ordering
from kvmesh.core.journal.recovery import Recovery, RecoveryOptions
from kvmesh.core.journal.unread import UnreadRecords
from kvmesh.errors import CodecError, NewerError
from kvmesh.formats import OWN, FormatRange

MOST_WORKERS: Final = 4096
"""Workers followed at most, unless settings say otherwise."""


class Folded(msgspec.Struct, frozen=True):
    """What a record did: `cleared` if blocks were dropped wholesale, `turned` if doubt changed.

    `refused` says why it did nothing where it should not have come.
    """

    cleared: bool = False
    turned: bool = False
    refused: str = ""


class ReplicaStatistics(msgspec.Struct, frozen=True):
    """Counters since the start; `verdicts` has one entry a kind of batch (see `Admission`).

    `crowded` records were of workers for which there was no room, `unread` ones of a format that
    is not read.
    """

    applied_sequence: int
    records: int
    events: int
    verdicts: Mapping[str, int]
    garbage: int
    crowded: int
    redelivered: int
    orphans: int
    digests_compared: int
    doubted: int
    unread: int = 0


_NOTHING = Folded()


class IndexReplica:
    """Folds journal records into `index`, which readers use directly.

    The index is a function of the journal up to `applied_sequence`, so replicas agree. What is not
    (a dead worker dropped, records missed, blocks evicted for lack of room) takes that worker out
    of the digest while it lasts. Of `max_workers` workers and no more: names come from subjects.
    Records are read in the formats of `reads`; `unread` has what is met of others.
    """

    def __init__(
        self,
        index: KvIndex,
        options: RecoveryOptions | None = None,
        *,
        max_workers: int = MOST_WORKERS,
        reads: FormatRange = OWN.journal,
    ) -> None:
        self.index = index
        self.applied_sequence = 0
        self.created = ""
        self.recovery = Recovery(options)
        self.unread = UnreadRecords(max_workers)
        self._reads = reads
        self._folds_at_once = VERSION in reads
        self._max_workers = max_workers
        self._ordering = Ordering()
        self._digest = IndexDigest()
        self._history = DigestHistory()
        self._truncations = 0
        self._between_tails = False
        self._records = self._events = self._garbage = self._redelivered = self._orphans = 0
        self._crowded = 0

    def fold(self, sequence: int, worker: WorkerId, data: bytes, now: float) -> Folded:
        """Apply one record: each once, garbage and what there is no room for not at all."""
        if sequence <= self.applied_sequence or self._between_tails:
            self._redelivered += 1
            return _NOTHING
        self.applied_sequence = sequence
        self._records += 1
        cursor = self._ordering.cursor(worker)
        if cursor is not None and self._folds_at_once:
            folded = self.index.fold(worker, data, cursor.epoch, cursor.next_seq)
            if folded is not None:
                return self._on_folded(worker, cursor, *folded, now)
        try:
            batch = _decode(worker, data, self._reads)
        except NewerError as error:
            return self._pass_over(worker, error, now)
        except CodecError as error:
            self._garbage += 1
            self._remember()
            return Folded(refused=str(error))
        if not self.has_room(worker):
            self._crowded += 1
            self._remember()
            return Folded(refused=f"{self._max_workers} workers are known, the most there may be")
        admission = self._ordering.admit(worker, batch)
        events = admission.events
        if admission.fence:
            self.index.clear(worker)
        orphans = 0
        for event in events:
            orphans += self.index.apply(worker, event)
        cleared = admission.fence or (len(events) > 0 and isinstance(events[0], Cleared))
        return self._end(worker, len(events), orphans, now, cleared=cleared)

    def has_room(self, worker: WorkerId) -> bool:
        """Return whether records of `worker` can be followed: it is known, or not too many are."""
        known = self._ordering.workers()
        return len(known) < self._max_workers or worker in known

    def restore(
        self, sequence: int, created: str, cursors: Mapping[WorkerId, Cursor], now: float
    ) -> None:
        """Go on behind a snapshot that was just loaded into `index`.

        Records still under way from the tail before are ignored, up to the next `open`.
        """
        self._between_tails = True
        self.applied_sequence, self.created = sequence, created
        former = [*self._digest.workers(), *self._ordering.cursors()]
        self._ordering = Ordering(cursors)
        self._history.clear()
        self.unread.clear()
        for worker in {**dict.fromkeys(former), **cursors}:
            if worker in cursors:
                self._note(worker, now, whole=True)
            else:
                self.recovery.forget(worker)
            self.settle(worker)
        self._remember()

    def open(self, created: str, now: float) -> None:
        """Take the news that a tail begins behind `applied_sequence`, on the stream `created`."""
        self._between_tails = False
        if self.created not in ("", created):
            self.begin_again(created, now)
        self.created = created

    def skip(self, last: int, now: float) -> None:
        """Take the news that records up to `last` are gone unread: nobody is surely known now."""
        self.applied_sequence = max(self.applied_sequence, last)
        self.recovery.suspect(now)

    def begin_again(self, created: str, now: float) -> None:
        """Take the news that another journal, from sequence 1 on, replaced the one read so far."""
        self.applied_sequence, self.created = 0, created
        self._history.clear()
        self.recovery.suspect(now)

    def distrust_all(self, now: float) -> None:
        """Believe no worker until it sends its whole state."""
        for worker in self._digest.workers():
            self._ordering.mark_gap(worker)
            self._note(worker, now, whole=False)

    def forget(self, worker: WorkerId) -> None:
        """Drop a worker that left; should it return it must send its whole state."""
        self.index.remove_worker(worker)
        self._ordering.forget(worker)
        self.recovery.forget(worker)
        self.settle(worker)
        self._digest.forget(worker)

    def settle(self, worker: WorkerId) -> bool:
        """Bring the worker's share of the digest up to date; True when it came or went. O(1)."""
        cursor = self._ordering.cursor(worker)
        truncated = self.index.truncated(worker)
        if cursor is None or truncated or self.recovery.is_distrusted(worker):
            turned = self._digest.leave_out(worker)
            if turned and truncated:
                # What was evicted, and when, is this replica's own: past digests may be wrong.
                self._history.clear()
                self._truncations += 1
        else:
            turned = self._digest.put(worker, cursor, self.index.worker_digest(worker))
        if turned:
            self._remember()
        return turned

    def settle_all(self) -> None:
        """Bring every worker's share up to date, after time passed or records were lost."""
        for worker in self.workers():
            self.settle(worker)

    def compare(self, peer: str, created: str, claim: Claim) -> Claim | None:
        """Return the claim of a peer that contradicts this replica, None when all is well."""
        if created != self.created:
            return None
        wrong = self._history.compare(peer, claim)
        if wrong is None:
            return None
        before = self._truncations
        self.settle_all()
        return wrong if self._truncations == before else None

    def forget_peer(self, peer: str) -> None:
        """Drop what a peer claimed."""
        self._history.forget(peer)

    def claim(self) -> Claim:
        """Return the digest at `applied_sequence`, of all workers known exactly. O(workers)."""
        self.settle_all()
        return self._digest.claim(self.applied_sequence)

    def cursors(self) -> Mapping[WorkerId, Cursor]:
        """Return every worker's cursor at `applied_sequence`, for a snapshot."""
        return self._ordering.cursors()

    def workers(self) -> Iterable[WorkerId]:
        """Return every worker with a cursor, as a copy."""
        return tuple(self._ordering.workers())

    def statistics(self) -> ReplicaStatistics:
        """Return the present counts."""
        return ReplicaStatistics(
            applied_sequence=self.applied_sequence,
            records=self._records,
            events=self._events,
            verdicts=self._ordering.verdicts(),
            garbage=self._garbage,
            crowded=self._crowded,
            redelivered=self._redelivered,
            orphans=self._orphans,
            digests_compared=self._history.compared,
            doubted=sum(map(self.recovery.is_distrusted, self._ordering.workers())),
            unread=self.unread.count,
        )

    def _on_folded(
        self, worker: WorkerId, cursor: Cursor, events: int, orphans: int, now: float
    ) -> Folded:
        """Move on behind a record that the index took as it is."""
        self._ordering.advance(worker, cursor, events)
        return self._end(worker, events, orphans, now, cleared=False)

    def _end(
        self, worker: WorkerId, events: int, orphans: int, now: float, *, cleared: bool
    ) -> Folded:
        """Account for a record whose events are applied."""
        self._events += events
        if orphans:
            self._orphans += orphans
            self._ordering.mark_gap(worker)
        self._note(worker, now, whole=cleared)
        turned = self.settle(worker)
        self._remember()
        return Folded(cleared, turned) if cleared or turned else _NOTHING

    def _pass_over(self, worker: WorkerId, error: NewerError, now: float) -> Folded:
        """Doubt a worker whose record could not be read: what is held of it may be wrong now."""
        if not self.unread.meet(worker, error.number, now):
            self._crowded += 1
            self._remember()
            return Folded(refused=str(error))
        self.recovery.pass_over(worker, now)
        turned = self.settle(worker)
        self._remember()
        return Folded(turned=turned or self._ordering.cursor(worker) is None)

    def _note(self, worker: WorkerId, now: float, *, whole: bool) -> None:
        if whole:
            self.unread.supersede(worker)
        cursor = self._ordering.cursor(worker)
        if cursor is not None:
            self.recovery.progress(worker, cursor, now, whole=whole)

    def _remember(self) -> None:
        self._history.record(self._digest.claim(self.applied_sequence))


def _decode(worker: WorkerId, data: bytes, reads: FormatRange) -> Batch:
    if not 0 < len(worker) <= MAX_MEMBER:
        raise CodecError(f"a worker's name of {len(worker)} characters")
    return decode_batch(data, reads)
