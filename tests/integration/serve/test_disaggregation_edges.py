"""Prefill and decode on two workers behind `--http-processes 2`."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator, Sequence

import httpx
import pytest

from kvmesh.mocker.command import Mocker
from tests.integration.serve.test_disaggregation import (
    PROMPT,
    THRESHOLD,
    chat,
    engines,
    until_idle,
    workers_of,
)
from tests.integration.support.live_router import free_port

pytestmark = pytest.mark.integration


@contextlib.asynccontextmanager
async def two_edges(mockers: Sequence[Mocker]) -> AsyncIterator[httpx.AsyncClient]:
    """Run a router of three processes over them, until its edges answer as the index process."""
    port = free_port()
    flags = [
        f"--worker=w{number}={one.url},role={one.options.role}"
        for number, one in enumerate(mockers)
    ]
    flags += ["--http-processes", "2", "--http-port", str(port), "--no-kv-events"]
    flags += ["--prefill-threshold", str(THRESHOLD), "--parity-sample", "0", "--drain-s", "1"]
    process = await asyncio.create_subprocess_exec(sys.executable, "-m", "kvmesh", "router", *flags)
    try:
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=60) as client:
            deadline = asyncio.get_running_loop().time() + 60.0
            status = 0
            while status != 200:
                assert asyncio.get_running_loop().time() < deadline, status
                with contextlib.suppress(httpx.TransportError):
                    status = (await client.get("/ready")).status_code
                await asyncio.sleep(0.05)
            yield client
    finally:
        process.terminate()
        await process.wait()
    assert process.returncode == 0


async def test_edges_leave_the_split_to_the_index_process() -> None:
    async with engines("prefill", "decode") as mockers, two_edges(mockers) as client:
        deadline = asyncio.get_running_loop().time() + 60.0
        number, split = 0, await chat(client, PROMPT)
        # Each edge is told of the workers within a second.
        while workers_of(split) != ("w0", "w1"):
            assert asyncio.get_running_loop().time() < deadline, split.headers
            number += 1
            split = await chat(client, f"{number}" + PROMPT)
        streamed = await chat(client, "s" + PROMPT, stream=True)
        short = await chat(client, "Hello?")
        wrong = await chat(client, PROMPT, stop=[""])
        await until_idle(client)
        ready = await client.get("/ready")

    assert workers_of(streamed) == ("w0", "w1")
    assert streamed.text.endswith("data: [DONE]\n\n")
    assert workers_of(short) == ("", "w1")
    assert wrong.status_code == 400
    assert "prefill" not in ready.text
