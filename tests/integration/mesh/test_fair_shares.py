"""Shares hold over all replicas of a bucket, and when one of three is killed under load."""

import asyncio
import contextlib
from collections.abc import AsyncIterator
from itertools import count
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.core.routing.tenant_cost import OUTPUT_WEIGHT
from kvmesh_lab.mocker.command import Mocker
from tests.chaos.process import MeshProcess
from tests.integration.support.live_router import mockers
from tests.integration.support.small_mesh import answer_with, router_processes
from tests.integration.support.waiting import seen
from tests.reference.routing.fair_gap import largest_gap

pytestmark = pytest.mark.integration

TOKENS = 300
OUTPUT = 2
QUANTUM = 256
IN_FLIGHT = 4
"""Requests of a tenant that are charged and not answered, at most: 20 ms of backlog and one."""

ANSWERS = 60
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
"""Routers see when a stream's prefill ends; of whole answers they guess, which a busy machine
makes wrong.
"""


class Tenant:
    """Clients that always have requests waiting, each a document of its own; service is counted
    when an answer has come.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.service = 0
        self.largest = 0
        self.answers = 0
        self._serial = count()

    async def ask_on(self, client: httpx.AsyncClient, url: str) -> None:
        """Ask one replica until it dies or the task is cancelled."""
        while True:
            text = f"{self.name} {next(self._serial)} ".ljust(TOKENS, ".")
            body = {"model": "mock", "prompt": text, "max_tokens": OUTPUT} | STREAMED
            headers = {"x-kvmesh-tenant": self.name}
            try:
                answer = await client.post(f"{url}/v1/completions", json=body, headers=headers)
            except httpx.HTTPError:
                return
            assert answer.status_code == 200, answer.text
            last = answer.text.split("data: ")[-2]
            usage = msgspec.json.decode(last)["usage"]
            cached = usage["prompt_tokens_details"]["cached_tokens"]
            cost = usage["prompt_tokens"] - cached + OUTPUT_WEIGHT * usage["completion_tokens"]
            self.largest = max(self.largest, cost)
            self.service += cost
            self.answers += 1


async def knows_siblings(client: httpx.AsyncClient, replica: MeshProcess) -> None:
    await seen(client, f"{replica.url}/v1/status", lambda status: len(status["mesh"]["peers"]) == 2)


@pytest.fixture
async def engine() -> AsyncIterator[Mocker]:
    slow: dict[str, Any] = {"max_num_batched_tokens": 320, "max_num_seqs": 8, "speedup_ratio": 2.0}
    async with mockers(timing_profile="dynamo", **slow) as (engine,):
        yield engine


@pytest.fixture
async def replicas(
    nats_server: NatsServer, namespace: str, engine: Mocker, tmp_path: Path
) -> AsyncIterator[list[MeshProcess]]:
    flags = [f"--worker=w0={engine.url}", "--no-kv-events", "--nats-url", nats_server.url]
    flags += ["--namespace", namespace, "--max-backlog-ms", "10", "--queue-policy", "locality"]
    flags += ["--quantum-tokens", str(QUANTUM)]
    with router_processes(3, tmp_path, *flags) as processes:
        yield processes


async def test_a_tenant_at_one_replica_gets_its_share_though_another_asks_at_three(
    replicas: list[MeshProcess],
) -> None:
    everywhere, at_one = Tenant("everywhere"), Tenant("at-one")
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(timeout=30, limits=limits) as client:
        for replica in replicas:
            await answer_with(client, replica, "/ready", 200)
            await knows_siblings(client, replica)
        clients = [
            asyncio.create_task(tenant.ask_on(client, replica.url))
            for tenant, places in ((everywhere, replicas), (at_one, replicas[:1]))
            for replica in places
            for _ in range(24)
        ]
        apart: list[int] = []
        async with asyncio.timeout(90):
            while at_one.answers < ANSWERS:
                await asyncio.sleep(0.02)
                if at_one.answers:
                    apart.append(everywhere.service - at_one.service)
                if at_one.answers > ANSWERS // 2:
                    replicas[2].kill()
        shares = (await client.get(f"{replicas[0].url}/admin/admission")).json()["tenants"]
        for task in clients:
            task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.gather(*clients)

    largest = max(everywhere.largest, at_one.largest)
    flying = IN_FLIGHT * largest
    bound = largest_gap(QUANTUM, largest, unheard=flying, deaths=1, lost=flying)
    assert max(apart) - min(apart) <= bound, (apart[::20], bound)
    assert at_one.service > 2 * bound
    assert {one["tenant"] for one in shares} >= {"everywhere", "at-one"}
