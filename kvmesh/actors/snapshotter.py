"""Writing snapshots: one replica of a bucket does, the holder of a lease.

Order: freeze at S, encode in slices, store under a new name, read back and verify, compare-and-set
the manifest, and only then purge the journal and delete old objects. A crash, or a lease stolen by
another, between any two steps leaves at worst an object that nobody names.
"""

import hashlib
from collections.abc import Callable, Generator, Iterable
from functools import partial

import msgspec

from kvmesh.actors.journal_cutter import JournalCutter
from kvmesh.actors.kernel import Effect, Fields, Log, Message, Wake
from kvmesh.actors.lease_keeper import LeaseKeeper
from kvmesh.actors.messages import RouterGone, RouterSeen, Started, TakeSnapshot, Tick
from kvmesh.actors.storage import (
    DeleteObject,
    Failed,
    FetchObject,
    KeyRead,
    KeyWritten,
    ObjectFetched,
    ObjectStored,
    ReadKey,
    StoreObject,
    WriteKey,
)
from kvmesh.actors.version_guard import VersionGuard
from kvmesh.actors.wishes import PendingEffects, ignore
from kvmesh.core.index.snapshot_manifest import (
    Manifest,
    SnapshotGeneration,
    encode_manifest,
)
from kvmesh.core.index.snapshot_schedule import SnapshotSchedule
from kvmesh.core.journal.drafting import Draft, draft_in_slices
from kvmesh.core.journal.lease import RENEW_S
from kvmesh.core.journal.replica import IndexReplica
from kvmesh.core.journal.store_rules import StoreRules
from kvmesh.errors import CodecError, NewerError
from kvmesh.formats import OWN, Formats


class SnapshotterOptions(msgspec.Struct, frozen=True):
    """Who this replica is, and when a snapshot is due. Times in seconds.

    `every_messages` and `every_s` are those of `SnapshotSchedule`.
    `keep_s` is that of `JournalCutter`. `formats` are those that this process, of `version`, reads
    and writes; `reload_to` is the actor that can load a snapshot, "" for none.
    """

    router: str
    bucket: str
    every_messages: int = 100_000
    every_s: float = 300.0
    keep_s: float = 600.0
    formats: Formats = OWN
    version: str = ""
    reload_to: str = ""


def manifest_key(bucket: str) -> str:
    """Return the key of the bucket's manifest."""
    return f"manifest.{bucket}"


def lease_key(bucket: str) -> str:
    """Return the key of the bucket's snapshot lease."""
    return f"lease.snap.{bucket}"


class SnapshotterStatistics(msgspec.Struct, frozen=True):
    """Counters since the start, and the newest generation this replica wrote.

    `overridden` leases and manifests were garbage, or did not expire, and were written over.

    `age_s` is since it was written, or since the start while there is none; `took_s` how long that
    took from the first slice on. `uncut` counts the last ones behind which the journal was not cut,
    in a row.
    """

    holder: bool
    fence: int
    taken: int
    failed: int
    purged_messages: int
    overridden: int
    newest: SnapshotGeneration | None
    age_s: float
    took_s: float
    uncut: int = 0


