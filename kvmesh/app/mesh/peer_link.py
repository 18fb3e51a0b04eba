"""What ties a router replica to its siblings: heartbeats, bookings, sessions."""

import asyncio
import contextlib
import time
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from typing import Literal

import msgspec

from kvmesh.actors.kernel import Message
from kvmesh.actors.member_messages import ROUTER, WORKER
from kvmesh.actors.messages import BookingsWait, Drain, RouterHeartbeat
from kvmesh.actors.registry import Registry, RegistryOptions
from kvmesh.actors.replica_sync import ReplicaSync, ReplicaSyncOptions
from kvmesh.actors.router import Router
from kvmesh.actors.wire import MOST_MODELS_BYTES, MOST_WORKERS_BYTES, encode, fitting
from kvmesh.app.front.front import upstream_pool
from kvmesh.app.members.prober import Probe
from kvmesh.app.members.silence_watch import watch_silence
from kvmesh.app.members.warning_lines import by_reason
from kvmesh.app.mesh.home_store import HomeStore
from kvmesh.app.mesh.limit_store import LimitStore
from kvmesh.app.mesh.plane import event_plane, subjects_for
from kvmesh.app.mesh.program_store import ProgramStore
from kvmesh.app.mesh.router_commands import RouterCommands
from kvmesh.app.mesh.router_mesh import Hear, MeshPart
from kvmesh.app.mesh.session_store import SessionStore
from kvmesh.app.mesh.usage_store import UsageStore
from kvmesh.app.process.aio import AioDriver
from kvmesh.app.process.build import own_version
from kvmesh.app.process.running import first_of
from kvmesh.app.views.figure import Source
from kvmesh.app.views.mesh_figures import (
    BOOKINGS,
    HEARING,
    HEARTBEATS,
    PEERS,
    TRUST,
    VERSIONS,
    MemberVersions,
    PeerCounts,
)
from kvmesh.app.views.program_figures import PROGRAM_NEWS
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.url_guard import UrlGuard
from kvmesh.core.programs.sharing import ProgramSharing
from kvmesh.core.routing.registry import WorkerRegistry
from kvmesh.formats import OWN
from kvmesh.observe import actor_log
from kvmesh.ports import Handler, Journal
from kvmesh.settings.roles import RouterSettings
from kvmesh.tasks import keep_running, supervise

Role = Literal["router", "picker", "follower"]
"""What a member that books in a bucket is: a picker is a router that only gateways ask."""


class LinkOptions(msgspec.Struct, frozen=True):
    """Who this is, and as what.

    Of replicas and workers `listeners` are told, actors that run beside the link's two. Without
    `receives_workers` the workers are known otherwise than by their heartbeats.
    """

    router_id: str
    receives_workers: bool = True
    listeners: tuple[str, ...] = ()
    role: Role = "router"


