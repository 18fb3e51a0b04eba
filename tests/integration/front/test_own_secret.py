"""A router alone keys block hashes by a secret of its own: nobody can choose where they fall."""

import struct
from collections.abc import AsyncIterator

import httpx
import pytest

from kvmesh.app.router.command import RouterServer
from kvmesh.core.blocks.events import WorkerId
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.roles import RouterSettings
from kvmesh_lab.mocker.command import Mocker
from tests.integration.support.live_router import free_port, mockers, serving

pytestmark = pytest.mark.integration

BODY = {"model": "mock", "max_tokens": 1, "prompt": "What everybody asks. " * 20}


@pytest.fixture
async def engine() -> AsyncIterator[Mocker]:
    async with mockers() as (mocker,):
        yield mocker


async def test_blocks_are_found_and_no_two_routers_hash_alike(engine: Mocker) -> None:
    marks = []
    for _ in range(2):
        port = free_port()
        server = RouterServer(
            RouterSettings(
                worker=(f"w0={engine.url}",), parity_sample=0, http=HttpSettings(http_port=port)
            )
        )
        async with (
            serving(server.serve, f"http://127.0.0.1:{port}") as url,
            httpx.AsyncClient(base_url=url, timeout=60) as client,
        ):
            overlap = 0
            held = 0
            while not (overlap and held):  # the engine's events are on their way
                got = await client.post("/v1/completions", json=BODY)
                overlap = int(got.headers["x-kvmesh-overlap-blocks"])
                held = server.index.blocks(WorkerId("w0"))
            ready = (await client.get("/ready")).json()
            packed = {"content-type": "application/octet-stream"}
            ids = await client.post(
                "/v1/route", content=struct.pack("<64I", *range(64)), headers=packed
            )
            hashes = await client.post(
                "/v1/route", content=bytes(64), headers=packed | {"x-kvmesh-body": "hashes"}
            )
            marks.append(server.router.heartbeats[WorkerId("w0")].secret_mark)

        assert overlap == len(str(BODY["prompt"])) // 16
        assert held >= overlap
        assert "warnings" not in ready or not ready["warnings"]
        assert ids.status_code == 200
        assert hashes.status_code == 400
        assert "--hash-secret-file" in hashes.text
    assert 0 not in marks
    assert len(set(marks)) == 2
