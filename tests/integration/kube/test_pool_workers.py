"""Routers of an InferencePool: its pods as workers, and a mesh narrowed to it."""

import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.errors import ConfigError
from kvmesh.settings.features import PoolSettings
from tests.chaos.process import fixed_ports
from tests.integration.kube import api_server
from tests.integration.kube.api_server import ApiServer, pod, pool
from tests.integration.support import live_router
from tests.integration.support.live_router import mockers
from tests.integration.support.small_mesh import SmallMesh, answer_with, running
from tests.integration.support.waiting import seen, until

pytestmark = pytest.mark.integration

PODS, POOLS = api_server.pods_path(), api_server.pools_path()
POOL = PoolSettings(inference_pool="llm/chat")
PROMPT = {"model": "mock", "max_tokens": 1, "prompt": "hello"}


@contextlib.asynccontextmanager
async def engines() -> AsyncIterator[list[int]]:
    async with mockers(2) as made:
        yield [int(one.url.rpartition(":")[2]) for one in made]


async def status_when(
    client: httpx.AsyncClient, good: Callable[[dict[str, Any]], bool], url: str = ""
) -> dict[str, Any]:
    status: dict[str, Any] = await seen(client, f"{url}/v1/status", good)
    return status


def usable(status: dict[str, Any]) -> set[str]:
    return {one["worker"] for one in status["workers"] if one["usable"]}


