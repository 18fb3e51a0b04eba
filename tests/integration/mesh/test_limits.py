"""Limits of keys and tenants over two replicas on a real NATS, whoever is asked."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Final

import httpx
import pytest

from kvmesh.app.front.api_key import ApiKeyOptions, add_key
from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.observe import get_logger
from kvmesh_lab.mocker.command import Mocker
from tests.chaos.process import MeshProcess
from tests.integration.support.live_router import mockers
from tests.integration.support.small_mesh import answer_with, router_processes

pytestmark = pytest.mark.integration

TOKENS_A_MINUTE: Final = 60_000
TOKENS_A_DAY: Final = 6_500
BODY: Final[dict[str, Any]] = {"model": "mock", "prompt": "a" * 320, "max_tokens": 4}
RUN_S: Final = 8.0
SKEW: Final = (0, 0, 0, 0, 1)
"""Which replica each client asks: four of five the first."""


@pytest.fixture
async def engine() -> AsyncIterator[Mocker]:
    async with mockers() as (engine,):
        yield engine


@pytest.fixture
def keys(tmp_path: Path) -> dict[str, str]:
    """Keys by name; those of the daily budget and of the minute's requests are their tenants'."""
    path = tmp_path / "keys.toml"
    wanted = (
        ApiKeyOptions("minute", file=path, tokens_per_minute=TOKENS_A_MINUTE),
        ApiKeyOptions("day", file=path, tokens_per_day=TOKENS_A_DAY),
        ApiKeyOptions("some", file=path, requests_per_minute=30),
    )
    return {one.name: add_key(one) for one in wanted}


@pytest.fixture
async def replicas(
    nats_server: NatsServer, namespace: str, engine: Mocker, keys: dict[str, str], tmp_path: Path
) -> AsyncIterator[list[MeshProcess]]:
    assert keys
    flags = [f"--worker=w0={engine.url}", "--no-kv-events", "--nats-url", nats_server.url]
    flags += ["--namespace", namespace, "--parity-sample", "0"]
    flags += ["--api-keys", str(tmp_path / "keys.toml")]
    with router_processes(2, tmp_path, *flags) as processes:
        async with httpx.AsyncClient() as client:
            for one in processes:
                await answer_with(client, one, "/ready", 200)
        yield processes


class Clients:
    """Clients of one key: what they used, and how they were answered."""

    def __init__(self, key: str) -> None:
        self.headers = {"authorization": f"Bearer {key}"}
        self.http = httpx.AsyncClient(timeout=30, headers=self.headers)
        self.used = 0
        self.statuses: Counter[int] = Counter()

    async def send(self, replica: MeshProcess) -> httpx.Response:
        answer = await self.http.post(f"{replica.url}/v1/completions", json=BODY)
        self.statuses[answer.status_code] += 1
        if answer.status_code == 200:
            self.used += answer.json()["usage"]["total_tokens"]
        return answer

    async def send_until(self, replica: MeshProcess, until_s: float) -> None:
        while asyncio.get_running_loop().time() < until_s:
            if (await self.send(replica)).status_code == 429:
                await asyncio.sleep(0.05)


async def test_tokens_a_minute_hold_over_both_within_five_percent(
    replicas: list[MeshProcess], keys: dict[str, str]
) -> None:
    clients, loop = Clients(keys["minute"]), asyncio.get_running_loop()
    for replica in replicas * 10:
        await clients.send(replica)
        await asyncio.sleep(0.1)
    await asyncio.sleep(0.5)
    told = (await clients.send(replicas[0])).headers
    left, began = int(told["x-ratelimit-remaining-tokens"]), loop.time()
    clients.used = 0

    until_s = began + RUN_S
    await asyncio.gather(*(clients.send_until(replicas[one], until_s) for one in SKEW))
    took_s = loop.time() - began
    refused = await clients.send(replicas[1])

    allowed = left + TOKENS_A_MINUTE / 60 * took_s
    get_logger().info("tokens a minute", used=clients.used, allowed=round(allowed))
    assert clients.statuses[429] > 0
    assert clients.used == pytest.approx(allowed, rel=0.05)
    assert told["x-ratelimit-limit-tokens"] == str(TOKENS_A_MINUTE)
    assert told["x-ratelimit-reset-tokens"].endswith("s")
    if refused.status_code == 429:
        assert int(refused.headers["retry-after"]) >= 1
        assert refused.json()["error"]["code"] == "rate_limit_exceeded"
    await clients.http.aclose()


async def test_requests_a_minute_hold_over_both(
    replicas: list[MeshProcess], keys: dict[str, str]
) -> None:
    clients, loop = Clients(keys["some"]), asyncio.get_running_loop()
    began = loop.time()
    for number in range(60):
        await clients.send(replicas[number % 3 == 0])
        await asyncio.sleep(0.03)
    took_s = loop.time() - began

    assert clients.statuses[200] == pytest.approx(30 + took_s / 2, abs=1.5)
    models = await clients.http.get(f"{replicas[0].url}/v1/models")
    assert models.headers["x-ratelimit-limit-requests"] == "30"
    await clients.http.aclose()


async def test_a_days_budget_holds_over_both_and_over_a_restart(
    replicas: list[MeshProcess], keys: dict[str, str]
) -> None:
    clients = Clients(keys["day"])
    for number in range(80):
        await clients.send(replicas[number % 2])
        await asyncio.sleep(0.1)
        if clients.statuses[429] >= 4:
            break

    answer = await clients.send(replicas[0])
    assert answer.status_code == 429
    assert answer.json()["error"]["code"] == "insufficient_quota"
    assert answer.headers["x-should-retry"] == "false"
    assert TOKENS_A_DAY * 0.95 < clients.used < TOKENS_A_DAY + 8 * 324
    await asyncio.sleep(1.5)
    replicas[0].kill()
    replicas[0].start()
    async with httpx.AsyncClient() as client:
        await answer_with(client, replicas[0], "/ready", 200)
    async with asyncio.timeout(10):
        while (await clients.send(replicas[0])).status_code != 429:  # noqa: ASYNC110  a server
            await asyncio.sleep(0.2)
    await clients.http.aclose()
