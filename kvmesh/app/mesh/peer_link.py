"""What ties a router replica to its siblings: heartbeats and bookings over NATS, and commands."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator

from kvmesh.actors.asking import ROUTER, WORKER
from kvmesh.actors.members.registry import Registry, RegistryOptions
from kvmesh.actors.members.replica_sync import ReplicaSync, ReplicaSyncOptions
from kvmesh.actors.members.router import Router
from kvmesh.actors.messages import RouterHeartbeat
from kvmesh.app.care.prober import Probe
from kvmesh.app.care.silence_watch import watch_silence
from kvmesh.app.figures.figure import Source
from kvmesh.app.figures.mesh import BOOKINGS, HEARING, PEERS
from kvmesh.app.front.front import upstream_pool
from kvmesh.app.mesh.nats_link import connection_for, inbox_prefix, subjects_for
from kvmesh.app.mesh.session_store import SessionStore
from kvmesh.app.process.running import first_of
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.url_guard import UrlGuard
from kvmesh.core.routing.registry import WorkerRegistry
from kvmesh.runtime.aio import AioDriver
from kvmesh.settings.roles import RouterSettings
from kvmesh.transport.nats.journal.keeper import StreamKeeper
from kvmesh.transport.nats.link.bus import NatsBus
from kvmesh.transport.nats.link.connection import NatsConnection


class PeerLink:
    """The registry of replicas (and of `workers`, where they send heartbeats) and their bookings.

    `epoch` is this incarnation of the replica, larger than every one before.
    """

    def __init__(
        self,
        settings: RouterSettings,
        router_id: str,
        router: Router,
        status: Callable[[], RouterHeartbeat],
        *,
        hears_workers: bool,
        followers: tuple[str, ...] = (),
    ) -> None:
        """Tell `followers`, actors that `driver` runs beside these two, of replicas and workers.

        Without `hears_workers` the workers are known otherwise than by their heartbeats.
        """
        self.router_id = router_id
        self.epoch = time.time_ns() // 1_000_000
        self.subjects = subjects_for(settings.nats, settings.bucket)
        self.peers = Membership()
        inbox = inbox_prefix("router", settings.bucket, router_id)
        self._connection = connection_for(settings.nats, f"router {router_id}", inbox)
        self.keeper = StreamKeeper(self._connection)
        self._settings = settings
        self._hears_workers = hears_workers
        self._watching: list[asyncio.Task[None]] = []
        scheduler = router.scheduler
        self._sessions = scheduler.sessions
        nobody = WorkerRegistry(Membership(), scheduler.sequences)
        self.registry = Registry(
            RegistryOptions(
                router=router_id,
                bucket=settings.bucket,
                namespace=settings.nats.namespace,
                workers_to=(router.name, *followers),
                routers_to=("replica_sync", *followers),
                kv_events=settings.kv_events,
            ),
            scheduler.workers if hears_workers else nobody,
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

    async def connect(self, stack: contextlib.AsyncExitStack) -> NatsConnection:
        """Return the replica's connection, open until `stack` ends; waits for the server.

        Raises `ConfigError` or `TransportError` for what waiting will not cure.
        """
        connection = self._connection
        await connection.connect_patiently()
        stack.push_async_callback(connection.close)
        stack.callback(connection.on_change(self.registry.hearing.set_connected))
        return connection

    def waiting(self) -> str:
        """Return what of NATS the start waits for; "" when it does not."""
        return self._connection.waits.reason

    async def listen(
        self, stack: contextlib.AsyncExitStack, bus: NatsBus, driver: AioDriver
    ) -> None:
        """Feed the two actors, which `driver` runs, until `stack` ends."""
        subjects, name = self.subjects, self.registry.name
        patterns = [(subjects.routers(), name), (subjects.bookings(), self.replica_sync.name)]
        if self._hears_workers:
            patterns.append((subjects.heartbeats(), name))
        for pattern, actor in patterns:
            subscription = await bus.subscribe(pattern, driver.deliver_to(actor))
            stack.push_async_callback(subscription.close)

    def watch_silence(self, stack: contextlib.AsyncExitStack, driver: AioDriver) -> None:
        """Ask over HTTP who is not heard, until `stack` ends. Siblings get no engine's key."""
        settings, registry = self._settings.upstream, self.registry
        registry.hearing.set_asked()
        engines = upstream_pool(settings, registry.workers.guard)
        siblings = upstream_pool(settings, UrlGuard(), with_key=False)
        self._watching = [
            watch_silence(stack, driver, registry.name, engines, self._worker_probes),
            watch_silence(stack, driver, registry.name, siblings, self._router_probes),
        ]

    async def failed(self) -> None:
        """Look after the streams until asking fails, and raise its error."""
        await first_of(self.keeper.run(), *map(asyncio.shield, self._watching))

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

    async def share_sessions(
        self, stack: contextlib.AsyncExitStack, connection: NatsConnection
    ) -> None:
        """Follow the bindings of sessions, where they are on, until `stack` ends."""
        if self._sessions is not None:
            store = SessionStore(self._sessions, self._settings.nats, connection, self.subjects)
            stack.push_async_callback(store.stop)
            await store.start()
            self.keeper.keep(store.config())

    def warnings(self) -> tuple[str, ...]:
        """Return what of NATS makes routing worse than it could be, one line each."""
        return (*self.registry.hearing.warnings(), *self._connection.troubles.warnings())

    def figures(self) -> Iterator[Source]:
        """Yield what is counted of the siblings."""
        yield PEERS.of(lambda: len(self.peers.members()))
        yield BOOKINGS.of(self.replica_sync.statistics)
        yield HEARING.of(lambda: self.registry.hearing)

    def replicas(self) -> tuple[RouterHeartbeat, ...]:
        """Return the last signs of life of the siblings."""
        found = map(self.registry.replica, self.peers.members())
        return tuple(peer for peer in found if peer is not None)