@pytest.fixture
async def api(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[ApiServer]:
    async with api_server.running() as (server, port):
        monkeypatch.setenv("KUBECONFIG", str(api_server.kubeconfig(tmp_path, port)))
        yield server


async def test_ready_pods_are_the_workers_of_a_router_alone(api: ApiServer) -> None:
    async with engines() as (first, second):
        await api.put(POOLS, pool("chat", first, second))
        await api.put(PODS, active("vllm-0", first))
        await api.put(PODS, active("vllm-1", second, ready=False))
        names = (f"vllm-0-{first}", f"vllm-1-{second}")
        async with live_router.client_of(live_router.router([], pool=POOL)) as client:
            await status_when(client, lambda status: usable(status) == {names[0]})
            answer = await client.post("/v1/completions", json=PROMPT)
            assert answer.headers["x-kvmesh-worker"] == names[0]

            await api.put(PODS, active("vllm-1", second))
            await status_when(client, lambda status: usable(status) == {*names})
            await api.delete(PODS, "vllm-0")
            status = await status_when(client, lambda status: usable(status) == {names[1]})
            answer = await client.post("/v1/completions", json=PROMPT)
            metrics = (await client.get("/metrics")).text

    assert answer.headers["x-kvmesh-worker"] == names[1]
    assert status["inference_pool"]["endpoints"] == [f"127.0.0.1:{second}"]
    assert status["inference_pool"]["failure_mode"] == "FailOpen"
    assert "kvmesh_pool_endpoints 1.0" in metrics
    assert 'kvmesh_pool_pods_out{why="unready"} 0.0' in metrics
    assert 'kvmesh_pool_lists_total{collection="pods"} 1.0' in metrics


def active(name: str, port: int, *, ready: bool = True) -> dict[str, Any]:
    """Return a pod that serves one of its pool's ports."""
    made = pod(name, "127.0.0.1", ready=ready)
    made["metadata"]["annotations"]["llm-d.ai/active-ports"] = str(port)
    return made


async def test_a_router_whose_pool_cannot_be_read_is_not_ready_and_says_why(
    api: ApiServer,
) -> None:
    api.refusals[POOLS] = (403, "inferencepools is forbidden")

    async with live_router.client_of(live_router.router([], pool=POOL, path="/health")) as client:
        path = "/ready?workers=any"
        await seen(client, path, lambda page: "403" in str(page))
        ready = await client.get(path)

    assert ready.status_code == 503
    assert "InferencePool llm/chat: " in ready.json()["reason"]
    (warning,) = ready.json()["warnings"]
    assert "InferencePool llm/chat: no endpoint: " in warning
    assert "get, list and watch inferencepools" in warning


async def test_the_pool_of_a_source_has_to_be_named() -> None:
    with pytest.raises(ConfigError, match="--inference-pool NAMESPACE/NAME"):
        async with live_router.router([], discover=("inference-pool",)):
            pass


async def test_in_the_mesh_only_workers_at_the_pool_s_endpoints_get_requests(
    api: ApiServer, tmp_path: Path
) -> None:
    server = NatsServer(tmp_path / "store", port=fixed_ports(1)[0])
    await server.start()
    mesh = SmallMesh(tmp_path, server.url, "--inference-pool", "llm/chat", hold_s=0.1)
    try:
        async with engines() as (inside, outside):
            sidecars = [
                mesh.process(
                    name,
                    0,
                    *("worker", "--worker-id", name, "--nats-url", server.url),
                    *("--engine-url", f"http://127.0.0.1:{port}"),
                )
                for name, port in (("inside", inside), ("outside", outside))
            ]
            await api.put(POOLS, pool("chat", inside))
            await api.put(PODS, pod("vllm-0", "127.0.0.1"))
            await api.put(PODS, pod("vllm-bare", "127.0.0.2"))
            async with running(mesh.router, *sidecars) as client:
                url = mesh.router.url
                await answer_with(client, mesh.router, "/ready", 200)
                status = await status_when(client, lambda status: len(status["workers"]) == 2, url)
                asked = [await client.post(f"{url}/v1/completions", json=PROMPT) for _ in range(4)]
                pinned = await client.post(
                    f"{url}/v1/completions",
                    json=PROMPT,
                    headers={"x-kvmesh-worker-id": "outside"},
                )
                assert usable(status) == {"inside"}
                assert {one.headers["x-kvmesh-worker"] for one in asked} == {"inside"}
                assert pinned.status_code == 503
                assert "no endpoint of InferencePool llm/chat" in pinned.text
                assert status["inference_pool"]["pods_without_worker"] == ["vllm-bare"]
                ready = (await client.get(f"{url}/ready")).json()
                assert any("vllm-bare" in line and "sidecar" in line for line in ready["warnings"])

                await api.put(POOLS, pool("chat", outside))
                await status_when(client, lambda status: usable(status) == {"outside"}, url)
                await api.delete(POOLS, "chat")
                gone = await answer_with(client, mesh.router, "/ready", 503, "no usable worker")
                refused = await client.post(f"{url}/v1/completions", json=PROMPT)
    finally:
        await server.stop()

    assert any("there is no such pool" in line for line in gone.json()["warnings"])
    assert refused.status_code == 503


async def test_pods_are_workers_of_siblings_that_tell_each_other(
    api: ApiServer, tmp_path: Path
) -> None:
    server = NatsServer(tmp_path / "store", port=fixed_ports(1)[0])
    await server.start()
    mesh = SmallMesh(tmp_path, server.url)
    watched = ("--inference-pool", "llm/chat", "--discover", "inference-pool")
    routers = [
        mesh.process(
            f"router-{number}",
            port,
            *("router", "--http-port", str(port), "--router-id", f"r{number}"),
            *("--nats-url", server.url, "--no-kv-events", *watched),
        )
        for number, port in enumerate(fixed_ports(2))
    ]
    try:
        async with engines() as (first, _), running(*routers) as client:
            await api.put(POOLS, pool("chat", first))
            await api.put(PODS, pod("vllm-0", "127.0.0.1"))
            for one in routers:
                await answer_with(client, one, "/ready", 200)
                await status_when(client, lambda status: usable(status) == {"vllm-0"}, one.url)
            long = {**PROMPT, "prompt": "what both know of " * 50}
            answer = await client.post(f"{routers[0].url}/v1/completions", json=long)
            answer.raise_for_status()

            async def cached() -> int:
                reported = await client.post(f"{routers[1].url}/v1/route", json=long)
                found: int = reported.json()["overlap_blocks"]
                return found

            await until(cached, what="the sibling is told")
    finally:
        await server.stop()
