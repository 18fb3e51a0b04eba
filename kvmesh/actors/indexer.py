"""Keeps one replica's index in step with the journal, and has whatever is missing sent again."""

from collections.abc import Iterable

import msgspec

from kvmesh.actors.format_keeper import FormatKeeper
from kvmesh.actors.kernel import Effect, Fields, Log, Message, Publish, Send, Wake
from kvmesh.actors.lacking_workers import LackingWorkers
from kvmesh.actors.member_messages import Mispredicted, Reread
from kvmesh.actors.messages import (
    CaughtUp,
    JournalGap,
    JournalOpened,
    JournalRecord,
    JournalRecreated,
    Reload,
    Resync,
    RouterGone,
    RouterHeartbeat,
    RouterSeen,
    Started,
    Tick,
    TrustChanged,
    WorkerGone,
    WorkerHeartbeat,
    WorkerSeen,
)
from kvmesh.actors.peer_digests import PeerDigests
from kvmesh.actors.refusals import Refusals
from kvmesh.actors.wire import Subjects, encode
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.journal.event_sender import is_followable
from kvmesh.core.journal.lag import JournalLag
from kvmesh.core.journal.recovery import Missing
from kvmesh.core.journal.replica import IndexReplica, ReplicaStatistics
from kvmesh.core.members.worker_info import Trust
from kvmesh.formats import OWN, Formats


class IndexerOptions(msgspec.Struct, frozen=True):
    """Identity of this replica, receivers of its messages, and intervals in seconds.

    `listeners` are the actors told of `TrustChanged`, `reload_to` the one that can load a snapshot
    ("" for none: workers are asked for dumps instead). A dead worker's blocks are kept for
    `retain_s`, in case it was only unreachable; `sweep_budget` is one slice of cleaning up. After
    the start, workers have `first_beats_s` to make themselves heard. `formats` are those that this
    process, of `version`, reads.
    """

    router: str
    bucket: str
    namespace: str = "kvmesh"
    listeners: tuple[str, ...] = ()
    reload_to: str = ""
    check_s: float = 0.25
    retain_s: float = 60.0
    first_beats_s: float = 1.2
    mismatch_pause_s: float = 10.0
    sweep_budget: int = 4096
    formats: Formats = OWN
    version: str = ""


class IndexerStatistics(msgspec.Struct, frozen=True):
    """Counters since the start; the lags are of the last 1,024 records, see `JournalLag`."""

    replica: ReplicaStatistics
    gaps: int
    recreations: int
    resyncs_asked: int
    mismatches: int
    workers_forgotten: int
    lag_ms_p50: float | None
    lag_ms_p99: float | None


