"""What engines reuse against what was predicted, and what a router does about a wrong index."""

import asyncio
import itertools
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

import httpx
import pytest

from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.app.router.command import RouterServer
from kvmesh.app.worker.command import Sidecar
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.insight.predictions import Distrust
from kvmesh.core.members.worker_info import Trust
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.roles import CostSettings, NatsSettings, RouterSettings, WorkerSettings
from tests.conftest import Eventually
from tests.integration.support.live_router import free_port, mockers, running

pytestmark = pytest.mark.integration

WORKER = WorkerId("w")
PROMPTS = [f"Question {number}: " + "what everybody asks. " * 30 for number in range(14)]
BLOCKS = sum(len(prompt) // 16 for prompt in PROMPTS)
"""Each byte is a token; no two prompts share a block."""


def router_of(nats: NatsSettings, port: int) -> RouterServer:
    return RouterServer(
        RouterSettings(
            router_id="r",
            # Without prediction: what counts is what events told.
            cost=CostSettings(predict_ttl_s=0.0),
            http=HttpSettings(http_port=port, drain_s=0.0),
            nats=nats,
        )
    )


@asynccontextmanager
async def prompts_indexed(
    nats_server: NatsServer, eventually: Eventually, namespace: str
) -> AsyncIterator[tuple[RouterServer, Sidecar, httpx.AsyncClient]]:
    """A router, a sidecar and a client of the router, whose index has all of `PROMPTS`."""
    nats, port = NatsSettings(nats_url=nats_server.url, namespace=namespace), free_port()
    server = router_of(nats, port)
    async with mockers() as (mocker,):
        sidecar = Sidecar(WorkerSettings(engine_url=mocker.url, worker_id=WORKER, nats=nats))
        async with (
            running(server.serve),
            running(sidecar.serve),
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
        ):
            await eventually(lambda: server.mesh.why_not() == "", what="a worker is usable")
            await index_all(client, server, eventually)
            yield server, sidecar, client


async def index_all(
    client: httpx.AsyncClient, server: RouterServer, eventually: Eventually
) -> None:
    for prompt in PROMPTS:
        await complete(client, prompt)
    await eventually(lambda: server.index.blocks(WORKER) == BLOCKS, what="all is indexed")


async def test_an_index_that_misses_what_an_engine_reuses_is_had_anew(
    nats_server: NatsServer, eventually: Eventually, namespace: str
) -> None:
    async with prompts_indexed(nats_server, eventually, namespace) as (server, _, client):
        server.index.clear(WORKER)
        await complete_until(client, lambda: server.index.blocks(WORKER) == BLOCKS)
        metrics = (await client.get("/metrics")).text
        status = (await client.get("/v1/status")).json()

    assert status["predictions"]["w"]["under"] >= 12
    assert 'kvmesh_worker_predictions_total{result="under",worker="w"}' in metrics
    assert 'kvmesh_worker_prediction_resyncs_total{worker="w"} 1.0' in metrics
    assert 'kvmesh_worker_doubted{worker="w"} 1.0' in metrics
    assert 'kvmesh_worker_requests_waiting{worker="w"} 0.0' in metrics
    assert status["predictions"]["w"]["doubts"] == 1


async def test_a_router_without_nats_reads_the_engines_history_anew(eventually: Eventually) -> None:
    port = free_port()
    async with mockers() as (mocker,):
        server = RouterServer(
            RouterSettings(
                router_id="r",
                worker=(f"w={mocker.url}",),
                cost=CostSettings(predict_ttl_s=0.0),
                http=HttpSettings(http_port=port, drain_s=0.0),
            )
        )

        def trusted() -> bool:
            known = server.router.heartbeats.get(WORKER) is not None
            return known and server.scheduler.workers.info(WORKER).trust is Trust.EXACT

        async with (
            running(server.serve),
            httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client,
        ):
            await eventually(trusted, what="the worker's events are followed")
            await index_all(client, server, eventually)

            server.index.clear(WORKER)
            await complete_until(client, lambda: server.index.blocks(WORKER) == BLOCKS)
            status = (await client.get("/v1/status")).json()

    assert status["predictions"]["w"]["doubts"] == 1
    assert status["workers"][0]["trust"] == "exact"


async def test_a_sidecar_asked_to_reads_its_engines_history_anew(
    nats_server: NatsServer, eventually: Eventually, namespace: str
) -> None:
    async with prompts_indexed(nats_server, eventually, namespace) as (server, sidecar, client):
        [(_, publisher)] = sidecar._ranks
        # What a bug in the sidecar could do: what the engine holds is gone from it.
        publisher._cache.lose()
        server.index.clear(WORKER)

        server.mesh.distrust(WORKER, Distrust(12, 12, again=True))

        await eventually(lambda: server.index.blocks(WORKER) == BLOCKS, what="all is indexed")
        await complete(client, PROMPTS[0])
        status = (await client.get("/v1/status")).json()

    assert status["predictions"]["w"]["hits"] == 1
    assert status["workers"][0]["trust"] == "exact"


async def complete_until(client: httpx.AsyncClient, condition: Callable[[], bool]) -> None:
    """Send the prompts again and again."""
    async with asyncio.timeout(60):
        for prompt in itertools.cycle(PROMPTS):
            if condition():
                return
            await complete(client, prompt)


async def complete(client: httpx.AsyncClient, prompt: str) -> None:
    body = {"model": "mock", "prompt": prompt, "max_tokens": 1}
    answer = await client.post("/v1/completions", json=body)
    assert answer.status_code == 200, answer.text
