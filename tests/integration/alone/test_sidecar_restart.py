"""Sidecars killed beside engines that published more than their replay buffers keep."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from kvmesh.app.ops.nats_server import NatsServer
from kvmesh_lab.mocker.command import Mocker, MockerOptions
from tests.chaos.process import MeshProcess, fixed_ports

pytestmark = pytest.mark.integration

BUFFER_STEPS = 60
WITHIN_S = 60.0


class OldEngine:
    """An engine in this process, a router and a sidecar in others."""

    def __init__(
        self, folder: Path, nats_url: str, engine: Mocker, client: httpx.AsyncClient
    ) -> None:
        self._folder = folder
        self.engine, self.client = engine, client
        (port,) = fixed_ports(1)
        nats = ("--nats-url", nats_url)
        self.url = f"http://127.0.0.1:{port}"
        router = ("router", "--http-port", str(port), *nats)
        self.router = MeshProcess("router", self.url, router, folder / "router.log")
        sidecar = ("worker", "--engine-url", engine.url, "--worker-id", "w", *nats)
        self.sidecar = MeshProcess("sidecar", "", sidecar, folder / "sidecar.log")

    async def ask(self, number: int) -> tuple[int, int]:
        """Send one prompt of few that share their beginning; return predicted and cached blocks."""
        prompt = f"{'what all prompts begin with ' * 20} {number} " + f"prompt {number} " * 20
        body = {"model": "mock", "prompt": prompt, "max_tokens": 20}
        answer = await self.client.post(f"{self.url}/v1/completions", json=body)
        assert answer.status_code == 200, answer.text
        cached = answer.json()["usage"]["prompt_tokens_details"]["cached_tokens"]
        return int(answer.headers["x-kvmesh-overlap-blocks"]), cached // 16

    async def trust(self) -> str:
        status = await self.client.get(f"{self.url}/v1/status")
        (worker,) = status.json()["workers"] or [{"trust": "unknown"}]
        return str(worker["trust"])

    async def until_kept(self) -> None:
        """Wait until what the sidecar knows is stored, up to the engine's last batch."""
        publisher = self.engine.ranks[0].publisher
        assert publisher is not None
        began_s = time.monotonic()
        while True:
            mesh = (await self.client.get(f"{self.url}/v1/status")).json()["mesh"]
            if mesh["checkpoints"]["batches"].get("w") == publisher.next_seq - 1:
                return
            assert time.monotonic() < began_s + WITHIN_S, self.sidecar.last_words()
            await asyncio.sleep(0.05)

    async def until_exact(self, lost: int = 1) -> float:
        """Return the seconds until the worker is known exactly again, its sidecar having found
        out so many times that batches are gone.
        """
        began_s = time.monotonic()
        while await self.trust() != "exact" or self.said().count("engine events lost") < lost:
            assert time.monotonic() < began_s + WITHIN_S, self.sidecar.last_words()
            await asyncio.sleep(0.05)
        return time.monotonic() - began_s

    def said(self) -> str:
        return (self._folder / "sidecar.log").read_text()


@contextlib.asynccontextmanager
async def old_engine(folder: Path) -> AsyncIterator[OldEngine]:
    server = NatsServer(folder / "store", port=fixed_ports(1)[0])
    options = MockerOptions(
        port=0,
        kv_events_port=0,
        replay_port=0,
        buffer_steps=BUFFER_STEPS,
        timing_profile="instant",
    )
    engine = Mocker(options)
    await server.start()
    await engine.start()
    async with httpx.AsyncClient(timeout=20) as client:
        room = OldEngine(folder, server.url, engine, client)
        try:
            room.sidecar.start()
            room.router.start()
            while (await until_answer(client, f"{room.url}/ready")).status_code != 200:  # noqa: ASYNC110
                await asyncio.sleep(0.05)
            yield room
        finally:
            room.sidecar.kill()
            room.router.kill()
            await engine.stop()
            await server.stop()


async def until_answer(client: httpx.AsyncClient, url: str) -> httpx.Response:
    deadline_s = time.monotonic() + WITHIN_S
    while True:
        try:
            return await client.get(url)
        except httpx.HTTPError:
            assert time.monotonic() < deadline_s
            await asyncio.sleep(0.05)


async def test_a_sidecar_killed_beside_an_old_engine_knows_all_it_held(tmp_path: Path) -> None:
    async with old_engine(tmp_path) as room:
        for number in range(150):
            await room.ask(number % 40)
        await room.until_kept()
        room.sidecar.kill()
        for number in range(40, 50):
            await room.ask(number)

        room.sidecar.start()
        took_s = await room.until_exact()

        for number in range(50):
            predicted, cached = await room.ask(number)
            assert predicted == cached > 0
        assert room.said().count("going on from what an earlier sidecar knew") == 1
        assert took_s < 20, "about 2 s where nothing else runs"


async def test_a_sidecar_killed_while_it_goes_on_from_a_checkpoint_is_exact_all_the_same(
    tmp_path: Path,
) -> None:
    async with old_engine(tmp_path) as room:
        for number in range(150):
            await room.ask(number % 40)
        await room.until_kept()
        for lost in range(1, 4):
            room.sidecar.kill()
            room.sidecar.start()
            while room.said().count("engine events lost") < lost:  # noqa: ASYNC110
                await asyncio.sleep(0.002)
        room.sidecar.kill()
        room.sidecar.start()

        await room.until_exact(lost=4)

        predicted, cached = await room.ask(7)
        assert predicted == cached > 0


async def test_what_no_checkpoint_and_no_replay_tells_is_learned_from_answers(
    tmp_path: Path,
) -> None:
    """The engine goes on without a sidecar for longer than its buffer; all begins with one text."""
    async with old_engine(tmp_path) as room:
        for number in range(20):
            await room.ask(number)
        await room.until_kept()
        room.sidecar.kill()
        for number in range(20, 20 + 2 * BUFFER_STEPS):
            await room.ask(number)

        room.sidecar.start()
        number = 1000
        while await room.trust() != "exact" or not room.said().count("engine events lost"):
            await room.ask(number)
            number += 1
            assert number < 3000, room.sidecar.last_words()

        assert room.said().count("engine events lost") == 1
        predicted, cached = await room.ask(number)
        assert predicted == cached > 0
