"""Pickers alone in this process, on real sockets, over engines in this process."""

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

import httpx
import msgspec

from kvmesh.app.router.picker_command import picker_server
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.picker import GrpcSettings, PickerSettings
from kvmesh.settings.roles import RouterSettings
from kvmesh_lab.mocker.command import MockerOptions
from tests.integration.picker.asking import Gateway
from tests.integration.support.live_router import engine, free_port, serving

OPTIONS = MockerOptions(port=0, kv_events_port=0, replay_port=0, speedup_ratio=50.0)


class LivePicker(msgspec.Struct, frozen=True):
    """A gateway that asks it, a client of its other port, one for engines, and its gRPC port."""

    gateway: Gateway
    views: httpx.AsyncClient
    client: httpx.AsyncClient
    port: int


@contextlib.asynccontextmanager
async def engines(count: int) -> AsyncIterator[list[str]]:
    """Run simulated engines; yield their URLs."""
    async with contextlib.AsyncExitStack() as stack:
        yield [(await stack.enter_async_context(engine(OPTIONS))).url for _ in range(count)]


@contextlib.asynccontextmanager
async def picker(
    urls: Sequence[str], *, path: str = "/ready", grpc: GrpcSettings | None = None, **settings: Any
) -> AsyncIterator[LivePicker]:
    """Serve a picker alone over engines called w0, w1, …; when it begins, `path` answers 200."""
    http, port = free_port(), free_port()
    own = PickerSettings(
        picker_prefill=settings.pop("prefill", "picker"),
        grpc=grpc or GrpcSettings(grpc_port=port, notice_s=0.0),
        router=RouterSettings(
            worker=tuple(f"w{number}={url}" for number, url in enumerate(urls)),
            bucket="picks",
            router_id="p0",
            seed=1,
            http=settings.pop("http", HttpSettings(http_port=http, drain_s=5.0)),
            **settings,
        ),
    )
    server = picker_server(own)
    url = f"http://127.0.0.1:{own.router.http.http_port}"
    async with serving(server.serve, url, path=path):
        gateway = Gateway(f"127.0.0.1:{own.grpc.grpc_port}")
        async with httpx.AsyncClient(base_url=url) as views, httpx.AsyncClient() as client:
            yield LivePicker(gateway, views, client, own.grpc.grpc_port)
        await gateway.close()
