"""Sidecar, replicas and meta-router over another event plane than NATS: the one in memory.

Nothing but the wiring is told of it: whoever writes another journal changes as little.
"""

import asyncio
import contextlib
from collections.abc import Iterable

import httpx
import msgspec
import pytest

from kvmesh.actors.kernel import Effect, Message
from kvmesh.actors.messages import BusMessage, Drain, Status, TakeSnapshot
from kvmesh.actors.wire import Subjects
from kvmesh.app.mesh import router_commands
from kvmesh.app.mesh.mesh import RouterMesh
from kvmesh.app.meta.command import MetaServer
from kvmesh.app.router.command import RouterServer
from kvmesh.app.worker import engine_watch
from kvmesh.app.worker.command import Sidecar
from kvmesh.core.blocks.events import WorkerId
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.requests import SessionSettings
from kvmesh.settings.roles import (
    MetaRouterSettings,
    NatsSettings,
    RouterSettings,
    WorkerSettings,
)
from tests.conftest import Eventually
from tests.doubles.memory.plane import MemoryPlane
from tests.doubles.memory.server import MemoryServer
from tests.integration.support.gated_engine import gated_engine
from tests.integration.support.live_router import (
    free_port,
    mockers,
    running,
    serve_from_memory,
    serving,
)

pytestmark = pytest.mark.integration

WORKER = WorkerId("w")
NATS = NatsSettings(namespace="memory")
PROMPT = "what everybody asks. " * 40
BLOCKS = len(PROMPT) // 16


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> MemoryServer:
    return serve_from_memory(monkeypatch)


def replica(name: str, port: int) -> RouterServer:
    return RouterServer(
        RouterSettings(
            router_id=name,
            http=HttpSettings(http_port=port, drain_s=0.0),
            session=SessionSettings(session_affinity="soft"),
            nats=NATS,
        )
    )


async def test_a_mesh_works_over_any_event_plane(
    server: MemoryServer, eventually: Eventually
) -> None:
    ports = [free_port() for _ in range(3)]
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    replicas = [replica("r0", ports[0]), replica("r1", ports[1])]
    meta = MetaServer(MetaRouterSettings(http=HttpSettings(http_port=ports[2]), nats=NATS))
    asking = MemoryPlane(server, NATS.namespace)
    async with mockers() as (mocker,), contextlib.AsyncExitStack() as stack:
        sidecar = Sidecar(WorkerSettings(engine_url=mocker.url, worker_id=WORKER, nats=NATS))
        await stack.enter_async_context(running(sidecar.serve))
        for one, url in zip(replicas, urls, strict=False):
            await stack.enter_async_context(serving(one.serve, url))
        await stack.enter_async_context(serving(meta.serve, urls[2]))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=urls[2], timeout=60))

        body = {"model": "mock", "prompt": PROMPT, "max_tokens": 2}
        answer = await client.post("/v1/completions", json=body, headers={"x-kvmesh-session": "s"})
        for one in replicas:
            await eventually(lambda one=one: one.index.blocks(WORKER) >= BLOCKS, what="indexed")
            sessions = one.scheduler.sessions
            assert sessions is not None
            await eventually(lambda s=sessions: s.statistics().sessions == 1, what="bound")

        await asking.connect()
        control, subjects = await asking.control(), Subjects("memory", "default")
        status = await control.ask(subjects.control(WORKER), Status(), dict[str, object])
        taken = [
            await control.ask(subjects.router_control(name), TakeSnapshot(), bool)
            for name in ("r0", "r1")
        ]
        _, objects = await asking.stores("default")
        await eventually(lambda: bool(server.objects), what="a snapshot is stored")
        stored = await objects.list()
        await control.ask(subjects.router_control("r0"), Drain(), type(None))
        await eventually(lambda: replicas[0].mesh.draining)

    assert answer.status_code == 200
    assert status
    assert taken == [True, True]
    assert len(stored) == 1


