"""How the meta-router hears of router replicas, by their heartbeats, and of other meta-routers."""

import asyncio
import contextlib
import time
from collections.abc import Iterator
from functools import partial
from typing import Final

from kvmesh.actors.messages import AllReported
from kvmesh.actors.meta_router import MOST_EARLY, MetaRouter
from kvmesh.actors.site_reporter import SiteReporter, digest_subject
from kvmesh.actors.wire import Subjects
from kvmesh.app.front.front import upstream_pool
from kvmesh.app.members.prober import Probe
from kvmesh.app.members.silence_watch import watch_silence
from kvmesh.app.mesh.home_store import READ_S, HomeStore
from kvmesh.app.mesh.plane import event_plane
from kvmesh.app.process.aio import AioDriver
from kvmesh.app.process.running import first_of
from kvmesh.app.views.figure import Source
from kvmesh.app.views.mesh_figures import TRUST
from kvmesh.observe import actor_log
from kvmesh.settings.roles import MetaRouterSettings
from kvmesh.tasks import keep_running, supervise

LISTEN_S: Final = 1.25
"""Each replica sends a heartbeat a second: after this long all have been heard."""


class MetaMesh:
    """Feeds `meta` with the heartbeats of all replicas of all buckets, and asks those that stop.

    Where conversations are is shared with the other meta-routers. At its start `meta` only listens
    until every bucket that is the home of one was heard, `LISTEN_S` at most. Requests wait
    meanwhile: what was known before is read for half the time that they do. `sites` tells other
    sites of this one, and hears them.
    """

    def __init__(
        self, settings: MetaRouterSettings, meta: MetaRouter, sites: SiteReporter | None = None
    ) -> None:
        self._settings = settings
        self._sites = sites
        self._meta = meta
        self._plane = event_plane(settings.nats, "meta-router")
        self._stack = contextlib.AsyncExitStack()
        self._running: asyncio.Task[None] | None = None
        self._received = asyncio.Queue[str](MOST_EARLY)
        meta.listening = True

    async def start(self) -> None:
        """Connect, listen, read where conversations are; waits for a server that is away,
        `why_not` says so.

        Raises `ConfigError` or `TransportError` for what waiting will not cure: a refused login.
        """
        plane, began_s = self._plane, time.monotonic()
        await plane.connect(patient=True)
        self._stack.push_async_callback(plane.close)
        self._stack.callback(plane.on_change(self._meta.link_health.set_connected))
        driver = AioDriver(bus=plane.bus, log=actor_log())
        driver.add(self._meta)
        everyone = Subjects(self._settings.nats.namespace, "*").routers()
        subscription = await plane.bus.subscribe(everyone, driver.deliver_to(self._meta.name))
        self._stack.push_async_callback(subscription.close)
        roll = await plane.bus.subscribe(everyone, self._receive)
        self._stack.push_async_callback(roll.close)
        if self._sites is not None:
            driver.add(self._sites)
            told = await plane.bus.subscribe(digest_subject(), driver.deliver_to(self._sites.name))
            self._stack.push_async_callback(told.close)
        driver.start()
        self._running = supervise("actors", driver.run, "end")
        self._stack.callback(driver.stop)
        self._meta.link_health.set_asked()
        pool = upstream_pool(self._settings.upstream, self._meta.guard)
        watch_silence(self._stack, driver, self._meta.name, pool, self._probes)
        homes = self._meta.homes
        make = partial(plane.homes, int(homes.options.ttl_s), homes.options.max_homes)
        store = HomeStore(homes, plane, make, "homes of conversations")
        self._stack.push_async_callback(store.stop)
        left_s = self._settings.wait_for_replica_s / 2 - (time.monotonic() - began_s)
        await store.start(max(LISTEN_S, min(READ_S, left_s)))
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._receive_all(self._meta.homes.buckets()), LISTEN_S)
        await roll.close()
        driver.post(self._meta.name, AllReported())

    def _receive(self, subject: str, _: bytes) -> None:
        """Note whose heartbeat came, at the start."""
        with contextlib.suppress(asyncio.QueueFull):
            self._received.put_nowait(subject)

    async def _receive_all(self, buckets: frozenset[str]) -> None:
        """Wait until a replica of each of `buckets` was heard."""
        missing = set(buckets)
        while missing:
            missing.discard((await self._received.get()).split(".")[-2])

    def _probes(self, now: float) -> list[Probe]:
        return [
            Probe(name, beat.url, "/ready", exact=True) for name, beat in self._meta.silent.due(now)
        ]

    def why_not(self) -> str:
        """Return what the start waits for; "" when it does not."""
        waits = "listening who is there" if self._meta.listening else ""
        return self._plane.waiting() or waits

    def warnings(self) -> tuple[str, ...]:
        """Return what NATS refuses, and what is not believed, one line each."""
        return self._plane.warnings()

    def figures(self) -> Iterator[Source]:
        """Yield what is counted in this part."""
        yield TRUST.of(self._plane.unverified)

    async def failed(self) -> None:
        """Look after the table of homes until the actor fails, and raise what it raised."""
        assert self._running is not None
        keeping = keep_running("keep streams", self._plane.keep)
        await first_of(asyncio.shield(self._running), keeping)

    async def stop(self) -> None:
        """Stop listening; safe to call twice."""
        await self._stack.aclose()
        if self._running is not None:
            with contextlib.suppress(asyncio.CancelledError):
                await self._running
