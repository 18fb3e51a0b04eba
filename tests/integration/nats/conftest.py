"""Real servers and the event loop of production: every test here runs on uvloop."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import nats
import pytest
import uvloop

from kvmesh.app.nats.server import NatsServer
from tests.nats_container import SERVERS, InContainer, Served, url_in


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Use uvloop; the contract suite runs the same code on asyncio's own loop."""
    del config, item
    return {"uvloop": uvloop.new_event_loop}


@pytest.fixture
async def own_server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    server = NatsServer(tmp_path / "store", log_path=tmp_path / "nats.log")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture(params=SERVERS)
def container_url(request: pytest.FixtureRequest) -> str:
    """Where the container is, "" where a process shall serve."""
    if request.param == "process":
        return ""
    return url_in(request.getfixturevalue("nats_container"))


@pytest.fixture
async def fresh_server(container_url: str, tmp_path: Path) -> AsyncIterator[Served]:
    """A server without streams, for tests that name theirs as production does."""
    if container_url:
        await delete_streams(container_url)
        yield InContainer(container_url)
        return
    server = NatsServer(tmp_path / "store", log_path=tmp_path / "nats.log")
    await server.start()
    yield server
    await server.stop()


async def delete_streams(url: str) -> None:
    client = await nats.connect(url)
    jetstream = client.jetstream()
    for info in await jetstream.streams_info():
        await jetstream.delete_stream(info.config.name or "")
    await client.close()


@pytest.fixture
async def stack() -> AsyncIterator[contextlib.AsyncExitStack]:
    async with contextlib.AsyncExitStack() as stack:
        yield stack
