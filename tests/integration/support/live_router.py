"""Routers, meta-routers, sidecars and engines in this process, on real sockets."""

import asyncio
import contextlib
import socket
import ssl
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx
import msgspec
import pytest

from kvmesh.app.meta.command import MetaServer
from kvmesh.app.process.running import Stop
from kvmesh.app.router.command import RouterServer
from kvmesh.app.worker.command import Sidecar
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.roles import (
    CostSettings,
    MetaRouterSettings,
    NatsSettings,
    RouterSettings,
    WorkerSettings,
)
from kvmesh_lab.mocker.command import Mocker, MockerOptions
from tests.doubles.memory.plane import MemoryPlane
from tests.doubles.memory.server import MemoryServer

READY_S = 60.0
MODELS = b'{"data": [{"id": "mock"}]}'
COMPLETION = (
    b'{"id": "x", "object": "text_completion", "model": "mock",'
    b' "choices": [{"index": 0, "text": "m", "finish_reason": "stop"}],'
    b' "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}}'
)
"""What a pretend engine answers to GET /v1/models and to POST /v1/completions."""
WITHOUT_NATS = """
import sys
for name in ("nats", "faststream"):
    sys.modules[name] = None
from tests.fixed_flags import main
main()
"""


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port: int = sock.getsockname()[1]
        return port


@contextlib.asynccontextmanager
async def serving(
    serve: Callable[[Stop], Awaitable[None]],
    url: str,
    verify: ssl.SSLContext | bool = True,
    path: str = "/ready",
) -> AsyncIterator[str]:
    """Run one server until the block ends; when it begins, `path` is answered 200."""
    stop = Stop()
    running = asyncio.ensure_future(serve(stop))
    deadline = asyncio.get_running_loop().time() + READY_S
    try:
        async with httpx.AsyncClient(base_url=url, verify=verify, timeout=20) as client:
            while True:
                assert not running.done(), running.exception()
                assert asyncio.get_running_loop().time() < deadline, f"{url} is not ready"
                with contextlib.suppress(httpx.HTTPError):
                    if (await client.get(path)).status_code == 200:
                        break
                await asyncio.sleep(0.02)
        yield url
    finally:
        stop.request()
        await running


@contextlib.asynccontextmanager
async def client_of(server: AbstractAsyncContextManager[str]) -> AsyncIterator[httpx.AsyncClient]:
    """Yield a client of a server that runs as long."""
    async with server as url, httpx.AsyncClient(base_url=url, timeout=60) as client:
        yield client


@contextlib.asynccontextmanager
async def router(
    engines: Sequence[str], *, port: int = 0, bucket: str = "default", **settings: Any
) -> AsyncIterator[str]:
    """Serve a router alone over `engines`, called w0, w1, …"""
    port, path = port or free_port(), settings.pop("path", "/ready")
    server = RouterServer(
        RouterSettings(
            kv_events=settings.pop("kv_events", False),
            worker=tuple(f"w{number}={url}" for number, url in enumerate(engines)),
            bucket=bucket,
            router_id=settings.pop("router_id", f"{bucket}-0"),
            seed=1,
            http=HttpSettings(
                http_port=port,
                drain_s=settings.pop("drain_s", 5.0),
                cors_origin=settings.pop("cors_origin", ()),
            ),
            **settings,
        )
    )
    async with serving(server.serve, f"http://127.0.0.1:{port}", path=path) as url:
        yield url


def mocker_options(block_size: int, blocks: int, **more: Any) -> MockerOptions:
    return MockerOptions(
        port=free_port(),
        kv_events_port=free_port(),
        replay_port=free_port(),
        block_size=block_size,
        timing_profile="instant",
        num_gpu_blocks_override=blocks,
        **more,
    )


@contextlib.asynccontextmanager
async def engine(wanted: MockerOptions) -> AsyncIterator[Mocker]:
    mocker = Mocker(wanted)
    await mocker.start()
    try:
        yield mocker
    finally:
        await mocker.stop()


@contextlib.asynccontextmanager
async def mockers(count: int = 1, **options: Any) -> AsyncIterator[list[Mocker]]:
    """Run pretend engines on free ports; without `timing_profile` they answer at once."""
    ports = {"port": 0, "kv_events_port": 0, "replay_port": 0}
    wanted = MockerOptions(**{"timing_profile": "instant", **ports, **options})
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(engine(wanted)) for _ in range(count)]


@contextlib.asynccontextmanager
async def running(serve: Callable[[Stop], Awaitable[None]]) -> AsyncIterator[None]:
    """Run what has no page that says when it serves."""
    stop = Stop()
    task = asyncio.ensure_future(serve(stop))
    try:
        yield
    finally:
        stop.request()
        await asyncio.wait_for(task, READY_S)


