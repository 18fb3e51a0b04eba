"""Sidecars of engines that connect to them, one publisher a data-parallel rank."""

import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import msgspec
import pytest

from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.app.process.running import Stop
from kvmesh.app.router.command import RouterServer
from kvmesh.app.worker.command import Sidecar
from kvmesh.core.blocks.events import WorkerId
from kvmesh.errors import ConfigError
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.roles import NatsSettings, RouterSettings, WorkerSettings
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.server import HttpServer
from kvmesh_lab.mocker.publisher import EventPublisher, ZmqPublisherOptions
from tests.conftest import Eventually
from tests.integration.support.live_router import running

pytestmark = pytest.mark.integration

PAGES = {
    "/v1/models": b'{"data":[{"id":"m"}]}',
    "/health": b"",
    "/metrics": b"""vllm:num_requests_running{engine="0"} 0.0
vllm:num_requests_running{engine="1"} 3.0
""",
}


@asynccontextmanager
async def engine_pages() -> AsyncIterator[str]:
    def answer(exchange: Exchange) -> None:
        page = PAGES.get(exchange.request.path)
        exchange.respond(404 if page is None else 200, page or b"")

    server = HttpServer(answer)
    await server.start("127.0.0.1", 0)
    try:
        yield f"http://127.0.0.1:{server.port}"
    finally:
        await server.drain(0)


def free_pair() -> int:
    """Return a port that is free, as is the next."""
    while True:
        with socket.socket() as one, socket.socket() as two:
            one.bind(("127.0.0.1", 0))
            port: int = one.getsockname()[1]
            try:
                two.bind(("127.0.0.1", port + 1))
            except OSError:
                continue
            return port


def store(blocks: int) -> bytes:
    event = {
        "type": "BlockStored",
        "block_hashes": list(range(blocks)),
        "parent_block_hash": None,
        "token_ids": list(range(16 * blocks)),
        "block_size": 16,
    }
    return msgspec.msgpack.encode([1.5, [event], 0])


async def test_ranks_that_connect_to_their_sidecar_are_followed_each_on_its_port(
    nats_server: NatsServer, eventually: Eventually, namespace: str
) -> None:
    nats = NatsSettings(nats_url=nats_server.url, namespace=namespace)
    port = free_pair()
    server = RouterServer(
        RouterSettings(router_id="r", http=HttpSettings(http_port=0, drain_s=0.0), nats=nats)
    )
    async with engine_pages() as url:
        settings = WorkerSettings(
            engine_url=url,
            worker_id="w",
            kv_events_endpoint=f"tcp://127.0.0.1:{port}",
            kv_events_bind=True,
            load_interval_s=0.1,
            nats=nats,
        )
        ranks = [
            EventPublisher(
                ZmqPublisherOptions(endpoint=f"tcp://127.0.0.1:{port + rank}", connect=True)
            )
            for rank in range(2)
        ]

        def published() -> bool:
            for rank, publisher in enumerate(ranks):
                publisher.publish(store(rank + 2))
            held = [server.index.blocks(WorkerId(f"w-dp{rank}")) for rank in range(2)]
            return held == [2, 3]

        def loaded() -> bool:
            beat = server.router.heartbeats.get(WorkerId("w-dp1"))
            return beat is not None and beat.load.running_requests == 3 and beat.dp_rank == 1

        try:
            async with running(server.serve), running(Sidecar(settings).serve):
                await eventually(published, what="both ranks are followed", timeout_s=60)
                await eventually(loaded, what="a rank's own load is heard")
        finally:
            for publisher in ranks:
                publisher.close()


async def test_a_replay_port_among_the_events_ports_is_refused(nats_server: NatsServer) -> None:
    async with engine_pages() as url:
        settings = WorkerSettings(
            engine_url=url,
            worker_id="w",
            kv_events_endpoint="tcp://127.0.0.1:5557",
            kv_replay_endpoint="tcp://127.0.0.1:5558",
            nats=NatsSettings(nats_url=nats_server.url),
        )

        with pytest.raises(ConfigError, match="port 5558 is used by rank 0 replay and rank 1"):
            await Sidecar(settings).serve(Stop())
