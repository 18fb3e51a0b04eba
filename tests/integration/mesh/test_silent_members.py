"""Members whose heartbeats stop, over real sockets and a real nats-server: HTTP decides."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from typing import Self

import httpx
import pytest

from kvmesh.actors.messages import RouterHeartbeat, WorkerHeartbeat
from kvmesh.actors.wire import Subjects, encode
from kvmesh.app.members.prober import Probe, Prober
from kvmesh.app.meta.command import MetaServer
from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.health import Answer
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.roles import MetaRouterSettings, NatsSettings
from kvmesh.transport.http.upstream.client import UpstreamPool
from kvmesh.transport.nats.link.bus import NatsBus
from kvmesh.transport.nats.link.connection import NatsConnection, NatsOptions
from tests.integration.support.failing_engine import FailingEngine, failing_engines
from tests.integration.support.live_router import chat, client_of, free_port, router, serving
from tests.integration.support.waiting import seen, until

pytestmark = pytest.mark.integration

BUCKET = "default"
SILENT = "1 of 1 members are not heard over NATS but answer over HTTP: "


class Heart:
    """Sends heartbeats twice a second until it stops."""

    def __init__(self, nats_server: NatsServer, subject: str, data: bytes) -> None:
        self._url = nats_server.url
        self._subject = subject
        self._data = data
        self._beating: asyncio.Task[None] | None = None

    async def beat(self) -> None:
        connection = NatsConnection(NatsOptions(url=self._url, name="heart"))
        await connection.connect()
        try:
            bus = NatsBus(connection)
            while True:
                bus.publish(self._subject, self._data)
                await asyncio.sleep(0.5)
        finally:
            await connection.close()

    async def __aenter__(self) -> Self:
        self._beating = asyncio.create_task(self.beat())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.stop()

    async def stop(self) -> None:
        assert self._beating is not None
        self._beating.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self._beating


def worker_heart(nats_server: NatsServer, namespace: str, engine: FailingEngine) -> Heart:
    worker = WorkerId("w0")
    beat = WorkerHeartbeat(worker, BUCKET, 1, 0, engine.url, ("mock",), 16, health_path="/health")
    return Heart(nats_server, Subjects(namespace, BUCKET).heartbeats(worker), encode(beat))


@contextlib.asynccontextmanager
async def meta(nats: NatsSettings) -> AsyncIterator[str]:
    """Serve a meta-router that hears its replicas."""
    port = free_port()
    http = HttpSettings(http_port=port, drain_s=5.0)
    server = MetaServer(MetaRouterSettings(nats=nats, http=http))
    async with serving(server.serve, f"http://127.0.0.1:{port}") as url:
        yield url


async def test_a_worker_without_a_sidecar_is_served_approximately_until_its_engine_is_gone(
    nats_server: NatsServer, namespace: str
) -> None:
    nats = NatsSettings(nats_url=nats_server.url, namespace=namespace)
    async with (
        failing_engines(1) as (engine,),
        worker_heart(nats_server, namespace, engine) as heart,
        client_of(router([], kv_events=True, nats=nats)) as client,
    ):
        received = await chat(client, "heard")
        await heart.stop()
        await seen(client, "/ready", lambda page: SILENT + "w0" in page.get("warnings", ()))
        silent = await chat(client, "silent")
        metrics = (await client.get("/metrics")).text
        await engine.server.close()
        await seen(client, "/v1/status", lambda status: status["workers"] == [])

    assert (received.status_code, received.headers["x-kvmesh-trust"]) == (200, "exact")
    assert (silent.status_code, silent.headers["x-kvmesh-trust"]) == (200, "approx")
    assert "kvmesh_silent_members 1.0" in metrics


async def test_a_replica_that_is_not_heard_stays_while_it_is_ready(
    nats_server: NatsServer, namespace: str
) -> None:
    nats = NatsSettings(nats_url=nats_server.url, namespace=namespace)
    async with failing_engines(1) as (replica,):
        beat = RouterHeartbeat("r0", BUCKET, replica.url, ready=True, epoch=1)
        subject = Subjects(namespace, BUCKET).routers("r0")
        async with (
            Heart(nats_server, subject, encode(beat)) as heart,
            meta(nats) as url,
            httpx.AsyncClient(base_url=url, timeout=20) as client,
        ):
            await heart.stop()
            await seen(client, "/ready", lambda page: "heard over NATS" in str(page))
            served = await chat(client, "silent")
            await replica.server.close()
            await seen(client, "/ready", lambda page: not page["ready"])

    assert served.status_code == 200


async def test_an_exact_probe_takes_nothing_but_200_for_an_answer() -> None:
    answers: dict[str, Answer] = {}
    async with failing_engines(1) as (engine,):
        probes = [
            Probe("well", engine.url, "/health", exact=True),
            Probe("unknown path", engine.url, "/nowhere"),
            Probe("another server", engine.url, "/nowhere", exact=True),
            Probe("nobody", f"http://127.0.0.1:{free_port()}", "/health"),
            Probe.of("forged path", engine.url, "/health HTTP/1.1\r\nx: y", exact=True),
        ]
        pool = UpstreamPool()
        prober = Prober(
            pool,
            lambda _: [one for one in probes if one.member not in answers],
            lambda member, answer, _: answers.__setitem__(member, answer),
            time.monotonic,
        )
        asking = asyncio.create_task(prober.run())
        await until(lambda: len(answers) == len(probes))
        asking.cancel()
        await asyncio.gather(asking, return_exceptions=True)
        await pool.close()

    assert answers == {
        "well": "ok",
        "unknown path": "ok",
        "another server": "unready",
        "nobody": "down",
        "forged path": "ok",
    }
