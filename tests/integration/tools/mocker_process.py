"""Pretend engines in processes of their own: what is timed shares no interpreter with them."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from tests.integration.support.live_router import free_port

READY_S = 60.0


@asynccontextmanager
async def mocker_process(**flags: object) -> AsyncIterator[str]:
    """Serve one engine with such flags of `kvmesh mocker`, underscores for hyphens; its URL."""
    port = free_port()
    given = {"port": port, "kv_events_port": free_port(), "replay_port": free_port()} | flags
    words = [str(word) for name, value in given.items() for word in (_flag(name), value)]
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "kvmesh", "mocker", *words, "--log-level", "warning"
    )
    url = f"http://127.0.0.1:{port}"
    try:
        async with httpx.AsyncClient(base_url=url, timeout=20) as client, asyncio.timeout(READY_S):
            while not await _is_ready(client):  # noqa: ASYNC110  another process
                await asyncio.sleep(0.1)
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):  # it may have been told to end itself
            process.terminate()
        await process.wait()


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"


async def _is_ready(client: httpx.AsyncClient) -> bool:
    try:
        return (await client.get("/health")).status_code == httpx.codes.OK
    except httpx.TransportError:
        return False
