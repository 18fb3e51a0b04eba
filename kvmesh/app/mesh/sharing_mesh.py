"""A replica without a journal: what is cached is guessed from what it and its siblings routed."""

import time
from collections.abc import Callable, Iterator

from kvmesh._native import Booking
from kvmesh.actors.kernel import Message
from kvmesh.actors.member_messages import DrainWorker
from kvmesh.actors.messages import RouterHeartbeat
from kvmesh.actors.router import Router
from kvmesh.actors.wire import encode
from kvmesh.app.members.warning_lines import NO_USABLE_WORKER
from kvmesh.app.mesh.peer_link import LinkOptions, PeerLink, Role
from kvmesh.app.mesh.static_workers import StaticWorkers
from kvmesh.app.views.figure import Source
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.engines.kv_events.regaining import CacheHit
from kvmesh.core.insight.predictions import Distrust
from kvmesh.ports import Handler
from kvmesh.settings.roles import RouterSettings


class SharingMesh:
    """Shares bookings and routed prompts with the siblings of the bucket.

    `static` are the workers of the command line, which siblings must call by the same names;
    without them the workers are those whose sidecars send heartbeats.
    """

    def __init__(
        self,
        settings: RouterSettings,
        router_id: str,
        router: Router,
        static: StaticWorkers | None,
        *,
        role: Role = "router",
    ) -> None:
        self.draining = False
        self._url = ""
        self._router = router
        self._known = router.scheduler.workers
        self._static = static
        options = LinkOptions(router_id, receives_workers=static is None, role=role)
        self.link = PeerLink(settings, router, self.heartbeat, options)
        self.outbox = self.link.replica_sync.outbox
        self.post = self.link.post
        self.share_streams = self.link.share_streams
        self.stop = self.link.stop

    def why_not(self) -> str:
        """Return why no request should come; "" when some worker may be given one.

        Workers of the command line are served without the plane, too: what is missing are siblings.
        """
        if self.draining:
            return "draining"
        if self._static is not None:
            return self._static.why_not()
        if waiting := self.link.plane.waiting():
            return waiting
        usable = self._known.membership.usable(time.monotonic())
        return "" if usable else NO_USABLE_WORKER

    def warnings(self) -> tuple[str, ...]:
        """Return whether the plane is silent, and what else makes routing worse."""
        static = self._static.warnings() if self._static is not None else ()
        waiting = self.link.plane.waiting()
        alone = (f"{waiting}: siblings are not heard",) if waiting else ()
        return (*self.link.warnings(), *alone, *static)

    def heartbeat(self) -> RouterHeartbeat:
        """Return this replica's present sign of life: it has read no journal."""
        return self.link.sign_of_life(
            self._url, ready=not self.why_not(), draining=self.draining, follower=False
        )

    def describe(self) -> dict[str, object]:
        """Return the workers' state where they are static, and the siblings'."""
        own: dict[str, object] = {"kv_events": False}
        if self._static is not None:
            own = self._static.describe()
        return {
            **own,
            "signatures": self.link.signatures(),
            "versions": self.link.versions().by_role(),
            "registry": self.link.registry.statistics(),
            "replica_sync": self.link.replica_sync.statistics(),
            "peers": self.link.peers.view(time.monotonic()),
        }

    def figures(self) -> Iterator[Source]:
        """Yield what is counted in this part."""
        if self._static is not None:
            yield from self._static.figures()
        yield from self.link.figures()

    def replicas(self) -> tuple[RouterHeartbeat, ...]:
        """Return the last signs of life of this replica and its siblings, own first."""
        return (self.heartbeat(), *self.link.replicas())

    def digests(self) -> tuple[int, int]:
        """Return that nothing is ever compared."""
        return 0, 0

    @property
    def released(self) -> Callable[[Booking], None] | None:
        """Return who has to know of released bookings: the engines' events must follow."""
        return self._static.released if self._static is not None else None

    def distrust(self, worker: WorkerId, distrust: Distrust) -> None:
        """Ignore wrong predictions: without events nothing more exact can be requested."""

    def served(self, worker: WorkerId, answer: CacheHit) -> None:
        """Pass on what an answer says of an engine's cache, where its events are followed."""
        if self._static is not None:
            self._static.served(worker, answer)

    def emptied(self, worker: WorkerId) -> None:
        """Pass on that an engine forgot its cache, where its events are followed."""
        if self._static is not None:
            self._static.emptied(worker)

    def drain(self, worker: WorkerId, *, draining: bool) -> None:
        """Have the worker's sidecar drain it; one of the command line has none: tell siblings."""
        if self._static is None:
            self.link.drain_worker(worker, draining=draining)
            return
        self._static.drain(worker, draining=draining)
        for sibling in self.link.replicas():
            subject = self.link.subjects.router_control(sibling.router)
            self.link.plane.bus.publish(subject, encode(DrainWorker(worker, draining)))

    async def _on_drain(self, command: DrainWorker) -> None:
        assert self._static is not None
        self._static.drain(WorkerId(command.worker), draining=command.draining)

    async def start(self, advertise_url: str) -> None:
        """Find the workers, connect, tell and listen.

        Waits for a server that is away, `why_not` says so; one that cannot be used raises
        `TransportError` or `ConfigError`.
        """
        self._url = advertise_url
        link = self.link
        if self._static is not None:
            link.stack.push_async_callback(self._static.stop)
            await self._static.start(advertise_url)
        await link.connect()
        driver = link.make_driver()
        if self._static is None:
            driver.add(self._router)
        await link.share_tables()
        handlers: dict[type[Message], Handler] = (
            {} if self._static is None else {DrainWorker: self._on_drain}
        )
        await link.run(self, lambda: not self.why_not(), handlers)

    async def failed(self) -> None:
        """Look after the bucket of sessions until a part fails; raise what it raised."""
        static = [] if self._static is None else [self._static.failed()]
        await self.link.failed(self.link.keep_streams(), *static)
