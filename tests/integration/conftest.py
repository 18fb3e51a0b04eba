import contextlib
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from kvmesh.app.nats_server import NatsServer


@pytest.fixture
async def own_server(tmp_path: Path) -> AsyncIterator[NatsServer]:
    server = NatsServer(tmp_path / "store", log_path=tmp_path / "nats.log")
    await server.start()
    yield server
    await server.stop()


@pytest.fixture
async def stack() -> AsyncIterator[contextlib.AsyncExitStack]:
    async with contextlib.AsyncExitStack() as stack:
        yield stack
