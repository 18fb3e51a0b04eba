"""How the meta-router hears of router replicas: their heartbeats on the event plane."""

import asyncio
import contextlib

from kvmesh.actors.members.meta_router import MetaRouter
from kvmesh.actors.wire import Subjects
from kvmesh.app.care.prober import Probe
from kvmesh.app.care.silence_watch import watch_silence
from kvmesh.app.front.front import upstream_pool
from kvmesh.app.plane import event_plane
from kvmesh.observe import actor_log
from kvmesh.runtime.aio import AioDriver
from kvmesh.settings.roles import MetaRouterSettings
from kvmesh.tasks import supervise


class MetaMesh:
    """Feeds `meta` with the heartbeats of all replicas of all buckets, and asks those that stop."""

    def __init__(self, settings: MetaRouterSettings, meta: MetaRouter) -> None:
        self._settings = settings
        self._meta = meta
        self._plane = event_plane(settings.nats, "meta-router")
        self._stack = contextlib.AsyncExitStack()
        self._running: asyncio.Task[None] | None = None

    async def start(self) -> None:
        """Connect and listen; waits for a server that is away, `why_not` says so.

        Raises `ConfigError` or `TransportError` for what waiting will not cure: a refused login.
        """
        plane = self._plane
        await plane.connect(patient=True)
        self._stack.push_async_callback(plane.close)
        self._stack.callback(plane.on_change(self._meta.hearing.set_connected))
        driver = AioDriver(bus=plane.bus, log=actor_log())
        driver.add(self._meta)
        everyone = Subjects(self._settings.nats.namespace, "*").routers()
        subscription = await plane.bus.subscribe(everyone, driver.deliver_to(self._meta.name))
        self._stack.push_async_callback(subscription.close)
        driver.start()
        self._running = supervise("actors", driver.run, "end")
        self._stack.callback(driver.stop)
        self._meta.hearing.set_asked()
        pool = upstream_pool(self._settings.upstream, self._meta.guard)
        watch_silence(self._stack, driver, self._meta.name, pool, self._probes)

    def _probes(self, now: float) -> list[Probe]:
        return [
            Probe(name, beat.url, "/ready", exact=True) for name, beat in self._meta.silent.due(now)
        ]

    def why_not(self) -> str:
        """Return what the start waits for; "" when it does not."""
        return self._plane.waiting()

    async def failed(self) -> None:
        """Wait until the actor fails, and raise what it raised."""
        assert self._running is not None
        await asyncio.shield(self._running)

    async def stop(self) -> None:
        """Stop listening; safe to call twice."""
        await self._stack.aclose()
        if self._running is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
