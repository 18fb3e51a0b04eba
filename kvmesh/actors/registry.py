"""Who is there: heartbeats of workers and router replicas in, membership and its changes out."""

from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from kvmesh.actors.kernel import Effect, Fields, Log, Message, Publish, Send, Wake
from kvmesh.actors.load_readings import LoadReadings
from kvmesh.actors.member_messages import WORKER, Answered
from kvmesh.actors.messages import (
    BusMessage,
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
from kvmesh.actors.refusals import Refusals
from kvmesh.actors.room import MOST_ROUTERS, Room
from kvmesh.actors.wire import Subjects, decode, encode, last_token
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.engines.registry import engine_of
from kvmesh.core.journal.event_sender import is_followable
from kvmesh.core.journal.ordering import NOTHING_FITS
from kvmesh.core.journal.replica import MOST_WORKERS
from kvmesh.core.members.incarnations import Incarnations
from kvmesh.core.members.link_health import LinkHealth
from kvmesh.core.members.membership import Change, ChangeKind, Membership
from kvmesh.core.members.silent_members import GIVEN_UP, SilentMembers
from kvmesh.core.members.worker_info import Trust, WorkerInfo
from kvmesh.core.routing.registry import WorkerRegistry
from kvmesh.errors import CodecError

ENGINE_HANGS: Final = "its engine is down or hangs: it does not answer its health checks"


class RegistryOptions(msgspec.Struct, frozen=True):
    """Who this replica is, and which actors want to hear of workers and of other replicas.

    Without `kv_events` no worker is known better than by what was sent to it, and neither is one
    that hashes by another secret than `secret_mark` tells of (None: whatever it hashes by). With
    `max_workers`
    workers, or `max_routers` replicas, a newcomer is refused, and who is there stays.
    """

    router: str
    bucket: str
    namespace: str = "kvmesh"
    workers_to: tuple[str, ...] = ()
    routers_to: tuple[str, ...] = ()
    kv_events: bool = True
    secret_mark: int | None = None
    max_workers: int = MOST_WORKERS
    max_routers: int = MOST_ROUTERS
    heartbeat_s: float = 1.0
    check_s: float = 0.25


class RegistryStatistics(msgspec.Struct, frozen=True):
    """Heartbeats taken, and those dropped: garbage, an older incarnation's, a refused URL's, a
    newcomer's for whom there is no room (`crowded`).
    """

    worker_heartbeats: int
    router_heartbeats: int
    garbage: int
    outdated: int
    refused: int
    crowded: int


class Registry:
    """Keeps `workers` and `routers` as the heartbeats say; the scheduler reads them directly.

    A member whose heartbeats stop is asked over HTTP (`silent_workers`, `silent_routers`), if
    somebody does, and gone when it does not answer; a worker that only answers is known
    approximately, since its events may not all arrive. Every heartbeat is passed on, since its
    figures matter to others. `status` makes this replica's own heartbeat; None for a process that
    only listens (the meta-router). A worker whose URL `workers.guard` refuses is none.
    """

    def __init__(
        self,
        options: RegistryOptions,
        workers: WorkerRegistry,
        routers: Membership,
        *,
        status: Callable[[], RouterHeartbeat] | None = None,
        name: str = "registry",
    ) -> None:
        self.name = name
        self.workers = workers
        self.routers = routers
        self.link_health = LinkHealth(workers.membership, routers)
        workers.settled = False
        self._options = options
        self._subjects = Subjects(options.namespace, options.bucket)
        self._status = status
        self._namesake = 0
        self._heartbeats: dict[WorkerId, WorkerHeartbeat] = {}
        self._readings = LoadReadings(workers)
        self._replicas: dict[str, RouterHeartbeat] = {}
        self._trusts: dict[WorkerId, Trust] = {}
        self._incarnations = Incarnations()
        self.silent_workers = SilentMembers(
            workers.membership, lambda name: self._heartbeats.get(WorkerId(name))
        )
        self.silent_routers = SilentMembers(routers, self._replicas.get)
        self._worker_count = self._router_count = self._outdated = 0
        self._garbage = Refusals()
        most, workers_in = options.max_workers, workers.membership
        self._worker_room = Room(workers_in, most, "workers", "make more buckets")
        self._router_room = Room(routers, options.max_routers, "routers", "rotate a router's key")

    def receive(self, message: Message, now: float) -> Iterable[Effect]:
        """Fold one message; see `messages` for what each means."""
        match message:
            case BusMessage(subject, data):
                return self._on_bus(subject, data, now)
            case WorkerHeartbeat():
                return self._on_worker(message, now)
            case RouterHeartbeat():
                return self._on_router(message, now)
            case Tick(kind):
                return self._on_tick(kind, now)
            case _:
                return self._on_rare(message, now)

    def heartbeat(self, worker: WorkerId) -> WorkerHeartbeat | None:
        """Return the worker's last heartbeat; None when it is gone."""
        return self._heartbeats.get(worker)

    def replica(self, router: str) -> RouterHeartbeat | None:
        """Return another replica's last heartbeat; None when it is gone."""
        return self._replicas.get(router)

    def statistics(self) -> RegistryStatistics:
        """Return the present counts."""
        return RegistryStatistics(
            self._worker_count,
            self._router_count,
            self._garbage.count,
            self._outdated,
            self.workers.guard.refusals,
            self._worker_room.refused + self._router_room.refused,
        )

    def warnings(self, now: float) -> tuple[str, ...]:
        """Return that members are turned down for lack of room, in a line, while that is so."""
        return (*self._worker_room.warnings(now), *self._router_room.warnings(now))

    def given_up(self, now: float) -> list[tuple[str, str]]:
        """Return the workers and replicas that were lost of late, and in words why."""
        lost = (*self.silent_workers.lost(now), *self.silent_routers.lost(now))
        return [(name, GIVEN_UP) for name in lost]

    def _on_bus(self, subject: str, data: bytes, now: float) -> Iterable[Effect]:
        """Take a heartbeat; one that speaks for somebody else than its subject is garbage."""
        reason = "it names another sender than its subject"
        try:
            if subject == self._subjects.heartbeats(last_token(subject)):
                worker = decode(data, WorkerHeartbeat)
                if worker.worker == last_token(subject):
                    return self._on_worker(worker, now)
            elif subject == self._subjects.routers(last_token(subject)):
                router = decode(data, RouterHeartbeat)
                if router.router == last_token(subject):
                    return self._on_router(router, now)
        except CodecError as error:
            reason = str(error)
        return self._garbage.note(subject, reason, now)

    def _on_worker(self, beat: WorkerHeartbeat, now: float) -> Iterable[Effect]:
        self._worker_count += 1
        self.link_health.note_alive(now)
        worker = beat.worker
        if refusal := self.workers.guard.judge(worker, beat.url, now):
            fields = {"worker": worker, "reason": refusal.reason}
            return (Log("error", "worker refused", fields),) if refusal.new else ()
        members = self.workers.membership
        if not self._worker_room.has_room_for(worker):
            return self._worker_room.refuse(worker, now)
        known = members.epoch(worker)
        above = self._incarnations.to_pass(worker, beat.incarnation, beat.epoch, known)
        if above is not None and is_followable(above):
            return self._raise_epoch(beat, above)
        change = members.observe(
            worker, beat.epoch, now, ready=beat.answering, draining=beat.leaving, why=ENGINE_HANGS
        )
        if change is None and beat.epoch < (members.epoch(worker) or 0):
            self._outdated += 1
            return ()
        self.silent_workers.note_alive(worker)
        return self._take_worker(beat, change)

    def _raise_epoch(self, beat: WorkerHeartbeat, above: int) -> Iterable[Effect]:
        """Have a sidecar that started with a low epoch, by its clock, go on above the one known."""
        self._outdated += 1
        if self._status is None:
            return ()
        asked = Resync(
            beat.worker, above, NOTHING_FITS, self._options.router, incarnation=beat.incarnation
        )
        return (Publish(self._subjects.control(beat.worker), encode(asked)),)

    def _take_worker(self, beat: WorkerHeartbeat, change: Change | None) -> Iterable[Effect]:
        worker = beat.worker
        former = self._heartbeats.get(worker)
        self._heartbeats[worker] = beat
        self._describe(beat)
        self._readings.receive(beat, former)
        joined, restarted = _kind(change)
        sends = (Send(to, WorkerSeen(beat, joined, restarted)) for to in self._options.workers_to)
        return (*_log("worker", change), *sends)

    def _on_trust(self, worker: WorkerId, trust: Trust) -> Iterable[Effect]:
        """Note the trust of a member; it is reported again for one that joins later."""
        beat = self._heartbeats.get(worker)
        if beat is not None:
            self._trusts[worker] = trust
            self._describe(beat)
        return ()

    def _describe(self, beat: WorkerHeartbeat) -> None:
        """Note what a worker says; its events do not count while its heartbeats are not heard, or
        it hashes blocks by another secret.
        """
        options, silent = self._options, self.workers.membership.signs.silent
        trust = self._trusts.get(beat.worker, Trust.EXACT)
        stranger = options.secret_mark not in (None, beat.secret_mark)
        if stranger or not options.kv_events or beat.worker in silent:
            trust = Trust.APPROX
        self.workers.describe(beat.worker, info_of(beat, trust))

    def _on_router(self, beat: RouterHeartbeat, now: float) -> Iterable[Effect]:
        self.link_health.note_alive(now)
        if beat.router == self._options.router:
            return self._on_namesake(beat)
        self._router_count += 1
        if not self._router_room.has_room_for(beat.router):
            return self._router_room.refuse(beat.router, now)
        change = self.routers.observe(
            beat.router, beat.epoch, now, ready=beat.ready, draining=beat.draining
        )
        if change is None and beat.epoch < (self.routers.epoch(beat.router) or 0):
            self._outdated += 1
            return ()
        self.silent_routers.note_alive(beat.router)
        return self._take_router(beat, change)

    def _take_router(self, beat: RouterHeartbeat, change: Change | None) -> Iterable[Effect]:
        self._replicas[beat.router] = beat
        joined, restarted = _kind(change)
        sends = (Send(to, RouterSeen(beat, joined, restarted)) for to in self._options.routers_to)
        return (*_log("router", change), *sends)

    def _on_namesake(self, beat: RouterHeartbeat) -> Iterable[Effect]:
        """Log each other process with this replica's name once: heartbeats of only one count."""
        if self._status is None or beat.epoch in {self._status().epoch, self._namesake}:
            return ()
        self._namesake = beat.epoch
        remedy = "give each router a --router-id of its own"
        fields: Fields = {"router": beat.router, "url": beat.url, "remedy": remedy}
        return (Log("error", "another router has this name", fields),)

    def _on_tick(self, kind: str, now: float) -> Iterable[Effect]:
        if kind == "heartbeat":
            return self._beat()
        self.link_health.check(now)
        self.workers.settled = self.link_health.settled
        return (*self._expire(now), Wake(self._options.check_s, Tick("check")))

    def _expire(self, now: float) -> list[Effect]:
        effects: list[Effect] = []
        for change in self.workers.membership.expire(now):
            effects += self._bury_worker(change, now)
        for change in self.routers.expire(now):
            effects += _log("router", change)
            if change.kind is ChangeKind.LEFT:
                beat = self._replicas.pop(change.member)
                self.silent_routers.lose(change.member, beat, now)
                effects += (Send(to, RouterGone(change.member)) for to in self._options.routers_to)
        return effects

    def _bury_worker(self, change: Change, now: float) -> Iterable[Effect]:
        """Remove a worker that left; of a silent one, remove what its heartbeats reported."""
        worker = WorkerId(change.member)
        if change.kind is ChangeKind.SILENT:
            self._describe(self._heartbeats[worker])
            self.workers.forget_report(worker)
            return _log("worker", change)
        self.silent_workers.lose(worker, self._heartbeats.pop(worker), now)
        self._readings.forget(worker)
        self._trusts.pop(worker, None)
        self._incarnations.forget(worker)
        self.workers.remove(worker)
        sends = (Send(to, WorkerGone(worker)) for to in self._options.workers_to)
        return (*_log("worker", change), *sends)

    def _on_answered(self, message: Answered, now: float) -> Iterable[Effect]:
        """Keep a silent member that answers, give up one that is not there; see who is back."""
        back: Iterable[Effect] = ()
        name = message.member.partition("/")[2]
        if message.member.startswith(WORKER):
            worker = self.silent_workers.answered(name, message.answer, now)
            if worker is not None and self._worker_room.has_room_for(name):
                change = self.workers.membership.readmit(name, worker.epoch, now)
                back = self._take_worker(worker, change)
        else:
            router = self.silent_routers.answered(name, message.answer, now)
            if router is not None and self._router_room.has_room_for(name):
                back = self._take_router(router, self.routers.readmit(name, router.epoch, now))
        return (*back, *self._expire(now))

    def _on_rare(self, message: Message, now: float) -> Iterable[Effect]:
        match message:
            case TrustChanged(worker, trust):
                return self._on_trust(worker, trust)
            case Answered():
                return self._on_answered(message, now)
            case Started():
                self.link_health.begin(now)
                return (*self._beat(), Wake(self._options.check_s, Tick("check")))
            case _:
                return ()

    def _beat(self) -> Iterable[Effect]:
        """Tell the others that this replica lives."""
        if self._status is None:
            return ()
        data = encode(self._status())
        wake = Wake(self._options.heartbeat_s, Tick("heartbeat"))
        return (Publish(self._subjects.routers(self._options.router), data), wake)


def _kind(change: Change | None) -> tuple[bool, bool]:
    """Return (joined, restarted)."""
    kind = None if change is None else change.kind
    return kind is ChangeKind.JOINED, kind is ChangeKind.RESTARTED


def _log(what: str, change: Change | None) -> tuple[Effect, ...]:
    """Return a line for a change worth one."""
    if change is None:
        return ()
    kind = change.kind
    fields: Fields = {"member": change.member, "change": kind.value, "epoch": change.epoch}
    return (Log("warning" if kind is ChangeKind.LEFT else "info", f"{what} changed", fields),)


def info_of(beat: WorkerHeartbeat, trust: Trust = Trust.EXACT) -> WorkerInfo:
    """Return what a heartbeat says of its worker, whose events may be believed so far."""
    return WorkerInfo(
        models=beat.models,
        total_blocks=beat.load.report().total_blocks,
        trust=trust,
        labels=frozenset(beat.labels),
        taints=frozenset(beat.taints),
        caches_late=engine_of(beat.engine_kind).caches_late,
        block_size=beat.block_size,
    )