async def test_a_router_that_has_just_started_places_nothing_before_it_heard_of_known_workers(
    server: MemoryServer, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first worker that it heard would be sent what another one holds."""
    del server
    monkeypatch.setattr(router_commands, "LATEST_S", 60.0)
    ports = [free_port(), free_port()]
    first, again = replica("r0", ports[0]), replica("r0", ports[1])
    urls = [f"http://127.0.0.1:{port}" for port in ports]
    body = {"model": "mock", "prompt": PROMPT, "max_tokens": 2}
    async with mockers(2) as engines, contextlib.AsyncExitStack() as stack:
        for name, engine in zip(("v", WORKER), engines, strict=True):
            settings = WorkerSettings(engine_url=engine.url, worker_id=name, nats=NATS)
            await stack.enter_async_context(running(Sidecar(settings).serve))
        client = await stack.enter_async_context(httpx.AsyncClient(timeout=60))
        async with serving(first.serve, urls[0]):
            await eventually(lambda: len(first.router.heartbeats) == 2, what="both are heard")
            pinned = {"x-kvmesh-worker-id": WORKER}
            await client.post(f"{urls[0]}/v1/completions", json=body, headers=pinned)
            await eventually(lambda: first.index.blocks(WORKER) >= BLOCKS, what="indexed")
        heard = muted(again, WORKER, monkeypatch)
        await stack.enter_async_context(running(again.serve))
        await eventually(lambda: "v" in again.router.heartbeats, what="the other one is heard")
        await eventually(lambda: again.index.blocks(WORKER) >= BLOCKS, what="the journal is read")

        asked = asyncio.create_task(client.post(f"{urls[1]}/v1/completions", json=body))
        await eventually(lambda: again._care.patience.waiting == 1, what="it is held")
        ready = await client.get(f"{urls[1]}/ready")
        heard.set()
        answer = await asked

    assert (ready.status_code, "warnings" in ready.json()) == (503, False), ready.text
    assert answer.headers["x-kvmesh-worker"] == WORKER
    assert int(answer.headers["x-kvmesh-overlap-blocks"]) >= BLOCKS


def muted(one: RouterServer, worker: WorkerId, patch: pytest.MonkeyPatch) -> asyncio.Event:
    """Keep a worker's heartbeats from a replica until the event, which is returned, is set."""
    heard, mesh = asyncio.Event(), one.mesh
    assert isinstance(mesh, RouterMesh)
    receive = mesh.link.registry.receive

    def take(message: Message, now: float) -> Iterable[Effect]:
        is_its = isinstance(message, BusMessage) and message.subject.endswith(f".{worker}")
        return () if is_its and not heard.is_set() else receive(message, now)

    patch.setattr(mesh.link.registry, "receive", take)
    patch.setattr(
        mesh.indexer, "_options", msgspec.structs.replace(mesh.indexer._options, first_beats_s=60.0)
    )
    return heard


async def test_a_sidecar_whose_engine_tells_of_other_weights_empties_its_worker(
    server: MemoryServer, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    del server
    told = ["1"]

    async def read_weights(*_: object) -> str:
        return told[0]

    monkeypatch.setattr(engine_watch, "read_weights", read_weights)
    port = free_port()
    one, url = replica("r0", port), f"http://127.0.0.1:{port}"
    async with mockers() as (mocker,), contextlib.AsyncExitStack() as stack:
        sidecar = Sidecar(WorkerSettings(engine_url=mocker.url, worker_id=WORKER, nats=NATS))
        await stack.enter_async_context(running(sidecar.serve))
        await stack.enter_async_context(serving(one.serve, url))
        client = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60))
        beats = one.router.heartbeats

        await eventually(lambda: beats[WORKER].weights == "1", what="the first version")
        body = {"model": "mock", "prompt": PROMPT, "max_tokens": 2}
        await client.post("/v1/completions", json=body)
        await eventually(lambda: one.index.blocks(WORKER) >= BLOCKS, what="indexed")
        told[0] = "2"
        await eventually(lambda: one.index.blocks(WORKER) == 0, what="emptied")
        await eventually(lambda: beats[WORKER].weights == "2", what="the second version")
        again = await client.post("/v1/completions", json=body)

    assert again.headers["x-kvmesh-overlap-blocks"] == "0"


async def test_a_meta_router_that_has_just_started_holds_requests_until_it_hears_somebody(
    server: MemoryServer, eventually: Eventually
) -> None:
    """Without homes to wait for it listens no longer, before the first heartbeat came."""
    del server
    ports = [free_port(), free_port()]
    door, behind = (f"http://127.0.0.1:{port}" for port in ports)
    meta = MetaServer(MetaRouterSettings(http=HttpSettings(http_port=ports[0]), nats=NATS))
    table = meta.meta.table
    body = {"model": "base", "prompt": PROMPT, "max_tokens": 2}
    async with gated_engine("base") as engine:
        settings = WorkerSettings(
            engine_url=f"{engine.url}/v1", worker_id=WORKER, kv_events=False, nats=NATS
        )
        async with (
            running(Sidecar(settings).serve),
            running(meta.serve),
            httpx.AsyncClient(base_url=door, timeout=60) as client,
        ):
            await eventually(lambda: not (meta.meta.listening or table.settled), what="heard all")
            asked = asyncio.ensure_future(client.post("/score", json=body))
            await asyncio.wait({asked}, timeout=0.3)
            answered_alone = asked.done()
            async with serving(replica("r0", ports[1]).serve, behind):
                answer = await asked

    assert not answered_alone
    assert answer.status_code == 200


async def test_adapters_that_come_and_go_while_an_engine_runs_are_served_meanwhile(
    server: MemoryServer, eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    del server
    monkeypatch.setattr("kvmesh.app.worker.engine_watch.MODELS_S", 0.0)
    port = free_port()
    one = replica("r0", port)
    async with (
        gated_engine("base") as engine,
        running(
            Sidecar(
                WorkerSettings(
                    engine_url=f"{engine.url}/v1",
                    worker_id=WORKER,
                    kv_events=False,
                    load_interval_s=0.05,
                    nats=NATS,
                )
            ).serve
        ),
        serving(one.serve, f"http://127.0.0.1:{port}") as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        statuses = [(await client.post("/score", json={"model": "poet"})).status_code]
        engine.cards["poet"] = {"parent": "base"}
        engine.models = ("base", "poet")
        await eventually(lambda: one.router.adapters == {"poet"}, what="loaded")
        statuses.append((await client.post("/score", json={"model": "poet"})).status_code)
        engine.models = ("base",)
        await eventually(lambda: one.router.models() == ("base",), what="unloaded")
        statuses.append((await client.post("/score", json={"model": "poet"})).status_code)

    assert statuses == [404, 200, 404]
    assert not one.router.adapters
