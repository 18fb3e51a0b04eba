"""What is learned of an engine over HTTP, from servers that answer as SGLang does."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import zmq

from kvmesh.actors.messages import WorkerLoad
from kvmesh.app.members.engine_probe import read_facts
from kvmesh.app.members.load_feed import LoadFeed
from kvmesh.core.engines.facts import EngineFacts, EventEndpoint
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.server import HttpServer
from kvmesh.transport.http.upstream.client import UpstreamPool
from tests.conftest import Eventually

pytestmark = pytest.mark.integration

MODELS = b'{"data":[{"id":"m"}]}'
SERVER_INFO = b"""{"version":"0.5.23","page_size":16,"kv_events":{"publisher":"zmq",
"endpoint_host":"*","endpoint_port_base":5557,"replay_endpoint_port_base":5567,"topic":"t",
"block_size":16,"dp_size":2,"load_endpoint_port_base":5559,"load_topic":"load"}}"""
LOADS = b'{"loads":[{"dp_rank":0,"num_running_reqs":3,"max_total_num_tokens":160}]}'


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
    pages = {"/v1/models": MODELS, "/server_info": SERVER_INFO, "/ready": b"", "/v1/loads": LOADS}

    facts = await facts_of(pages)

    assert facts == EngineFacts(
        kind="sglang",
        models=("m",),
        block_size=16,
        health_path="/ready",
        endpoints=(
            EventEndpoint(0, "tcp://127.0.0.1:5557", "tcp://127.0.0.1:5567", "t"),
            EventEndpoint(1, "tcp://127.0.0.1:5558", "tcp://127.0.0.1:5568", "t"),
        ),
        load_path="/v1/loads",
        load_streams=("tcp://127.0.0.1:5559", "tcp://127.0.0.1:5560"),
    )


async def test_an_older_sglang_is_asked_for_its_models() -> None:
    facts = await facts_of({"/v1/models": MODELS, "/server_info": b'{"kv_events":null}'})

    assert facts == EngineFacts(kind="sglang", models=("m",), health_path="/v1/models")


async def test_any_other_server_is_asked_for_its_health() -> None:
    facts = await facts_of({"/v1/models": MODELS, "/server_info": b"<html>"})

    assert facts == EngineFacts(models=("m",))


async def test_what_lists_no_models_is_not_there() -> None:
    assert await facts_of({"/v1/models": b"[]"}) is None


STAT = bytes.fromhex("9ba84c6f6164537461740100cce0cd20000000cce0cd1000ccc8ce00016e3c")


async def test_load_is_heard_where_it_is_published_and_asked_for_when_that_falls_silent(
    eventually: Eventually,
) -> None:
    context = zmq.Context()
    publisher = context.socket(zmq.PUB)
    port = publisher.bind_to_random_port("tcp://127.0.0.1")
    received: list[tuple[int, WorkerLoad]] = []

    def published() -> bool:
        publisher.send_multipart((b"load", bytes(8), b"no load"))
        publisher.send_multipart((b"load", bytes(8), STAT))
        return bool(received)

    pool = UpstreamPool()
    try:
        async with answering({"/v1/loads": LOADS}) as url:
            facts = EngineFacts(
                kind="sglang",
                block_size=16,
                load_path="/v1/loads",
                load_streams=(f"tcp://127.0.0.1:{port}",),
            )
            feed = LoadFeed(url, facts, lambda rank, load: received.append((rank, load)))
            feed.start()
            await eventually(published, what="the stream is heard")
            publisher.close(linger=0)
            stream = WorkerLoad(
                running_requests=1,
                used_blocks=14,
                total_blocks=512,
                waiting_tokens=0,
                prefilled_tokens=200,
                prefill_busy_us=93_756,
                total_slots=4096,
                computed_tokens=424,
            )
            assert set(received) == {(0, stream)}

            count = len(received)
            await feed.check(pool)
            assert len(received) == count
            await feed.check(pool)
            page = WorkerLoad(running_requests=3, total_blocks=10, computed_tokens=0)
            assert received[-1] == (0, page)
            feed.close()
            feed.close()
    finally:
        await pool.close()
        context.destroy(linger=0)


async def test_a_load_stream_that_cannot_be_is_made_up_for_by_asking() -> None:
    received: list[int] = []
    pool = UpstreamPool()
    try:
        async with answering({"/v1/loads": LOADS}) as url:
            facts = EngineFacts(kind="sglang", load_path="/v1/loads", load_streams=("nonsense",))
            feed = LoadFeed(url, facts, lambda rank, _: received.append(rank))
            feed.start()
            await feed.check(pool)
            feed.close()
            for kind in ("sglang", ""):
                unheard = EngineFacts(kind=kind, load_path="/nowhere", load_streams=("nonsense",))
                other = LoadFeed(url, unheard, feed._report)
                other.start()
                await other.check(pool)
                other.close()
    finally:
        await pool.close()

    assert received == [0]
