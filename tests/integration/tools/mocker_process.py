"""Pretend engines in processes of their own: what is timed shares no interpreter with them."""

import asyncio
import contextlib
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx

from tests.integration.support.live_router import free_port
from tests.integration.support.waiting import until_ready


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
        async with httpx.AsyncClient(base_url=url, timeout=20) as client:
            await until_ready(client, path="/health")
        yield url
    finally:
        with contextlib.suppress(ProcessLookupError):  # it may have been told to end itself
            process.terminate()
        await process.wait()


def _flag(name: str) -> str:
    return f"--{name.replace('_', '-')}"
