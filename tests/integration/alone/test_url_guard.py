"""URLs that others name: refused before a byte is sent there, and everybody is told."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import nats
import pytest

from kvmesh.actors.messages import RouterHeartbeat, WorkerHeartbeat
from kvmesh.actors.wire import encode
from kvmesh.app.meta.command import MetaServer
from kvmesh.app.ops.doctor import DoctorSettings, examine
from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.app.process.running import Stop
from kvmesh.app.router.command import RouterServer
from kvmesh.core.blocks.events import WorkerId
from kvmesh.errors import ConfigError
from kvmesh.settings.http import HttpSettings, UpstreamSettings
from kvmesh.settings.roles import MetaRouterSettings, NatsSettings, RouterSettings
from kvmesh_lab.mocker.command import Mocker
from tests.conftest import Eventually
from tests.integration.support.live_router import chat, free_port, mockers, router
from tests.integration.support.waiting import until

pytestmark = pytest.mark.integration

REFUSED = "http://169.254.169.254"


@pytest.fixture
async def engine() -> AsyncIterator[Mocker]:
    async with mockers() as (mocker,):
        yield mocker


async def test_a_discovered_worker_elsewhere_is_refused_and_the_others_serve(
    engine: Mocker, tmp_path: Path
) -> None:
    listed = tmp_path / "workers.txt"
    listed.write_text(f"good={engine.url}\nevil={REFUSED}\n")

    async with (
        router([], discover=(f"file:{listed}",)) as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        answers = [await chat(client, "hello") for _ in range(4)]
        ready = (await client.get("/ready")).json()
        status = (await client.get("/v1/status")).json()
        metrics = (await client.get("/metrics")).text
        settings = DoctorSettings(engine_url=engine.url, router_url=url, probe=False)
        findings = await examine(settings)

    assert [one.text for one in findings if one.topic == "worker evil"] == [
        status["refused"]["evil"]
    ]
    assert {one.headers["x-kvmesh-worker"] for one in answers} == {"good"}
    (warning,) = [line for line in ready["warnings"] if "evil" in line]
    assert REFUSED in warning
    assert "--upstream-allow" in warning
    assert list(status["refused"]) == ["evil"]
    assert "kvmesh_refused_members 1.0" in metrics


async def test_a_name_that_leads_elsewhere_gets_no_byte(
    tmp_path: Path, eventually: Eventually
) -> None:
    received = bytearray()

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        received.extend(await reader.read(1))
        writer.close()

    victim = await asyncio.start_server(serve, "127.0.0.1", 0)
    port = victim.sockets[0].getsockname()[1]
    listed = tmp_path / "workers.txt"
    listed.write_text(f"named=http://localhost:{port}\n")
    server = RouterServer(
        RouterSettings(
            kv_events=False,
            discover=(f"file:{listed}",),
            upstream=UpstreamSettings(upstream_allow=("10.0.0.0/8",)),
            http=HttpSettings(http_port=0, drain_s=0.0),
        )
    )
    guard, stop = server.scheduler.workers.guard, Stop()
    running = asyncio.create_task(server.serve(stop))
    await eventually(lambda: guard.refusals, timeout_s=60, what="the router refuses the address")
    stop.request()
    await running
    victim.close()

    (reason,) = guard.refused(0.0).values()
    assert "127.0.0.1" in reason
    assert received == b""


async def test_a_worker_of_the_mesh_elsewhere_is_refused(
    nats_server: NatsServer, namespace: str
) -> None:
    settings = RouterSettings(
        router_id="r0",
        http=HttpSettings(http_port=0, drain_s=0.0),
        nats=NatsSettings(nats_url=nats_server.url, namespace=namespace),
    )
    server, stop = RouterServer(settings), Stop()
    workers = server.scheduler.workers
    running = asyncio.create_task(server.serve(stop))
    client = await nats.connect(nats_server.url)
    beats = [
        WorkerHeartbeat(WorkerId(name), "default", 1, 0, url, ("mock",), 16, events=False)
        for name, url in (("good", "http://127.0.0.1:9"), ("evil", REFUSED))
    ]

    async with asyncio.timeout(60):
        while not (workers.guard.refusals and "good" in workers.membership):
            for beat in beats:
                await client.publish(f"{namespace}.hb.default.{beat.worker}", encode(beat))
            await asyncio.sleep(0.05)
    members = workers.membership.members()
    stop.request()
    await running
    await client.close()

    assert members == ("good",)
    assert list(workers.guard.refused(0.0)) == ["evil"]


async def test_a_meta_router_tells_of_a_replica_it_refuses(
    nats_server: NatsServer, namespace: str
) -> None:
    beat = RouterHeartbeat("r0", "chat", "http://u:p@127.0.0.1:9", ready=True, epoch=1)
    port = free_port()
    server, stop = (
        MetaServer(
            MetaRouterSettings(
                http=HttpSettings(http_port=port, drain_s=0.0),
                nats=NatsSettings(nats_url=nats_server.url, namespace=namespace),
            )
        ),
        Stop(),
    )
    running = asyncio.create_task(server.serve(stop))
    client = await nats.connect(nats_server.url)

    async def warned() -> Any:
        await client.publish(f"{namespace}.rt.chat.r0", encode(beat))
        return (await http.get("/ready")).json().get("warnings")

    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as http:
        warnings = await until(warned)
        status = (await http.get("/v1/status")).json()
        metrics = (await http.get("/metrics")).text
    stop.request()
    await running
    await client.close()

    assert "chat/r0 gets no requests" in warnings[0]
    assert list(status["refused"]) == ["chat/r0"]
    assert "kvmesh_refused_members 1.0" in metrics


async def test_an_address_in_the_list_that_means_nothing_ends_the_start() -> None:
    with pytest.raises(ConfigError, match="--upstream-allow"):
        RouterServer(RouterSettings(upstream=UpstreamSettings(upstream_allow=("10.0.0.0/99",))))
