"""A real Envoy between a client, a picker and endpoints, all on this machine."""

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import httpx

from kvmesh.app.picker.envoy_options import Address, GatewayOptions
from kvmesh.app.picker.envoy_server import EnvoyServer
from tests.integration.gateway.endpoints import Endpoint, stream_of
from tests.integration.gateway.pretend_picker import PretendPicker

WAIT_S = 20.0


class Gateway:
    """What a test asks: `client` sends to Envoy, `picker` and `endpoints` say what they saw."""

    def __init__(
        self, server: EnvoyServer, picker: PretendPicker, endpoints: list[Endpoint]
    ) -> None:
        self.server = server
        self.picker = picker
        self.endpoints = endpoints
        self.client = httpx.AsyncClient(timeout=WAIT_S)

    async def stream(
        self, *, seed: int, chunks: int, trailers: bool = False
    ) -> tuple[bytes, bytes]:
        """Return a stream's bytes as they came, and as they should."""
        asked = {"x-seed": str(seed), "x-chunks": str(chunks)}
        if trailers:
            asked["x-trailers"] = "yes"
        answer = await self.client.post("/v1/chat/completions", content=b"{}", headers=asked)
        return answer.content, b"".join(stream_of(seed, chunks))

    async def _counter(self, name: str) -> int | None:
        return (await self.server.counters(f"^{name}$")).get(name)

    async def wait_for(self, counter: str, value: int) -> None:
        """Return when a counter of Envoy's has that value."""
        async with asyncio.timeout(WAIT_S):
            while await self._counter(counter) != value:  # noqa: ASYNC110  Envoy tells nobody
                await asyncio.sleep(0.02)


@contextlib.asynccontextmanager
async def gateway(
    folder: Path,
    *,
    alternatives: int = 1,
    picked: bool = True,
    more_pickers: tuple[Address, ...] = (),
    **options: Any,
) -> AsyncGenerator[Gateway]:
    """Run Envoy with `options` (fields of `GatewayOptions`), a pretend picker and 3 endpoints.

    `picked` False: nobody answers where the picker should.
    """
    async with contextlib.AsyncExitStack() as stack:
        endpoints = [Endpoint() for _ in range(3)]
        for endpoint in endpoints:
            await endpoint.start()
            stack.push_async_callback(endpoint.stop)
        known = tuple(endpoint.address for endpoint in endpoints)
        picker = PretendPicker([str(address) for address in known], alternatives)
        where = Address("127.0.0.1", await picker.start())
        stack.push_async_callback(picker.stop)
        if not picked:
            await picker.stop()
        whole = GatewayOptions(pickers=(where, *more_pickers), endpoints=known, **options)
        server = EnvoyServer(whole, folder / "envoy")
        stack.push_async_callback(server.stop)
        await server.start()
        one = Gateway(server, picker, endpoints)
        one.client.base_url = httpx.URL(server.url)
        await stack.enter_async_context(one.client)
        yield one
