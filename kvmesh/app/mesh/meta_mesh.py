"""How the meta-router hears of router replicas over NATS."""

import asyncio
import contextlib

from kvmesh.actors.members.meta_router import MetaRouter
from kvmesh.actors.wire import Subjects
from kvmesh.app.care.prober import Probe
from kvmesh.app.care.silence_watch import watch_silence
from kvmesh.app.front.front import upstream_pool
from kvmesh.app.mesh.nats_link import connection_for, inbox_prefix
from kvmesh.app.process.running import first_of
from kvmesh.observe import actor_log
from kvmesh.runtime.aio import AioDriver
from kvmesh.settings.member_name import check_name
from kvmesh.settings.roles import MetaRouterSettings
from kvmesh.transport.nats.link.bus import NatsBus


class MetaMesh:
    """Feeds `meta` with the heartbeats of all replicas of all buckets, and asks those that stop."""

    def __init__(self, settings: MetaRouterSettings, meta: MetaRouter) -> None:
        self._settings = settings
        self._meta = meta
        inbox = inbox_prefix("meta-router")
        self._connection = connection_for(settings.nats, "meta-router", inbox)
        self._stack = contextlib.AsyncExitStack()
        self._running: asyncio.Task[None] | None = None
        self._watching: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect and listen; waits for a server that is away, `why_not` says so.

        Raises `ConfigError` or `TransportError` for what waiting will not cure: a bad namespace,
        a refused login.
        """
        namespace = check_name(self._settings.nats.namespace, "--namespace")
        connection = self._connection
        await connection.connect_patiently()
        self._stack.push_async_callback(connection.close)
        self._stack.callback(connection.on_change(self._meta.hearing.set_connected))
        bus = NatsBus(connection)
        driver = AioDriver(bus=bus, log=actor_log())
        driver.add(self._meta)
        everyone = Subjects(namespace, "*").routers()
        subscription = await bus.subscribe(everyone, driver.deliver_to(self._meta.name))
        self._stack.push_async_callback(subscription.close)
        driver.start()
        self._running = asyncio.create_task(driver.run(), name="actors")
        self._stack.callback(driver.stop)
        self._meta.hearing.set_asked()
        pool = upstream_pool(self._settings.upstream, self._meta.guard)
        self._watching = watch_silence(self._stack, driver, self._meta.name, pool, self._probes)

    def _probes(self, now: float) -> list[Probe]:
        return [
            Probe(name, beat.url, "/ready", exact=True) for name, beat in self._meta.silent.due(now)
        ]

    def why_not(self) -> str:
        """Return what of NATS the start waits for; "" when it does not."""
        return self._connection.waits.reason

    async def failed(self) -> None:
        """Wait until the actor fails, and raise what it raised."""
        assert self._running is not None
        assert self._watching is not None
        await first_of(asyncio.shield(self._running), asyncio.shield(self._watching))

    async def stop(self) -> None:
        """Stop listening; safe to call twice."""
        await self._stack.aclose()
        if self._running is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
