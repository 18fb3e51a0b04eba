"""A router and engines in this process; `register_llm` runs their sidecars."""

import asyncio
import contextlib
import signal
import sys
import uuid
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx

import kvmesh
from kvmesh import Follower, FollowOptions, RegisteredLlm, RegisterOptions
from kvmesh.app.meta.command import MetaServer
from kvmesh.app.router.command import RouterServer
from kvmesh.core.blocks.events import WorkerId
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.roles import CostSettings, MetaRouterSettings, NatsSettings, RouterSettings
from kvmesh_lab.mocker.command import Mocker, MockerOptions
from tests.integration.support.live_router import ended, engine, free_port, serving

EXAMPLES = Path(__file__).parents[3] / "examples"

STREAM_BYTES = 32 * 1024**2


class EmbeddedMesh:
    """One bucket, of a name that no other test has, on the server at `nats_url`."""

    def __init__(self, nats_url: str, stack: contextlib.AsyncExitStack) -> None:
        self.nats_url = nats_url
        self.bucket = f"f{uuid.uuid4().hex[:10]}"
        self.engines: list[Mocker] = []
        self.llms: list[RegisteredLlm] = []
        self.router: RouterServer
        self.router_url = ""
        self._stack = stack

    async def add_engine(self, **options: Any) -> Mocker:
        """Start an engine."""
        wanted = MockerOptions(port=0, kv_events_port=0, replay_port=0, **options)
        self.engines.append(await self._stack.enter_async_context(engine(wanted)))
        return self.engines[-1]

    async def register(self, engine: Mocker) -> None:
        """Put an engine on the mesh, called w0, w1, …"""
        options = RegisterOptions(worker_id=f"w{len(self.llms)}", model="mock")
        opened = kvmesh.register_llm(engine.url, self.nats_url, self.bucket, options)
        self.llms.append(await self._stack.enter_async_context(opened))

    async def add_router(self, block_size: int = 16) -> None:
        """Start a router; return when it is ready."""
        port = free_port()
        self.router = RouterServer(
            RouterSettings(
                bucket=self.bucket,
                router_id="r0",
                nats=NatsSettings(nats_url=self.nats_url, stream_max_bytes=STREAM_BYTES),
                http=HttpSettings(http_port=port, drain_s=1.0),
                cost=CostSettings(kv_cache_block_size=block_size),
            )
        )
        url = f"http://127.0.0.1:{port}"
        self.router_url = await self._stack.enter_async_context(serving(self.router.serve, url))

    async def follow(self, name: str = "mine", **options: Any) -> Follower:
        """Follow the bucket until the mesh ends."""
        wanted = FollowOptions(name=name, **options)
        opened = kvmesh.follow(self.nats_url, self.bucket, wanted)
        return await self._stack.enter_async_context(opened)

    async def add_meta_router(self) -> str:
        """Start a meta-router over all buckets of the server; return its URL when it is ready."""
        port = free_port()
        settings = MetaRouterSettings(
            nats=NatsSettings(nats_url=self.nats_url),
            http=HttpSettings(http_port=port, drain_s=1.0),
        )
        serve = MetaServer(settings).serve
        return await self._stack.enter_async_context(serving(serve, f"http://127.0.0.1:{port}"))

    def booked_by(self, owner: str) -> int:
        """Return how many bookings of `owner` the router knows."""
        return len(self.router.scheduler.sequences.owned(owner))

    def router_load(self, worker: str) -> int:
        """Return how many requests the router counts at a worker."""
        return self.router.scheduler.sequences.loads(WorkerId(worker)).active_requests


@contextlib.asynccontextmanager
async def embedded_mesh(nats_url: str, engines: int, **options: Any) -> AsyncIterator[EmbeddedMesh]:
    """Run a mesh of so many engines and a router."""
    async with contextlib.AsyncExitStack() as stack:
        mesh = EmbeddedMesh(nats_url, stack)
        for _ in range(engines):
            await mesh.register(await mesh.add_engine(**options))
        await mesh.add_router(options.get("block_size", 16))
        yield mesh


async def complete(url: str, tokens: list[int], max_tokens: int = 4) -> httpx.Response:
    """Send a completion of a prompt in tokens."""
    body = {"model": "mock", "prompt": tokens, "max_tokens": max_tokens, "stream": True}
    async with httpx.AsyncClient(timeout=60) as client:
        answer = await client.post(f"{url}/v1/completions", json=body)
    assert answer.status_code == httpx.codes.OK, answer.text
    return answer


@contextlib.asynccontextmanager
async def example(name: str, *arguments: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """Run a file of examples/ as a stranger would; kill what is left of it."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, str(EXAMPLES / name), *arguments),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.PIPE,
        # What a shell runs in the background ignores the interrupt, and so would its children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    async with ended(process):
        yield process


async def line_of(process: asyncio.subprocess.Process) -> list[str]:
    """Return the words of the next line that a process prints."""
    assert process.stdout is not None
    assert process.stderr is not None
    line = await asyncio.wait_for(process.stdout.readline(), 60)
    assert line, (await process.stderr.read()).decode()
    return line.decode().split()
