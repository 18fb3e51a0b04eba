"""Real servers and the event loop of production: every test here runs on uvloop."""

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path

import pytest
import uvloop

from kvmesh.app.ops.nats_server import NatsServer


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
