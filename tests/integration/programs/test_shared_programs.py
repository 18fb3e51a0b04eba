"""Programs whose turns are at several replicas, of which one is killed: nobody loses its cache."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import msgspec
import pytest

from kvmesh.app.ops.nats_server import NatsServer
from kvmesh_lab.mocker.command import Mocker
from tests.chaos.process import MeshProcess
from tests.integration.support.live_router import engine as live_engine
from tests.integration.support.live_router import mocker_options
from tests.integration.support.small_mesh import answer_with, router_processes

pytestmark = pytest.mark.integration

BLOCKS = 192
"""Of 16 tokens: room for one of the large contexts and one small one."""

SLOW = "linear,prefill_per_token=3,decode_base=20"
"""A context is kept for five times as long as it takes to compute: 30 s of a large one."""
NAME = "x-claude-code-session-id"
FINAL: dict[str, str] = {"x-kvmesh-program-final": "1"}
LARGE, SMALL = 90, 10
"""Times that a prompt says its line of 22 bytes, which are tokens here."""

WITHIN_S = 60.0
STREAMED = {"stream": True, "stream_options": {"include_usage": True}}
"""Routers see when a stream's prefill ends; of whole answers they guess."""


@pytest.fixture
async def engine() -> AsyncIterator[Mocker]:
    options = msgspec.structs.replace(mocker_options(16, BLOCKS), timing_profile=SLOW)
    async with live_engine(options) as mocker:
        yield mocker


@pytest.fixture
async def replicas(
    nats_server: NatsServer, namespace: str, engine: Mocker, tmp_path: Path
) -> AsyncIterator[list[MeshProcess]]:
    flags = [f"--worker=w0={engine.url}", "--no-kv-events", "--nats-url", nats_server.url]
    flags += ["--namespace", namespace, "--program-wait-s", str(WITHIN_S)]
    flags += ["--sse-comment-s", "0"]  # so that the answer's head can tell of the wait
    flags += ["--parity-sample", "0"]  # it sends prompts again, for which the engine has no room
    with router_processes(3, tmp_path, *flags) as processes:
        yield processes


class Clients:
    """Sends turns of agents to replicas, and asks these what they know."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client = client

    def turn(
        self,
        replica: MeshProcess,
        agent: str,
        times: int,
        tokens: int = 4,
        *,
        final: bool = False,
    ) -> "asyncio.Task[httpx.Response]":
        content = f"{agent} has work to do. ".rjust(22, "-") * times
        messages = [{"role": "user", "content": content}]
        body = {"model": "mock", "max_tokens": tokens, "messages": messages} | STREAMED
        url = f"{replica.url}/v1/chat/completions"
        named = {} if agent.startswith("warm") else {NAME: agent}
        headers = named | (FINAL if final else {})
        return asyncio.create_task(self._client.post(url, json=body, headers=headers))

    async def agents(self, replica: MeshProcess) -> list[dict[str, Any]]:
        view = (await self._client.get(f"{replica.url}/v1/programs")).json()
        return sorted(view["programs"], key=lambda one: one["age_s"], reverse=True)

    async def until(self, replica: MeshProcess, *phases: str) -> list[dict[str, Any]]:
        """Wait until a replica knows agents in these phases, the oldest first."""
        agents: list[dict[str, Any]] = []
        try:
            async with asyncio.timeout(WITHIN_S / 2):
                while [one["phase"] for one in agents] != [*phases]:
                    await asyncio.sleep(0.02)
                    agents = await self.agents(replica)
        except TimeoutError:
            raise AssertionError(f"{replica.name} knows {agents}, not {phases}") from None
        return agents


def cached(answer: httpx.Response) -> int:
    reported: int = usage_of(answer)["prompt_tokens_details"]["cached_tokens"]
    return reported


def usage_of(answer: httpx.Response) -> dict[str, Any]:
    usage: dict[str, Any] = msgspec.json.decode(answer.text.split("data: ")[-2])["usage"]
    return usage


async def test_a_killed_replica_takes_no_turn_and_no_reservation_along(
    replicas: list[MeshProcess],
) -> None:
    first, second, killed = replicas
    async with httpx.AsyncClient(timeout=WITHIN_S) as client:
        clients = Clients(client)
        for replica in replicas:
            await answer_with(client, replica, "/ready", 200)
        for number in range(4):  # so that what computing costs is known
            await clients.turn(killed, f"warm {number}", 2 * SMALL)
        [worker] = (await client.get(f"{killed.url}/v1/overview")).json()["workers"]
        assert worker["ms_per_token"] > 1.0
        size = usage_of(await clients.turn(killed, "old", LARGE))["prompt_tokens"]
        await clients.until(first, "paused")
        young = clients.turn(first, "young", LARGE)
        await clients.until(second, "paused", "waiting")
        lost = clients.turn(killed, "lost", SMALL, 150)
        await clients.until(second, "paused", "waiting", "running")

        killed.kill()
        with pytest.raises(httpx.HTTPError):
            await lost
        agents = await clients.until(second, "paused", "waiting", "paused")
        kept = [one["reserved"] for one in agents]
        assert not young.done()
        back = await clients.turn(second, "old", LARGE, final=True)
        late = await young
        again = await clients.turn(second, "lost", SMALL)
        known = await clients.until(first, "ended", "paused", "paused")
        killed.start()
        await answer_with(client, killed, "/ready", 200)
        restarted = await clients.until(killed, "ended", "paused", "paused")

    assert kept == [True, False, True]
    assert [one.status_code for one in (back, late, again)] == [200, 200, 200]
    assert cached(back) > 0.9 * size, "the cache that was kept for it"
    assert 0.0 < float(late.headers["x-kvmesh-program-wait-ms"]) < 1000.0 * WITHIN_S
    same = ("agent", "worker", "tokens", "turns", "served_tokens")
    assert [[one[key] for key in same] for one in restarted] == [
        [one[key] for key in same] for one in known
    ]
