"""Sockets behave a little differently on the two event loops: every test here runs on both."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop

from kvmesh.transport.http.server.server import HttpServer
from tests.integration.http.peers import Front, Upstream


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Name the event loops."""
    del config, item
    return {"uvloop": uvloop.new_event_loop, "asyncio": asyncio.new_event_loop}


Serve = Callable[..., "asyncio.Future[HttpServer]"]


@pytest.fixture
async def fronts() -> AsyncIterator[Front]:
    """Start servers; they are closed behind the test."""
    front = Front()
    yield front
    await front.close()


@pytest.fixture
async def upstream() -> AsyncIterator[Upstream]:
    """A scripted upstream."""
    made = Upstream()
    await made.start()
    yield made
    await made.close()
