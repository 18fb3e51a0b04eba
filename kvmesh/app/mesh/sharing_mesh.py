"""A replica without a journal: what is cached is guessed from what it and its siblings routed."""

import asyncio
import contextlib
import time
from collections.abc import Callable, Iterator

from kvmesh._native import Booking, BookingOutbox
from kvmesh.actors.kernel import Message
from kvmesh.actors.members.router import Router
from kvmesh.actors.messages import RouterHeartbeat
from kvmesh.app.members.warning_lines import NO_USABLE_WORKER
from kvmesh.app.mesh.peer_link import LinkOptions, PeerLink, Role
from kvmesh.app.mesh.router_commands import RouterCommands
from kvmesh.app.mesh.router_mesh import Hear
from kvmesh.app.mesh.static_workers import StaticWorkers
from kvmesh.app.process.running import first_of
from kvmesh.app.views.figure import Source
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.engines.kv_events.regaining import CacheHit
from kvmesh.core.insight.predictions import Distrust
from kvmesh.observe import actor_log
from kvmesh.runtime.aio import AioDriver
from kvmesh.settings.roles import RouterSettings
from kvmesh.tasks import supervise


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
        self._driver: AioDriver | None = None
        self._stack = contextlib.AsyncExitStack()
        self._running: asyncio.Task[None] | None = None
        self._commands: RouterCommands | None = None

    def why_not(self) -> str:
        """Return why no request should come; "" when some worker may be given one.

        Workers of the command line are served without the plane, too: what is missing are siblings.
        """
        if self.draining:
            return "draining"
        if self._static is not None:
            return self._static.why_not()
        if waiting := self.link.waiting():
            return waiting
        usable = self._known.membership.usable(time.monotonic())
        return "" if usable else NO_USABLE_WORKER

    def warnings(self) -> tuple[str, ...]:
        """Return whether the plane is silent, and what else makes routing worse."""
        static = self._static.warnings() if self._static is not None else ()
        waiting = self.link.waiting()
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
    def outbox(self) -> BookingOutbox:
        """Return what is told of bookings, for the other replicas."""
        return self.link.replica_sync.outbox

    def post(self, message: Message) -> None:
        """Publish a message to the siblings."""
        if self._driver is not None:
            self._driver.post(self.link.replica_sync.name, message)

    @property
    def released(self) -> Callable[[Booking], None] | None:
        """Return who has to know of released bookings: the engines' events must follow."""
        return self._static.released if self._static is not None else None

    def share_streams(self, hear: Hear) -> Callable[[bytes], None]:
        """Have what siblings tell of named streams heard; return what tells them."""
        return self.link.share_streams(hear)

    def distrust(self, worker: WorkerId, distrust: Distrust) -> None:
        """Ignore wrong predictions: without events nothing more exact can be requested."""

    def served(self, worker: WorkerId, answer: CacheHit) -> None:
        """Pass on what an answer says of an engine's cache, where its events are followed."""
        if self._static is not None:
            self._static.served(worker, answer)

    async def start(self, advertise_url: str) -> None:
        """Find the workers, connect, tell and listen.

        Waits for a server that is away, `why_not` says so; one that cannot be used raises
        `TransportError` or `ConfigError`.
        """
        self._url = advertise_url
        link, stack = self.link, self._stack
        if self._static is not None:
            stack.push_async_callback(self._static.stop)
            await self._static.start(advertise_url)
        await link.connect(stack)
        driver = AioDriver(bus=link.plane.bus, log=actor_log())
        self._driver = driver
        driver.add(link.registry)
        driver.add(link.replica_sync)
        if self._static is None:
            driver.add(self._router)
        await link.share_tables(stack)
        await link.listen(stack, driver)
        driver.start()
        self._running = supervise("siblings", driver.run, "end")
        stack.callback(driver.stop)
        link.watch_silence(stack, driver)
        target = link.subjects.router_control(link.router_id)
        self._commands = RouterCommands(link.plane, target, self)
        self._commands.start(lambda: not self.why_not())
        stack.push_async_callback(self._commands.close)

    async def failed(self) -> None:
        """Look after the bucket of sessions until a part fails; raise what it raised."""
        assert self._running is not None
        assert self._commands is not None
        parts = [asyncio.shield(self._running), self._commands.failed(), self.link.keep_streams()]
        if self._static is not None:
            parts.append(self._static.failed())
        await first_of(*parts)

    async def stop(self) -> None:
        """Leave; safe to call twice."""
        await self._stack.aclose()
        if self._running is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
