"""Streams leave engines and routers that drain, and routers that are killed: none is cut."""

import asyncio
import contextlib
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvmesh.actors.messages import Drain
from kvmesh.actors.wire import Subjects
from kvmesh.app.meta.command import MetaServer
from kvmesh.app.router.command import RouterServer
from kvmesh.app.worker.command import Sidecar
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.roles import MetaRouterSettings, NatsSettings, RouterSettings, WorkerSettings
from kvmesh_lab.mocker.command import Mocker, MockerOptions
from kvmesh_lab.mocker.model.faults import FaultOptions
from tests.chaos.process import MeshProcess, fixed_ports
from tests.conftest import Eventually
from tests.doubles.memory.plane import MemoryPlane
from tests.doubles.memory.server import MemoryServer
from tests.integration.support.live_router import (
    engine,
    free_port,
    meta_router,
    running,
    serve_from_memory,
    serving,
)
from tests.integration.support.told_stream import Told, form, tell
from tests.integration.support.waiting import seen

pytestmark = pytest.mark.integration

NATS = NatsSettings(namespace="memory")
STREAMS = 16
TOKENS = 300
LEAVE_S = 10.0


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> MemoryServer:
    return serve_from_memory(monkeypatch)


def mocker(slowdown: float = 1.0) -> AbstractAsyncContextManager[Mocker]:
    faults = FaultOptions(slowdown=slowdown)
    return engine(MockerOptions(port=0, kv_events_port=0, replay_port=0, faults=faults))


async def join(stack: contextlib.AsyncExitStack, engine: Mocker, name: str) -> None:
    """Put an engine on the mesh."""
    sidecar = Sidecar(WorkerSettings(engine_url=engine.url, worker_id=name, nats=NATS))
    await stack.enter_async_context(running(sidecar.serve))


async def replica(stack: contextlib.AsyncExitStack, name: str) -> RouterServer:
    """Start a router of the mesh."""
    http = HttpSettings(http_port=free_port(), drain_s=1.0)
    router = RouterServer(RouterSettings(router_id=name, http=http, nats=NATS))
    await stack.enter_async_context(serving(router.serve, f"http://127.0.0.1:{http.http_port}"))
    return router


async def load_of(url: str) -> int:
    async with httpx.AsyncClient() as client:
        load: int = (await client.get(f"{url}/load")).json()["server_load"]
        return load


async def drained(server: MemoryServer, subject: Callable[[Subjects], str]) -> None:
    """Have a member told to drain."""
    asking = MemoryPlane(server, NATS.namespace)
    await asking.connect()
    control = await asking.control()
    await control.ask(subject(Subjects("memory", "default")), Drain(), object)


async def streams(client: httpx.AsyncClient, begun: asyncio.Event) -> list[Told]:
    """Return many streams; `begun` is set when all have begun."""
    waiting = set(range(STREAMS))

    async def one(number: int) -> Told:
        def began(told: Told) -> None:
            if told.texts:
                waiting.discard(number)
                if not waiting:
                    begun.set()

        return await tell(client, *form("chat", number, TOKENS), on_text=began)

    return await asyncio.gather(*(one(number) for number in range(STREAMS)))


async def undisturbed(engine: Mocker) -> list[Told]:
    async with httpx.AsyncClient(base_url=engine.url, timeout=60) as client:
        return await streams(client, asyncio.Event())


async def test_streams_leave_an_engine_that_drains(
    server: MemoryServer, eventually: Eventually
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        slow = await stack.enter_async_context(mocker(4.0))
        other = await stack.enter_async_context(mocker())
        before = await undisturbed(other)
        await join(stack, slow, "w0")
        router = await replica(stack, "r0")
        url = f"http://127.0.0.1:{router.settings.http.http_port}"
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60))
        begun = asyncio.Event()
        asking = asyncio.ensure_future(streams(client, begun))
        await begun.wait()
        await join(stack, other, "w1")
        await eventually(lambda: len(router.router.heartbeats) == 2, what="both are known")

        await drained(server, lambda subjects: subjects.control("w0"))
        began_s = asyncio.get_running_loop().time()
        while await load_of(slow.url):  # noqa: ASYNC110  an engine is asked, it cannot tell
            await asyncio.sleep(0.05)
        left_s = asyncio.get_running_loop().time() - began_s
        told = await asking

    assert [one.said for one in told] == [one.said for one in before]
    assert {one.worker for one in told} == {"w0"}
    assert left_s < LEAVE_S


async def test_streams_leave_a_router_that_drains(
    server: MemoryServer, eventually: Eventually
) -> None:
    async with contextlib.AsyncExitStack() as stack:
        engine = await stack.enter_async_context(mocker(4.0))
        before = await undisturbed(engine)
        await join(stack, engine, "w0")
        routers = [await replica(stack, "r0")]
        http = HttpSettings(http_port=free_port(), drain_s=1.0)
        meta = MetaServer(MetaRouterSettings(http=http, nats=NATS))
        url = f"http://127.0.0.1:{http.http_port}"
        await stack.enter_async_context(serving(meta.serve, url))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60))
        begun = asyncio.Event()
        asking = asyncio.ensure_future(streams(client, begun))
        await begun.wait()
        routers.append(await replica(stack, "r1"))
        await eventually(lambda: len(meta.meta.table.replicas()) == 2, what="both are known")

        await drained(server, lambda subjects: subjects.router_control("r0"))
        began_s = asyncio.get_running_loop().time()
        await eventually(
            lambda: not routers[0].scheduler.sequences.owned("r0"), what="r0 has no stream"
        )
        left_s = asyncio.get_running_loop().time() - began_s
        told = await asking

    assert [one.said for one in told] == [one.said for one in before]
    assert {one.head["x-kvmesh-router"] for one in told} == {"r0"}
    assert left_s < LEAVE_S


def both_usable(status: dict[str, Any]) -> bool:
    return [one["usable"] for one in status["replicas"]] == [True, True]


@pytest.mark.parametrize("name", ["chat", "sampled chat"])
async def test_a_stream_survives_kill_9_of_its_router(tmp_path: Path, name: str) -> None:
    path, body = form(name, tokens=100)
    async with mocker() as engine, contextlib.AsyncExitStack() as stack:
        routers = {}
        for number, port in enumerate(fixed_ports(2)):
            words = ["router", "--no-kv-events", "--http-port", str(port)]
            words += ["--router-id", f"r{number}", "--worker", f"w0={engine.url}"]
            url, log = f"http://127.0.0.1:{port}", tmp_path / f"r{number}.log"
            routers[f"r{number}"] = process = MeshProcess(f"r{number}", url, words, log)
            process.start()
            stack.callback(process.kill)
        replicas = [f"default={one.url}" for one in routers.values()]
        front = await stack.enter_async_context(meta_router(replicas))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=front, timeout=60))
        await seen(client, "/v1/status", both_usable)
        async with httpx.AsyncClient(base_url=engine.url, timeout=60) as asking:
            before = await tell(asking, path, body)

        def kill(told: Told) -> None:
            if len(told.texts) == 30:
                routers[told.head["x-kvmesh-router"]].kill()

        told = await tell(client, path, body, kill)

    assert told.said == before.said
    assert [one.alive for one in routers.values()].count(False) == 2
