"""What is learned of an engine over HTTP, from servers that answer as SGLang does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from kvmesh.app.engine_probe import EngineFacts, EventEndpoint, read_facts
from kvmesh.transport.http.exchange import Exchange
from kvmesh.transport.http.server import HttpServer
from kvmesh.transport.http.upstream import UpstreamPool

pytestmark = pytest.mark.integration

MODELS = b'{"data":[{"id":"m"}]}'
SERVER_INFO = b"""{"version":"0.5.23","page_size":16,"kv_events":{"publisher":"zmq",
"endpoint_host":"*","endpoint_port_base":5557,"replay_endpoint_port_base":5567,"topic":"t",
"block_size":16,"dp_size":2}}"""


@asynccontextmanager
async def answering(pages: dict[str, bytes]) -> AsyncIterator[str]:
    def handle(exchange: Exchange) -> None:
        page = pages.get(exchange.request.path)
        exchange.respond(404 if page is None else 200, page or b"")

    server = HttpServer(handle)
    await server.start("127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        await server.drain(0)


async def facts_of(pages: dict[str, bytes]) -> EngineFacts | None:
    pool = UpstreamPool()
    try:
        async with answering(pages) as url:
            return await read_facts(pool, url)
    finally:
        await pool.close()


async def test_sglang_tells_its_ranks_publishers_and_is_not_made_to_generate() -> None:
    pages = {"/v1/models": MODELS, "/server_info": SERVER_INFO, "/ready": b"", "/health": b""}

    facts = await facts_of(pages)

    assert facts == EngineFacts(
        models=("m",),
        block_size=16,
        health_path="/ready",
        endpoints=(
            EventEndpoint(0, "tcp://127.0.0.1:5557", "tcp://127.0.0.1:5567", "t"),
            EventEndpoint(1, "tcp://127.0.0.1:5558", "tcp://127.0.0.1:5568", "t"),
        ),
    )


async def test_an_older_sglang_is_asked_for_its_models() -> None:
    facts = await facts_of({"/v1/models": MODELS, "/server_info": b'{"kv_events":null}'})

    assert facts == EngineFacts(models=("m",), health_path="/v1/models")


async def test_any_other_server_is_asked_for_its_health() -> None:
    facts = await facts_of({"/v1/models": MODELS, "/server_info": b"<html>"})

    assert facts == EngineFacts(models=("m",))


async def test_what_lists_no_models_is_not_there() -> None:
    assert await facts_of({"/v1/models": b"[]"}) is None