class Snapshotter:
    """Keeps trying for the lease, and as its holder writes the snapshots that are due.

    `may_take` tells whether the index is worth keeping: not while it is loaded or reads history.
    What a newer kvmesh wrote is left alone: then this replica neither writes nor holds the lease.
    """

    def __init__(
        self,
        replica: IndexReplica,
        options: SnapshotterOptions,
        may_take: Callable[[], bool],
        *,
        name: str = "snapshotter",
    ) -> None:
        self.name = name
        self._replica = replica
        self._options = options
        self._may_take = may_take
        self._wishes = PendingEffects()
        self._keeper = LeaseKeeper(lease_key(options.bucket), options.router, self._wishes)
        self._lease = self._keeper.lease
        key = manifest_key(options.bucket)
        self.guard = VersionGuard(key, self._wishes, options.formats, options.reload_to)
        self._rules = StoreRules(replica)
        self._cutter = JournalCutter(replica, self._wishes, options.keep_s)
        self._formats = (1, 1)
        self._why_not = self._why_uncut = ""
        self._uncut = 0
        self._slices: Generator[Iterable[Effect]] | None = None
        self._busy = False
        self._schedule = SnapshotSchedule(options.every_messages, options.every_s)
        self._newest: SnapshotGeneration | None = None
        self._newest_s: float | None = None
        self._took_s = 0.0
        self._taken = self._failed = self._overridden = 0

    def receive(self, message: Message, now: float) -> Iterable[Effect]:
        """Fold one message; see `messages` and `storage` for what each means."""
        match message:
            case Tick("slice"):
                return self._go_on()
            case Tick() | Started():
                return self._renew(now)
            case RouterSeen(beat):
                self._cutter.receive(beat)
                self.guard.readers.receive(beat.router, beat.formats, now)
            case RouterGone(router):
                self._cutter.forget(router)
                self.guard.readers.forget(router, now)
            case TakeSnapshot():
                self._schedule.want()
                return self._take_if_due(now)
            case _:
                return self._wishes.answer(message, now)
        return ()

    def statistics(self, now: float) -> SnapshotterStatistics:
        """Return the present counts."""
        return SnapshotterStatistics(
            holder=self._lease.holds(now),
            fence=self._lease.fence,
            taken=self._taken,
            failed=self._failed,
            purged_messages=self._cutter.purged,
            overridden=self._lease.overridden + self._overridden,
            newest=self._newest,
            age_s=now - (now if self._newest_s is None else self._newest_s),
            took_s=self._took_s,
            uncut=self._uncut,
        )

    def warnings(self) -> tuple[str, ...]:
        """Return why this replica writes no snapshots, or leaves the journal behind them as it is,
        a line each.
        """
        waits = (f"no snapshots are written: {self._why_not}",) if self._why_not else ()
        kept = (f"the journal is not cut: {self._why_uncut}",) if self._why_uncut else ()
        return (*self.guard.warnings(), *waits, *kept)

    def _renew(self, now: float) -> Iterable[Effect]:
        """Take or keep the lease, and write a snapshot if one is due.

        Whoever cannot read all of the journal leaves the lease to others.
        """
        again = Wake(RENEW_S, Tick("lease"))
        if self._newest_s is None:
            self._newest_s = now
        if not self._lease.holds(now):
            # What held up this replica's snapshots is the next holder's to say.
            self._why_not = self._why_uncut = ""
            self._uncut = 0
        if self._replica.unread.formats(now):
            return (*self._keeper.release(), again)
        renew = partial(self._keeper.renew, granted=self._take_if_due)
        return (*self.guard.check(now, renew), again)

    def _take_if_due(self, now: float) -> Iterable[Effect]:
        replica, schedule = self._replica, self._schedule
        ready = self.guard.newer is None and self._may_take()
        if self._busy or not ready or not self._lease.holds(now):
            return ()
        if self.guard.must_rewrite(now):
            schedule.want()
        if not schedule.is_due(now, replica.created, replica.applied_sequence):
            return ()
        if why_not := self._rules.why_not_store(now):
            return self._wait_for(why_not)
        schedule.begin(now)
        self._rules.freeze(now)
        self._busy = True
        self._formats = self.guard.formats(now)
        self._slices = self._encode()
        return (Wake(0.0, Tick("slice")),)

    def _wait_for(self, why: str) -> Iterable[Effect]:
        """Note why no snapshot is written now, and log it once."""
        known, self._why_not = self._why_not, why
        return () if why == known else (Log("warning", "snapshot waits", {"why": why}),)

    def _delete(self, generation: SnapshotGeneration) -> Effect:
        return self._wishes.make(partial(DeleteObject, generation.name), ignore)

    def _go_on(self) -> Iterable[Effect]:
        """Encode one slice; given up when the index is being loaded anew."""
        if self._slices is None:
            return ()
        if not self._may_take():
            self._slices.close()
            self._slices = None
            return self._give_up("the index is loaded again", None)
        effects = next(self._slices, None)
        if effects is None:
            self._slices = None
            return ()
        return (*effects, Wake(0.0, Tick("slice")))

    def _encode(self) -> Generator[Iterable[Effect]]:
        """Freeze, encode in slices, then store."""
        attempt, (number, _) = self._taken + self._failed, self._formats
        drafts = draft_in_slices(
            self._replica, self._lease.fence, attempt, number, self._options.version
        )
        for draft in drafts:
            yield () if draft is None else (self._store(draft),)

    def _store(self, draft: Draft) -> Effect:
        name, data = draft.generation.name, draft.data
        then = partial(self._on_stored, draft.generation)
        return self._wishes.make(lambda token: StoreObject(name, data, token), then)

    def _on_stored(
        self, generation: SnapshotGeneration, answer: Message, now: float
    ) -> Iterable[Effect]:
        del now
        if not isinstance(answer, ObjectStored):
            return self._give_up("not stored", answer)
        then = partial(self._on_read_back, generation)
        return (self._wishes.make(partial(FetchObject, generation.name), then),)

    def _on_read_back(
        self, generation: SnapshotGeneration, answer: Message, now: float
    ) -> Iterable[Effect]:
        del now
        if not isinstance(answer, ObjectFetched):
            return self._give_up("cannot be read back", answer)
        if hashlib.sha256(answer.data).hexdigest() != generation.sha256:
            return self._give_up("reads back differently", answer)
        return (self._read_manifest(partial(self._on_manifest, generation)),)

    def _read_manifest(self, then: Callable[[Message, float], Iterable[Effect]]) -> Effect:
        return self._wishes.make(partial(ReadKey, manifest_key(self._options.bucket)), then)

    def _on_manifest(
        self, generation: SnapshotGeneration, answer: Message, now: float
    ) -> Iterable[Effect]:
        """Put the verified snapshot into the manifest, if it is the newest still."""
        if not isinstance(answer, KeyRead):
            return self._give_up("manifest unreadable", answer)
        bad: tuple[Effect, ...] = ()
        try:
            manifest = self.guard.read(answer.value)
        except NewerError as error:
            self._give_up("", answer)
            self.guard.stop(error, now)
            return (self._delete(generation), *self._keeper.release())
        except CodecError as error:
            self._overridden += 1
            bad = (Log("error", "bad snapshot manifest is written over", {"error": str(error)}),)
            manifest = Manifest()
        if manifest.is_emptied_by(generation):
            self._busy = False
            lines = self._wait_for("the index is empty, the newest snapshot is not")
            return (*bad, *lines, self._delete(generation))
        newer = manifest.with_newest(generation, self._formats[1])
        if newer is None or not self._lease.holds(now):
            return self._give_up("another replica took over", answer)
        key, value = manifest_key(self._options.bucket), encode_manifest(newer)
        expected = None if answer.value is None else answer.revision

        def on_written(answer: Message, now: float) -> Iterable[Effect]:
            if not isinstance(answer, KeyWritten):
                return self._give_up("manifest not written", answer)
            assert self._schedule.begun_s is not None
            self._newest_s, self._took_s = now, now - self._schedule.begun_s
            self.guard.written = (generation.encoding, newer.schema)
            return self._clean_up(newer, generation, now)

        return (*bad, self._wishes.make(partial(WriteKey, key, value, expected), on_written))

    def _clean_up(
        self, manifest: Manifest, generation: SnapshotGeneration, now: float
    ) -> Iterable[Effect]:
        """The manifest is written: cut the journal behind it, if nothing is in doubt."""
        self._busy = False
        self._why_not = ""
        self._taken += 1
        self._newest = generation
        self._schedule.succeed(generation.created, generation.sequence)
        self._why_uncut = why_uncut = self._rules.why_not_cut(now)
        self._uncut = self._uncut + 1 if why_uncut else 0
        fields: Fields = {
            "object": generation.name,
            "sequence": generation.sequence,
            "bytes": generation.size,
            "blocks": generation.blocks,
            "journal_cut": not why_uncut,
        }
        log = Log("info", "snapshot stored", fields)
        return (log, *self._cutter.clean_up(manifest, may_purge=not why_uncut))

    def _give_up(self, why: str, answer: Message | None) -> Iterable[Effect]:
        self._busy = False
        self._why_not = ""
        self._failed += 1
        self._schedule.fail()
        error = answer.reason if isinstance(answer, Failed) else ""
        return (Log("warning", "snapshot given up", {"why": why, "error": error}),)