class Indexer:
    """The one writer of `replica`; see there for what is promised of the index."""

    def __init__(
        self, replica: IndexReplica, options: IndexerOptions, *, name: str = "indexer"
    ) -> None:
        self.name = name
        self.replica = replica
        self.caught_up = False
        self.lag = JournalLag()
        self._options = options
        self._subjects = Subjects(options.namespace, options.bucket)
        self.formats = FormatKeeper(
            options.router, self._subjects, replica.unread, options.formats, options.version
        )
        self._lacking = LackingWorkers(replica.recovery)
        self._reported: dict[WorkerId, Trust] = {}
        self._received: set[WorkerId] = set()
        self._unheard: dict[WorkerId, float] = {}
        self._refusals = Refusals()
        self._read_s: float | None = None
        self._sweeping = False
        self._digests = PeerDigests(replica, options.mismatch_pause_s)
        self._gaps = self._recreations = self._asked = self._forgotten = 0

    def receive(self, message: Message, now: float) -> Iterable[Effect]:
        """Fold one message; see `messages` for what each means."""
        match message:
            case JournalRecord():
                return self._on_record(message, now)
            case Tick(kind):
                return self._on_tick(kind, now)
            case WorkerSeen(heartbeat, joined):
                if joined:
                    self._reported.pop(heartbeat.worker, None)
                return self._on_worker(heartbeat, now)
            case RouterSeen(heartbeat):
                return self._on_router(heartbeat, now)
            case WorkerGone(worker):
                self._received.discard(worker)
                self.formats.forget_worker(worker)
                self._unheard.setdefault(worker, now)
                return ()
            case _:
                return self._on_rare(message, now)

    def trust(self, worker: WorkerId, now: float) -> Trust:
        """Return how far the index may be believed about `worker`."""
        if not self.caught_up:
            return Trust.CATCHING_UP
        return self.replica.recovery.trust(worker, now)

    def awaits(self, now: float) -> str:
        """Return what of its workers a replica waits for after its start, "" for nothing.

        A known one may still show up: heartbeats come once a second. Who serves earlier sends what
        the others hold to the first one it heard.
        """
        young = self._read_s is not None and now < self._read_s + self._options.first_beats_s
        if young and self._unheard:
            return "waiting for the heartbeats of known workers"
        return self._lacking.why_not(now, self._read_s)

    def statistics(self) -> IndexerStatistics:
        """Return the present counts."""
        return IndexerStatistics(
            replica=self.replica.statistics(),
            gaps=self._gaps,
            recreations=self._recreations,
            resyncs_asked=self._asked,
            mismatches=self._digests.mismatches,
            workers_forgotten=self._forgotten,
            lag_ms_p50=self.lag.percentile_ms(0.5),
            lag_ms_p99=self.lag.percentile_ms(0.99),
        )

    def _on_record(self, record: JournalRecord, now: float) -> Iterable[Effect]:
        worker, replica = record.worker, self.replica
        room = () if replica.has_room(worker) else self._make_room(worker)
        folded = replica.fold(record.sequence, worker, record.data, now)
        if record.stored_s is not None and self.caught_up:
            self.lag.note(now - record.stored_s)
        if folded.refused:
            return (*room, *self._refusals.note(worker, folded.refused, now))
        if worker not in self._received and worker not in self._unheard:
            self._unheard[worker] = now
        sweep = self._sweep_soon() if folded.cleared else ()
        return (*room, *sweep, *self._report(worker, now)) if folded.turned else (*room, *sweep)

    def _make_room(self, worker: WorkerId) -> Iterable[Effect]:
        """Evict the worker without heartbeats for the longest time to make room for a live one;
        live workers stay.
        """
        if worker not in self._received or not self._unheard:
            return ()
        return self._forget(next(iter(self._unheard)))

    def _report(self, worker: WorkerId, now: float) -> list[Effect]:
        """Tell the listeners when trust in the worker changed."""
        trust = self.trust(worker, now)
        if self._reported.get(worker) is trust:
            return []
        self._reported[worker] = trust
        usual = trust in (Trust.EXACT, Trust.APPROX) or not self.caught_up
        log = Log(
            "info" if usual else "warning",
            "trust in worker changed",
            {"worker": worker, "trust": trust.value, "sequence": self.replica.applied_sequence},
        )
        return [log, *(Send(to, TrustChanged(worker, trust)) for to in self._options.listeners)]

    def _on_worker(self, heartbeat: WorkerHeartbeat, now: float) -> Iterable[Effect]:
        worker = heartbeat.worker
        self._received.add(worker)
        self._unheard.pop(worker, None)
        recovery = self.replica.recovery
        readable = heartbeat.journal_format in self._options.formats.journal
        recovery.describe(
            worker,
            events=heartbeat.events,
            complete=heartbeat.complete,
            readable=readable,
            catching_up=heartbeat.catching_up,
        )
        recovery.receive(worker, heartbeat.epoch, heartbeat.last_seq, now)
        self.replica.settle(worker)
        return (*self.formats.receive_worker(heartbeat, now), *self._report(worker, now))

    def _on_router(self, peer: RouterHeartbeat, now: float) -> Iterable[Effect]:
        if peer.router == self._options.router:
            return ()
        self.formats.receive_router(peer, now)
        log = tuple(self._digests.compare(peer, now))
        return (*log, *self._reload("index digest mismatch", now)) if log else ()

    def _reload(self, reason: str, now: float) -> Iterable[Effect]:
        """Have the index loaded anew, or have every worker send its whole state."""
        if self._options.reload_to:
            return (Send(self._options.reload_to, Reload(reason)),)
        self.replica.distrust_all(now)
        return self._review(now)

    def _on_tick(self, kind: str, now: float) -> Iterable[Effect]:
        if kind == "sweep":
            self._sweeping = not self.replica.index.sweep(self._options.sweep_budget)
            return (Wake(0.0, Tick("sweep")),) if self._sweeping else ()
        effects: list[Effect] = []
        for worker, since in list(self._unheard.items()):
            if now >= since + self._options.retain_s:
                effects += self._forget(worker)
        if self.caught_up:
            for missing in self.replica.recovery.check(now):
                if missing.outdated and not is_followable(missing.epoch):
                    effects += self._forget_epoch(missing)
                else:
                    effects.append(self._ask(missing))
            effects += self._lacking.check(now)
        effects += self._review(now)
        effects += (*self._sweep_soon(), *self.formats.check(now))
        return (*effects, Wake(self._options.check_s, Tick("check")))

    def _review(self, now: float) -> list[Effect]:
        """Judge every worker again. O(workers)."""
        self.replica.settle_all()
        known = dict.fromkeys((*self.replica.workers(), *self._reported))
        return [effect for worker in known for effect in self._report(worker, now)]

    def _ask(self, missing: Missing) -> Effect:
        self._asked += 1
        request = Resync(missing.worker, missing.epoch, missing.next_seq, self._options.router)
        return Publish(self._subjects.control(missing.worker), encode(request))

    def _forget_epoch(self, missing: Missing) -> Iterable[Effect]:
        """Forget a worker whose last epoch was used up in its name: any later one counts as new."""
        fields: Fields = {"worker": missing.worker, "epoch": missing.epoch}
        log = Log("error", "worker used its last epoch, starting again", fields)
        return (log, *self._forget(missing.worker))

    def _on_mispredicted(self, message: Mispredicted) -> Iterable[Effect]:
        """Ask the worker for all it holds: what is wrong in the index, no sequence shows."""
        worker = message.worker
        log = Log(
            "warning",
            "predictions miss, asking for all the worker holds",
            {
                "worker": worker,
                "misses": message.misses,
                "answers": message.answers,
                "reread": message.again,
            },
        )
        if not message.again:
            return (log, self._ask(self.replica.recovery.anew(worker)))
        return (log, Publish(self._subjects.control(worker), encode(Reread(worker))))

    def _forget(self, worker: WorkerId) -> Iterable[Effect]:
        self._forgotten += 1
        self.replica.forget(worker)
        self._unheard.pop(worker, None)
        self._reported.pop(worker, None)
        return self._sweep_soon()

    def _sweep_soon(self) -> tuple[Effect, ...]:
        if self._sweeping:
            return ()
        self._sweeping = True
        return (Wake(0.0, Tick("sweep")),)

    def _on_rare(self, message: Message, now: float) -> Iterable[Effect]:
        match message:
            case CaughtUp(sequence):
                self._on_caught_up(now)
                log = Log("info", "journal is read", {"sequence": sequence})
                return (log, *self._review(now))
            case JournalGap(first, last):
                return self._on_gap(first, last, now)
            case JournalRecreated(created):
                self._recreations += 1
                self.replica.begin_again(created, now)
                log = Log("warning", "journal was remade", {"created": created})
                return (log, *self._review(now))
            case JournalOpened(created):
                self.caught_up = False
                self.replica.open(created, now)
            case Mispredicted():
                return self._on_mispredicted(message)
            case RouterGone(router):
                self.replica.forget_peer(router)
                self.formats.forget_router(router, now)
            case Started():
                self.formats.begin(now)
                return (Wake(self._options.check_s, Tick("check")),)
            case _:
                pass
        return ()

    def _on_caught_up(self, now: float) -> None:
        """Start the heartbeat timeouts of the workers that a snapshot names."""
        self.caught_up = True
        if self._read_s is None:
            self._read_s = now
        for worker in self.replica.workers():
            if worker not in self._received:
                self._unheard.setdefault(worker, now)

    def _on_gap(self, first: int, last: int, now: float) -> Iterable[Effect]:
        self._gaps += 1
        self.replica.skip(last, now)
        log = Log("warning", "journal purged before it was read", {"first": first, "last": last})
        reload = self._options.reload_to
        wish = (Send(reload, Reload("journal gap", at_least=last)),) if reload else ()
        return (log, *self._review(now), *wish)
