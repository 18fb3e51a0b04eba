"""Engines whose answers cannot be: asked over real HTTP, as a sidecar or a router alone asks."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from kvmesh.actors.messages import WorkerHeartbeat
from kvmesh.actors.wire import decode, encode
from kvmesh.app.members.engine_load import read_loads
from kvmesh.app.members.engine_probe import read_facts, read_models
from kvmesh.bounds import MAX_NAME, MAX_NAMES
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.engines.facts import EngineFacts
from kvmesh.errors import TransportError
from kvmesh.transport.http.fetch import MAX_BODY_BYTES, fetch
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.server import HttpServer
from kvmesh.transport.http.upstream.client import UpstreamPool

pytestmark = pytest.mark.integration


@asynccontextmanager
async def engine(pages: dict[str, bytes]) -> AsyncIterator[tuple[UpstreamPool, str]]:
    def answer(exchange: Exchange) -> None:
        page = pages.get(exchange.request.path, pages.get("*"))
        exchange.respond(404 if page is None else 200, page or b"")

    server, pool = HttpServer(answer), UpstreamPool()
    await server.start("127.0.0.1", 0)
    try:
        yield pool, f"http://127.0.0.1:{server.port}"
    finally:
        await pool.close()
        await server.drain(0)


async def test_an_answer_too_long_is_no_answer_and_not_kept() -> None:
    async with engine({"*": bytes(MAX_BODY_BYTES + 1)}) as (pool, url):
        with pytest.raises(TransportError, match="4,194,304 bytes"):
            await fetch(pool, url, "/metrics", timeout_s=10.0)
        assert await read_loads(pool, url, EngineFacts()) == {}


@pytest.mark.parametrize(
    "page",
    [
        b"",
        b"\xff\xfe",
        b'{"data":[{"id":"\xff"}]}',
        b"[" * 1_000_000,
        b'{"data":[{"id":' + b"9" * 400 + b"}]}",
        b'{"data":{"id":"m"}}',
    ],
)
async def test_a_list_of_models_that_is_none_leaves_the_engine_unknown(page: bytes) -> None:
    async with engine({"*": page}) as (pool, url):
        assert await read_models(pool, url) is None


async def test_of_too_many_models_and_names_too_long_a_heartbeat_carries_the_rest() -> None:
    names = ["good", "n" * 1_000_000, "", "line\nbreak", *(f"m{n}" for n in range(20_000))]
    models = [{"id": name, "parent": "good"} for name in names]
    page = msgspec.json.encode({"data": models})
    metrics = b'vllm:cache_config_info{block_size="%b"} 1\n' % (b"9" * 30)
    async with engine({"/v1/models": page, "/metrics": metrics}) as (pool, url):
        facts = await read_facts(pool, url)

    assert facts is not None
    assert facts.models[0] == "good"
    assert len(facts.models) == MAX_NAMES
    assert max(map(len, facts.models)) <= MAX_NAME
    beat = WorkerHeartbeat(WorkerId("w"), "b", 1, 0, url, facts.models, facts.block_size)
    assert decode(encode(beat), WorkerHeartbeat) == beat


@pytest.mark.parametrize("number", ["NaN", "+Inf", "-1", "1e999", "9" * 400, "7e300"])
async def test_figures_that_cannot_be_are_brought_within_bounds(number: str) -> None:
    page = "".join(
        f'{name}{{engine="0"}} {number}\n'
        for name in ("vllm:num_requests_running", "vllm:kv_cache_usage_perc")
    )
    async with engine({"*": page.encode()}) as (pool, url):
        loads = await read_loads(pool, url, EngineFacts())

    assert loads[0].running_requests >= 0
    assert loads[0].used_blocks == 0