class PeerLink:
    """The registry of replicas (and of `workers`, where they send heartbeats) and their bookings.

    `epoch` is this incarnation of the replica, larger than every one before. `driver` runs the
    actors of the replica once it is connected; what is open is closed with `stack`.
    """

    def __init__(
        self,
        settings: RouterSettings,
        router: Router,
        status: Callable[[], RouterHeartbeat],
        options: LinkOptions,
    ) -> None:
        self.router_id = router_id = options.router_id
        self.epoch = time.time_ns() // 1_000_000
        self.subjects = subjects_for(settings.nats, settings.bucket)
        self.peers = Membership()
        self.plane = event_plane(settings.nats, options.role, settings.bucket, router_id)
        self._settings = settings
        self._receives_workers = options.receives_workers
        scheduler = router.scheduler
        self._sessions = scheduler.sessions
        self._router = router
        self._role: Role = options.role
        self._sharing: ProgramSharing | None = None
        self._hears_streams: Hear | None = None
        self._listens = False
        self.stack = contextlib.AsyncExitStack()
        self.driver: AioDriver | None = None
        self._running: asyncio.Task[None] | None = None
        self._commands: RouterCommands | None = None
        nobody = WorkerRegistry(Membership(), scheduler.sequences)
        self.registry = Registry(
            RegistryOptions(
                router=router_id,
                bucket=settings.bucket,
                namespace=settings.nats.namespace,
                workers_to=(router.name, *options.listeners),
                routers_to=("replica_sync", *options.listeners),
                kv_events=settings.kv_events,
                secret_mark=router.secret_mark,
            ),
            scheduler.workers if options.receives_workers else nobody,
            self.peers,
            status=status,
        )
        self.replica_sync = ReplicaSync(
            scheduler,
            ReplicaSyncOptions(
                router=router_id,
                bucket=settings.bucket,
                epoch=self.epoch,
                namespace=settings.nats.namespace,
            ),
        )

    def sign_of_life(
        self, url: str, *, ready: bool, draining: bool, follower: bool
    ) -> RouterHeartbeat:
        """Return what each replica says of itself, whatever it reads: it takes requests at `url`,
        "" for none. A picker is called a follower, too.
        """
        router, now = self._router, time.monotonic()
        workers, picker = router.scheduler.workers, self._role == "picker"
        fetches = {peer.router: peer.fetches for peer in self.replicas()}
        return RouterHeartbeat(
            router=self.router_id,
            bucket=self._settings.bucket,
            url=url,
            ready=ready,
            epoch=self.epoch,
            active_requests=router.scheduler.sequences.statistics().active_requests,
            models=fitting(router.models(), MOST_MODELS_BYTES),
            draining=draining,
            admission=router.admission,
            policy=router.policy,
            workers=fitting(workers.membership.members(), MOST_WORKERS_BYTES),
            left_out=router.left_out(now),
            follower=follower or picker,
            version=own_version(),
            formats=OWN,
            fetches=workers.fetch_times.exchange(fetches, now),
            picker=picker,
            prompts=router.kept_prompts,
        )

    async def connect(self) -> None:
        """Open the plane; waits for the server.

        Raises `ConfigError` or `TransportError` for what waiting will not cure.
        """
        plane = self.plane
        await plane.connect(patient=True)
        self.stack.push_async_callback(plane.close)
        self.stack.callback(plane.on_change(self.registry.link_health.set_connected))

    def make_driver(self, journal: Journal | None = None) -> AioDriver:
        """Return what is to run the replica's actors, the link's own two among them."""
        self.driver = driver = AioDriver(journal=journal, bus=self.plane.bus, log=actor_log())
        driver.add(self.registry)
        driver.add(self.replica_sync)
        return driver

    def drain_worker(self, worker: WorkerId, *, draining: bool) -> None:
        """Tell a worker's sidecar to drain, or to take requests again: its heartbeats say so."""
        self.plane.bus.publish(self.subjects.control(worker), encode(Drain(draining=draining)))

    def post(self, message: Message) -> None:
        """Publish a message to the other replicas."""
        if self.driver is not None:
            self.driver.post(self.replica_sync.name, message)

    async def run(
        self,
        part: MeshPart,
        is_warm: Callable[[], bool],
        handlers: Mapping[type[Message], Handler] = {},
        begin: Callable[[], None] = lambda: None,
    ) -> None:
        """Begin to listen, to run the actors and to take commands for `part` (`RouterCommands`);
        call `begin` when it is warm.
        """
        stack, driver = self.stack, self.driver
        assert driver is not None, "it is connected"
        await self._listen(driver)
        driver.start()
        self._running = supervise("actors", driver.run, "end")
        stack.callback(driver.stop)
        self._watch_silence(driver)
        target = self.subjects.router_control(self.router_id)
        self._commands = RouterCommands(self.plane, target, part, self.post, handlers)
        self._commands.start(is_warm, begin)
        stack.push_async_callback(self._commands.close)

    async def failed(self, *others: Awaitable[None]) -> None:
        """Wait until an actor, the answering of commands or one of `others` fails; raise that."""
        assert self._running is not None
        assert self._commands is not None
        await first_of(asyncio.shield(self._running), self._commands.failed(), *others)

    async def stop(self) -> None:
        """Leave the mesh; safe to call twice."""
        await self.stack.aclose()
        if self._running is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._running

    async def _listen(self, driver: AioDriver) -> None:
        subjects, name = self.subjects, self.registry.name
        sync = self.replica_sync
        sync.outbox.on_first = partial(driver.post, sync.name, BookingsWait())
        heartbeats = driver.deliver_to(name)
        subscribers = [
            (subjects.routers(), heartbeats),
            (subjects.bookings(), driver.hand_to(sync.name)),
        ]
        if self._receives_workers:
            subscribers.append((subjects.heartbeats(), heartbeats))
        if self._hears_streams is not None:
            subscribers.append((subjects.named_streams(), self._hears_streams))
        for pattern, deliver in subscribers:
            subscription = await self.plane.bus.subscribe(pattern, deliver)
            self.stack.push_async_callback(subscription.close)
        self._listens = True

    def share_streams(self, hear: Hear) -> Callable[[bytes], None]:
        """Have what siblings tell of named streams heard from when this link listens; return what
        tells them, and nobody before.
        """
        self._hears_streams = hear
        subject = self.subjects.named_streams(self.router_id)

        def publish(message: bytes) -> None:
            if self._listens:
                self.plane.bus.publish(subject, message)

        return publish

    def _watch_silence(self, driver: AioDriver) -> None:
        """Ask over HTTP who is not heard. Siblings get no engine's key."""
        settings, registry, stack = self._settings.upstream, self.registry, self.stack
        registry.link_health.set_asked()
        engines = upstream_pool(settings, registry.workers.guard)
        siblings = upstream_pool(settings, UrlGuard(), with_key=False)
        watch_silence(stack, driver, registry.name, engines, self._worker_probes)
        watch_silence(stack, driver, registry.name, siblings, self._router_probes)

    async def keep_streams(self) -> None:
        """Recreate streams that are deleted, as long as the process runs."""
        await keep_running("keep streams", self.plane.keep)

    def _worker_probes(self, now: float) -> list[Probe]:
        return [
            Probe.of(WORKER + name, beat.url, beat.health_path, exact=True)
            for name, beat in self.registry.silent_workers.due(now)
        ]

    def _router_probes(self, now: float) -> list[Probe]:
        return [
            Probe(ROUTER + name, beat.url, "/health", exact=True)
            for name, beat in self.registry.silent_routers.due(now)
        ]

    async def share_tables(self) -> None:
        """Follow whose ids are, the bindings of sessions, what was used and the agents of programs,
        where they are kept.
        """
        stack = self.stack
        if self._sessions is not None:
            ttl_s = int(self._sessions.options.ttl_s)
            table = await self.plane.sessions(self._settings.bucket, ttl_s)
            store = SessionStore(self._sessions, table)
            stack.push_async_callback(store.stop)
            await store.start()
        ids, bucket = self._router.ids, self._settings.bucket
        make = partial(self.plane.ids, bucket, int(ids.options.ttl_s), ids.options.max_ids)
        kept = HomeStore(ids, self.plane, make, "ids")
        stack.push_async_callback(kept.stop)
        await kept.start()
        if (book := self._router.usage) is not None:
            subject = self.subjects.usage(self.router_id)
            record = UsageStore(book, self.plane, bucket, subject)
            stack.push_async_callback(record.stop)
            record.start()
        if (limits := self._router.limits) is not None:
            charges = LimitStore(limits, self.plane, self.subjects, self.router_id)
            stack.push_async_callback(charges.stop)
            await charges.start()
        governor = self._router.scheduler.governor
        if governor is not None:
            sharing = ProgramSharing(governor, self.router_id, self.epoch)
            programs = ProgramStore(sharing, self.plane, self._settings.bucket, self._alive)
            stack.push_async_callback(programs.stop)
            await programs.start()
            self._sharing = sharing

    def warnings(self) -> tuple[str, ...]:
        """Return what of the plane makes routing worse than it could be, one line each."""
        registry, now = self.registry, time.monotonic()
        lost = by_reason(registry.given_up(now), "gets no requests")
        links = registry.link_health.warnings()
        return (*links, *lost, *registry.warnings(now), *self.plane.warnings())

    def signatures(self) -> dict[str, object]:
        """Return whether this process looks at signatures, and what it refuses now, in words."""
        reported = self.plane.unverified()
        return {"verifies": reported.verifies, "refused": reported.lines}

    def figures(self) -> Iterator[Source]:
        """Yield what is counted of the siblings."""
        yield PEERS.of(self._count)
        yield VERSIONS.of(self.versions)
        yield HEARTBEATS.of(self.registry.statistics)
        yield BOOKINGS.of(self.replica_sync.statistics)
        yield HEARING.of(lambda: self.registry.link_health)
        yield TRUST.of(self.plane.unverified)
        yield PROGRAM_NEWS.of_each(
            lambda: {} if self._sharing is None else {(): self._sharing.statistics()}
        )

    def replicas(self) -> tuple[RouterHeartbeat, ...]:
        """Return the last signs of life of the siblings that decide requests."""
        return tuple(peer for peer in self._received() if peer.decides)

    def _alive(self) -> dict[str, int]:
        return {peer.router: peer.epoch for peer in self._received()}

    def _count(self) -> PeerCounts:
        replicas = [peer.decides for peer in self._received()]
        return PeerCounts(replicas.count(True), replicas.count(False))

    def versions(self) -> MemberVersions:
        """Return the versions of all members of the bucket, this one's too."""
        versions: dict[Role, list[str]] = {"router": [], "picker": [], "follower": []}
        versions[self._role].append(own_version())
        for beat in self._received():
            versions[_role(beat)].append(beat.version)
        workers = self._router.workers() if self._receives_workers else ()
        return MemberVersions(
            routers=tuple(versions["router"]),
            pickers=tuple(versions["picker"]),
            followers=tuple(versions["follower"]),
            workers=tuple(one.version for one in workers),
        )

    def _received(self) -> Iterator[RouterHeartbeat]:
        found = map(self.registry.replica, self.peers.members())
        return (peer for peer in found if peer is not None)


def _role(beat: RouterHeartbeat) -> Role:
    if beat.picker:
        return "picker"
    return "follower" if beat.follower else "router"
