"""Processes that start before their NATS server: they wait for it, say so, and then serve."""

import asyncio
from pathlib import Path

import httpx
import pytest

from kvmesh.app.ops.nats_server import NatsServer
from tests.chaos.process import MeshProcess, fixed_ports
from tests.integration.nats.cluster import NatsCluster
from tests.integration.support.small_mesh import WITHIN_S, SmallMesh, answer_with, running
from tests.integration.support.waiting import seen, until

pytestmark = pytest.mark.integration


async def test_a_mesh_that_starts_before_its_server_waits_for_it_and_serves(
    tmp_path: Path,
) -> None:
    server = NatsServer(tmp_path / "store", port=fixed_ports(1)[0])
    mesh = SmallMesh(tmp_path, server.url)
    prompt = {"model": "mock", "prompt": "hello", "max_tokens": 3}
    held: list[asyncio.Task[httpx.Response]] = []
    async with running(*mesh.all()) as client:
        for place in (mesh.router, mesh.front):
            waiting = f"waiting for NATS at {server.url}"
            answer = await answer_with(client, place, "/ready", 503, waiting)
            assert answer.json()["reason"] == waiting
            assert (await client.get(f"{place.url}/health")).status_code == 200
            url = f"{place.url}/v1/completions"
            held.append(asyncio.create_task(client.post(url, json=prompt, timeout=WITHIN_S)))
        await answer_with(client, mesh.engine, "/health", 200)
        await until(lambda: "waiting for NATS" in mesh.said(mesh.sidecar))
        assert not any(one.done() for one in held)

        await server.start()
        try:
            assert [(await one).status_code for one in held] == [200, 200]
            for place in (mesh.router, mesh.front):
                await answer_with(client, place, "/ready", 200)
            asked = await client.post(f"{mesh.front.url}/v1/completions", json=prompt)
            assert asked.status_code == 200, asked.text
        finally:
            await server.stop()

    for process in (mesh.router, mesh.front, mesh.sidecar):
        said = mesh.said(process)
        assert said.count("start NATS (nats-server -js), or name a running server with") == 1, said


async def test_a_router_of_named_workers_serves_while_it_waits_for_its_siblings(
    tmp_path: Path,
) -> None:
    server = NatsServer(tmp_path / "store", port=fixed_ports(1)[0])
    mesh = SmallMesh(tmp_path, server.url)
    async with running(mesh.engine, mesh.sharing) as client:
        waiting = f"waiting for NATS at {server.url}: siblings are not heard"
        answer = await answer_with(client, mesh.sharing, "/ready", 200, waiting)
        assert answer.json()["warnings"] == [waiting]
        prompt = {"model": "mock", "prompt": "hello", "max_tokens": 3}
        asked = await client.post(f"{mesh.sharing.url}/v1/completions", json=prompt)
        assert asked.status_code == 200, asked.text

        await server.start()
        try:
            await seen(client, f"{mesh.sharing.url}/ready", lambda page: "warnings" not in page)
        finally:
            await server.stop()


async def test_a_router_waits_for_a_cluster_that_has_no_leader_yet(tmp_path: Path) -> None:
    cluster = NatsCluster(tmp_path)
    first, *others = cluster.servers.values()
    await first.start()
    try:
        router = SmallMesh(tmp_path, first.url).router
        async with running(router) as client:
            await answer_with(client, router, "/ready", 503, "waiting for JetStream at")
            assert (await client.get(f"{router.url}/health")).status_code == 200

            for server in others:
                await server.start()

            # No worker is there: all that is left to wait for.
            await answer_with(client, router, "/ready", 503, "no usable worker")
    finally:
        await cluster.stop()


@pytest.mark.parametrize("role", ["router", "front", "sidecar"])
async def test_sigterm_ends_a_process_that_waits(tmp_path: Path, role: str) -> None:
    mesh = SmallMesh(tmp_path, f"nats://127.0.0.1:{fixed_ports(1)[0]}")
    process: MeshProcess = getattr(mesh, role)
    async with running(*([mesh.engine] if role == "sidecar" else []), process):
        await until(lambda: "waiting for NATS" in mesh.said(process) or not process.alive)

        process.stop()

        assert process.returncode == 0, process.last_words()
        assert "nats disconnected" not in mesh.said(process)


@pytest.mark.parametrize("role", ["router", "front"])
async def test_a_refused_login_ends_a_process_at_once(tmp_path: Path, role: str) -> None:
    config = "authorization { users = [ { user: admin, password: secret } ] }"
    server = NatsServer(tmp_path / "store", config=config)
    await server.start()
    try:
        mesh = SmallMesh(tmp_path, server.url)
        process: MeshProcess = getattr(mesh, role)
        async with running(process):
            await until(lambda: not process.alive, WITHIN_S)
            assert process.returncode == 2, process.last_words()
            assert "authorization" in process.last_words().lower()
    finally:
        await server.stop()
