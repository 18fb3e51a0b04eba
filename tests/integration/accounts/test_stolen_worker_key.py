"""What the holder of a worker's key can make routers connect to: what an engine may be, no more."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import msgspec
import pytest

from kvmesh.actors.messages import WorkerHeartbeat
from kvmesh.actors.wire import Subjects, encode
from kvmesh.app.meta.command import MetaServer
from kvmesh.app.ops.nats_members import AccountsOptions
from kvmesh.app.router.command import RouterServer
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.url_guard import UrlGuard
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.roles import MetaRouterSettings, NatsSettings, RouterSettings
from tests.integration.support.live_router import free_port, mockers, serving
from tests.integration.support.locked_mesh import LockedMesh, locked_mesh

pytestmark = pytest.mark.integration

CODE = Subjects("kvmesh", "code")
REFUSED = (
    ("http://169.254.169.254/latest/meta-data", "more than scheme"),
    ("http://169.254.169.254", "link-local"),
    ("http://[fe80::1]:80", "link-local"),
    ("http://[::ffff:a9fe:a9fe]", "link-local"),
    ("http://metadata.google.internal", "metadata service"),
    ("http://[fd00:ec2::254]", "metadata service"),
    ("http://2130706433:{port}", "hides it"),
    ("http://0x7f.1:{port}", "hides it"),
    ("http://0.0.0.0:{port}", "no address of one host"),
    ("http://239.1.2.3:{port}", "no address of one host"),
    ("http://127.0.0.1:{port}", "loopback"),
    ("http://[::1]:{port}", "loopback"),
    ("http://localhost:{port}", "loopback"),
    ("http://user:pw@10.0.0.1:8000", "user name"),
    ("ftp://10.0.0.1:8000", "not of the form"),
    ("file:///etc/passwd", "not of the form"),
    ("unix:///var/run/docker.sock", "not of the form"),
)


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[LockedMesh]:
    options = AccountsOptions(out=tmp_path / "accounts", worker=("code/w7",), router=("code/r1",))
    async with locked_mesh(tmp_path, options, witnesses=False, buckets=("code",)) as mesh:
        yield mesh


def test_who_meets_at_a_server_elsewhere_takes_loopback_for_another_machines() -> None:
    guards: list[UrlGuard] = []
    for url in ("nats://nats.example:4222", "nats://127.0.0.1:4222"):
        nats = NatsSettings(nats_url=url)
        guards.append(RouterServer(RouterSettings(nats=nats)).scheduler.workers.guard)
        guards.append(MetaServer(MetaRouterSettings(nats=nats)).meta.guard)

    refused = [guard.judge("w", "http://127.0.0.1:9", 0.0) is not None for guard in guards]

    assert refused == [True, True, False, False]


async def test_a_stolen_workers_key_leads_a_router_to_no_place_but_an_engines(
    mesh: LockedMesh,
) -> None:
    reached: list[bytes] = []

    async def canary(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        reached.append(await reader.read(100))
        writer.close()

    thief = await mesh.login("worker.code.w7")
    http = HttpSettings(http_port=free_port(), drain_s=0.0)
    server = RouterServer(
        RouterSettings(
            bucket="code", router_id="r1", http=http, nats=mesh.settings("router.code.r1")
        )
    )
    workers = server.scheduler.workers
    guard = workers.guard
    # The test's server is on loopback; a mesh of several machines is what has a thief to fear.
    guard.rules = msgspec.structs.replace(guard.rules, apart=True)

    async def announce(url: str) -> None:
        beat = WorkerHeartbeat(WorkerId("w7"), "code", 1, 0, url, ("mock",), 16, events=False)
        thief.client.publish_nowait(CODE.heartbeats("w7"), encode(beat))
        await asyncio.sleep(0.02)

    body = {"model": "mock", "max_tokens": 1, "prompt": "hello"}
    async with (
        mockers() as (engine,),
        await asyncio.start_server(canary, "127.0.0.1", 0) as victim,
        asyncio.timeout(120),
        serving(server.serve, f"http://127.0.0.1:{http.http_port}", path="/health") as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        port = victim.sockets[0].getsockname()[1]
        for text, why in REFUSED:
            place = text.format(port=port)
            while why not in (reason := guard.refused(0.0).get("w7", "")) or place not in reason:
                await announce(place)
            assert workers.membership.members() == (), place
        status = (await client.get("/v1/status")).json()["refused"]
        ready = (await client.get("/ready")).json()

        guard.rules = msgspec.structs.replace(guard.rules, apart=False)
        while not workers.membership.members():
            await announce(engine.url)
        served = await client.post("/v1/completions", json=body)
        # Known and trusted by now: the next place that it names is judged like the first.
        while "169.254.169.254" not in guard.refused(0.0).get("w7", ""):
            await announce("http://169.254.169.254")

    assert served.status_code == 200
    assert served.headers["x-kvmesh-worker"] == "w7"
    assert "w7" in status
    assert any("w7" in line and "--upstream-allow" in line for line in ready["warnings"])
    assert reached == []
