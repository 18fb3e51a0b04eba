"""A worker of a mesh over a real nats-server is drained by its sidecar: its streams leave it."""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator
from pathlib import Path

import httpx
import pytest

from tests.chaos.mesh import ChaosMesh, MeshSize
from tests.integration.support.told_stream import Told, form, tell

pytestmark = [pytest.mark.integration, pytest.mark.timeout(200)]

STREAMS = 40
COMPARED = 8
TOKENS = 1200
LEAVE_S = 10.0
FORMS = "chat", "sampled chat", "completion"
"""Those that go on by token ids: to ask again would take as long as what was told."""


@pytest.fixture
async def mesh(tmp_path: Path) -> AsyncIterator[ChaosMesh]:
    """Start a mesh of which one worker is not there yet."""
    mesh = ChaosMesh(tmp_path, MeshSize(ranks=(1, 1), blocks=8192, speedup=1.0))
    try:
        late = mesh.sidecars.pop()
        await mesh.start()
        mesh.sidecars.append(late)
        yield mesh
    finally:
        await mesh.stop()


async def load_of(url: str) -> int:
    async with httpx.AsyncClient() as client:
        load: int = (await client.get(f"{url}/load")).json()["server_load"]
        return load


async def usable(mesh: ChaosMesh) -> int:
    """Return how many workers every router has at least."""
    found: list[int] = []
    async with httpx.AsyncClient() as client:
        for one in mesh.routers:
            workers = (await client.get(f"{one.url}/v1/status")).json()["workers"]
            found.append(sum(worker["usable"] for worker in workers))
    return min(found)


async def test_streams_leave_a_worker_whose_sidecar_is_told_to_end(mesh: ChaosMesh) -> None:
    limits = httpx.Limits(max_connections=None)
    asked = [form(FORMS[number % 3], number, TOKENS) for number in range(STREAMS)]
    begun: set[str] = set()
    all_begun = asyncio.Event()

    def look(told: Told) -> None:
        if told.texts:
            begun.add(told.head["x-request-id"])
        if len(begun) == STREAMS:
            all_begun.set()

    async with contextlib.AsyncExitStack() as stack:
        front, alone = [
            await stack.enter_async_context(
                httpx.AsyncClient(base_url=url, timeout=120, limits=limits)
            )
            for url in (mesh.front.url, mesh.reference.url)
        ]
        asking = asyncio.gather(*(tell(front, *one, look) for one in asked))
        await all_begun.wait()
        mesh.sidecars[1].start()
        async with asyncio.timeout(30):
            while await usable(mesh) < 2:  # noqa: ASYNC110  routers are asked
                await asyncio.sleep(0.1)

        mesh.sidecars[0].terminate()
        began_s = time.monotonic()
        moved = await load_of(mesh.engines[0].url)
        while await load_of(mesh.engines[0].url):  # noqa: ASYNC110  an engine cannot tell
            await asyncio.sleep(0.05)
        left_s = time.monotonic() - began_s
        told = await asking
        calm = await asyncio.gather(*(tell(alone, *one) for one in asked[:COMPARED]))

    print(f"{moved} streams left in {left_s:.1f} s")  # noqa: T201
    assert moved == STREAMS
    assert left_s <= LEAVE_S
    assert [one.said for one in told[:COMPARED]] == [one.said for one in calm]
    ends = {(one.worker, one.reason, one.dones, len(one.errors), one.broken) for one in told}
    assert ends == {("w0", "length", 1, 0, False)}
    assert {one.usage["completion_tokens"] for one in told} == {TOKENS}