def sidecar(url: str, nats: NatsSettings, name: str = "w") -> AbstractAsyncContextManager[None]:
    """Run the sidecar of the engine at `url`."""
    return running(Sidecar(WorkerSettings(engine_url=url, worker_id=name, nats=nats)).serve)


@contextlib.asynccontextmanager
async def replica(
    nats: NatsSettings, name: str, **settings: Any
) -> AsyncIterator[httpx.AsyncClient]:
    """Serve a router of the mesh that believes events alone; it is ready when the block begins."""
    port = free_port()
    server = RouterServer(
        RouterSettings(
            router_id=name,
            cost=CostSettings(predict_ttl_s=0.0),
            http=HttpSettings(http_port=port, drain_s=0.0),
            nats=nats,
            **settings,
        )
    )
    async with (
        serving(server.serve, f"http://127.0.0.1:{port}") as url,
        httpx.AsyncClient(base_url=url, timeout=60) as client,
    ):
        yield client


@contextlib.asynccontextmanager
async def ended(process: asyncio.subprocess.Process) -> AsyncIterator[None]:
    """Kill a process that a failed block left running."""
    try:
        yield
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def router_without_nats(*arguments: str) -> AbstractAsyncContextManager[httpx.AsyncClient]:
    """Run `kvmesh router` as a process that cannot import nats; SIGTERM must end it well."""
    return router_process(*arguments, command=("-c", WITHOUT_NATS))


@contextlib.asynccontextmanager
async def router_process(
    *arguments: str, command: Sequence[str] = ("-m", "kvmesh"), serves: str = "router serves"
) -> AsyncIterator[httpx.AsyncClient]:
    """Run `kvmesh router` as a process; SIGTERM must end it well."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, *command, "router", *arguments),
        *("--http-port", "0"),
        stdin=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    assert process.stderr is not None
    url = ""
    while not url:
        line = (await process.stderr.readline()).decode()
        assert line, "the router ended before it served"
        if f'"{serves}"' in line:
            url = line.split('"url": "')[1].split('"')[0]
    log = asyncio.create_task(process.stderr.read())
    try:
        async with httpx.AsyncClient(base_url=url, timeout=60) as client:
            yield client
    finally:
        process.terminate()
        await process.wait()
        reported = (await log).decode()
    assert process.returncode == 0, reported


@contextlib.asynccontextmanager
async def meta_router(replicas: Sequence[str], **settings: Any) -> AsyncIterator[str]:
    """Serve a meta-router over `replicas`, written `bucket=url`."""
    port, path = free_port(), settings.pop("path", "/ready")
    server = MetaServer(
        MetaRouterSettings(
            replica=tuple(replicas),
            http=HttpSettings(http_port=port, drain_s=5.0),
            **settings,
        )
    )
    async with serving(server.serve, f"http://127.0.0.1:{port}", path=path) as url:
        yield url


async def chat(
    client: httpx.AsyncClient, text: str, request_id: str = "", **headers: str
) -> httpx.Response:
    """Stream one chat to its end."""
    names = {f"x-kvmesh-{name.replace('_', '-')}": value for name, value in headers.items()}
    if request_id:
        names["x-request-id"] = request_id
    body = {
        "model": "mock",
        "stream": True,
        "max_tokens": 4,
        "messages": [{"role": "user", "content": text}],
    }
    return await client.post("/v1/chat/completions", json=body, headers=names)


async def events(
    client: httpx.AsyncClient, path: str = "/v1/events"
) -> AsyncGenerator[tuple[str, Any], None]:
    """Yield (name, data) of a stream's events."""
    async with client.stream("GET", path) as answer:
        assert answer.headers["content-type"] == "text/event-stream"
        name = ""
        async for line in answer.aiter_lines():
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                yield name, msgspec.json.decode(line.removeprefix("data: "))


async def settled(url: str, name: str, count: int) -> None:
    """Wait until the router has counted so many of its requests."""
    found = 0
    async with httpx.AsyncClient(base_url=url) as client, asyncio.timeout(20):
        while found != count:
            seconds = (await client.get("/v1/overview")).json()["seconds"]
            found = sum(one[name] for one in seconds)
            await asyncio.sleep(0.05)


def serve_from_memory(monkeypatch: pytest.MonkeyPatch) -> MemoryServer:
    """Give every role that asks for NATS a plane of the server that is returned."""
    server = MemoryServer()

    def memory_plane(settings: NatsSettings, role: str, *names: str) -> MemoryPlane:
        del role, names
        return MemoryPlane(server, settings.namespace)

    monkeypatch.setattr("kvmesh.app.mesh.nats_plane.nats_plane", memory_plane)
    return server
