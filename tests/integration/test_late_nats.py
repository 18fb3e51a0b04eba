"""Processes that start before their NATS server: they wait for it, say so, and then serve."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import httpx
import pytest

from kvmesh.app.nats_server import NatsServer
from tests.chaos.process import MeshProcess, fixed_ports
from tests.integration.nats.cluster import NatsCluster

pytestmark = pytest.mark.integration

WITHIN_S = 60.0


class Early:
    """Router, meta-router, engine and sidecar of one mesh, whose server may not run yet."""

    def __init__(self, folder: Path, nats_url: str) -> None:
        self._folder = folder
        self._nats = ["--nats-url", nats_url]
        router, front, engine, events, replay = fixed_ports(5)
        mocker = ("mocker", "--port", str(engine), "--speedup-ratio", "50")
        feeds = ("--kv-events-port", str(events), "--replay-port", str(replay))
        self.engine = self.process("engine", engine, *mocker, *feeds)
        self.router = self.process("router", router, "router", *door(router), *self._nats)
        self.front = self.process("front", front, "meta-router", *door(front), *self._nats)
        sidecar = ("worker", "--engine-url", self.engine.url, *self._nats)
        self.sidecar = self.process("sidecar", 0, *sidecar)
        named = ("--worker", self.engine.url, "--no-kv-events")
        self.sharing = self.process("sharing", front, "router", *door(front), *named, *self._nats)

    def process(self, name: str, port: int, *arguments: str) -> MeshProcess:
        log = self._folder / f"{name}.log"
        return MeshProcess(name, f"http://127.0.0.1:{port}", arguments, log)

    def all(self) -> Iterator[MeshProcess]:
        yield from (self.engine, self.router, self.front, self.sidecar)

    def said(self, process: MeshProcess) -> str:
        return (self._folder / f"{process.name}.log").read_text()


def door(port: int) -> tuple[str, ...]:
    return ("--http-port", str(port))


@contextlib.asynccontextmanager
async def running(*processes: MeshProcess) -> AsyncIterator[httpx.AsyncClient]:
    for process in processes:
        process.start()
    try:
        async with httpx.AsyncClient(timeout=10) as client:
            yield client
    finally:
        for process in processes:
            process.kill()


async def answer_with(
    client: httpx.AsyncClient, process: MeshProcess, path: str, status: int, text: str = ""
) -> httpx.Response:
    """Return the first answer of that status that holds `text`."""
    deadline_s, seen = time.monotonic() + WITHIN_S, ""
    while time.monotonic() < deadline_s:
        assert process.alive, process.last_words()
        with contextlib.suppress(httpx.HTTPError):
            answer = await client.get(f"{process.url}{path}")
            if answer.status_code == status and text in answer.text:
                return answer
            seen = f"{answer.status_code} {answer.text}"
        await asyncio.sleep(0.05)
    pytest.fail(f"{process.name}{path}: not {status} {text!r} but {seen}\n{process.last_words()}")


async def test_a_mesh_that_starts_before_its_server_waits_for_it_and_serves(
    tmp_path: Path,
) -> None:
    server = NatsServer(tmp_path / "store", port=fixed_ports(1)[0])
    mesh = Early(tmp_path, server.url)
    prompt = {"model": "mock", "prompt": "hello", "max_tokens": 3}
    async with running(*mesh.all()) as client:
        for place in (mesh.router, mesh.front):
            waiting = f"waiting for NATS at {server.url}"
            answer = await answer_with(client, place, "/ready", 503, waiting)
            assert answer.json()["reason"] == waiting
            assert (await client.get(f"{place.url}/health")).status_code == 200
            asked = await client.post(f"{place.url}/v1/completions", json=prompt)
            assert asked.status_code == 503
        await answer_with(client, mesh.engine, "/health", 200)
        while "waiting for NATS" not in mesh.said(mesh.sidecar):
            assert mesh.sidecar.alive, mesh.sidecar.last_words()
            await asyncio.sleep(0.05)

        await server.start()
        try:
            for place in (mesh.router, mesh.front):
                await answer_with(client, place, "/ready", 200)
            asked = await client.post(f"{mesh.front.url}/v1/completions", json=prompt)
            assert asked.status_code == 200, asked.text
        finally:
            await server.stop()

    for process in (mesh.router, mesh.front, mesh.sidecar):
        assert mesh.said(process).count("waiting for NATS") == 1, mesh.said(process)


async def test_a_router_of_named_workers_serves_while_it_waits_for_its_siblings(
    tmp_path: Path,
) -> None:
    server = NatsServer(tmp_path / "store", port=fixed_ports(1)[0])
    mesh = Early(tmp_path, server.url)
    async with running(mesh.engine, mesh.sharing) as client:
        waiting = f"waiting for NATS at {server.url}: siblings are not heard"
        answer = await answer_with(client, mesh.sharing, "/ready", 200, waiting)
        assert answer.json()["warnings"] == [waiting]
        prompt = {"model": "mock", "prompt": "hello", "max_tokens": 3}
        asked = await client.post(f"{mesh.sharing.url}/v1/completions", json=prompt)
        assert asked.status_code == 200, asked.text

        await server.start()
        try:
            while "warnings" in (await client.get(f"{mesh.sharing.url}/ready")).json():  # noqa: ASYNC110
                await asyncio.sleep(0.05)
        finally:
            await server.stop()


async def test_a_router_waits_for_a_cluster_that_has_no_leader_yet(tmp_path: Path) -> None:
    cluster = NatsCluster(tmp_path)
    first, *others = cluster.servers.values()
    await first.start()
    try:
        router = Early(tmp_path, first.url).router
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
    mesh = Early(tmp_path, f"nats://127.0.0.1:{fixed_ports(1)[0]}")
    process: MeshProcess = getattr(mesh, role)
    async with running(mesh.engine, process):
        while "waiting for NATS" not in mesh.said(process):
            assert process.alive, process.last_words()
            await asyncio.sleep(0.05)

        started = time.monotonic()
        process.stop()

        assert process.returncode == 0, process.last_words()
        assert time.monotonic() - started < 5


@pytest.mark.parametrize("role", ["router", "front"])
async def test_a_refused_login_ends_a_process_at_once(tmp_path: Path, role: str) -> None:
    config = "authorization { users = [ { user: admin, password: secret } ] }"
    server = NatsServer(tmp_path / "store", config=config)
    await server.start()
    try:
        mesh = Early(tmp_path, server.url)
        process: MeshProcess = getattr(mesh, role)
        async with running(process):
            deadline_s = time.monotonic() + WITHIN_S
            while process.alive and time.monotonic() < deadline_s:  # noqa: ASYNC110  its own end
                await asyncio.sleep(0.05)

            assert process.returncode == 2, process.last_words()
            assert "authorization" in process.last_words().lower()
    finally:
        await server.stop()
