"""Tests run on the event loop that kvmesh serves with; at night on asyncio's own, too."""

import asyncio
import os
from collections.abc import AsyncIterator, Callable, Mapping

import pytest
import uvloop

from kvmesh.transport.http.server.server import HttpServer
from tests.integration.http.peers import Front, Upstream
from tests.integration.http.proxied import Proxy

AT_NIGHT = os.environ.get("HYPOTHESIS_PROFILE") == "nightly"


def pytest_asyncio_loop_factories(
    config: pytest.Config, item: pytest.Item
) -> Mapping[str, Callable[[], asyncio.AbstractEventLoop]]:
    """Name the event loops."""
    del config, item
    served = {"uvloop": uvloop.new_event_loop}
    return served | {"asyncio": asyncio.new_event_loop} if AT_NIGHT else served


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


@pytest.fixture
async def proxy(fronts: Front, upstream: Upstream) -> AsyncIterator[Proxy]:
    """A proxy that forwards to the upstream, on a server that listens."""
    made = Proxy(upstream)
    await made.start(fronts)
    yield made
    await made.pool.close()
