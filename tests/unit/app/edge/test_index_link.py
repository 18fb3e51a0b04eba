"""An edge's link to an index process that is there and does not stay."""

import asyncio
from itertools import pairwise
from pathlib import Path

import pytest

from kvmesh.app.edge.index_link import IndexLink
from kvmesh.app.edge.messages import EdgeReport
from kvmesh.transport.http.server.server import HttpStatistics

pytestmark = pytest.mark.integration

QUIET = EdgeReport(HttpStatistics(0, 0, 0, 0, 0, 0, 0), 0)


async def test_a_link_that_breaks_at_once_is_opened_again_ever_later(tmp_path: Path) -> None:
    opened: list[float] = []
    clock = asyncio.get_running_loop().time

    def slam(_: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        opened.append(clock())
        writer.transport.abort()

    server = await asyncio.start_unix_server(slam, tmp_path / "index.sock")
    link = IndexLink(tmp_path / "index.sock", 0)
    running = asyncio.create_task(link.run(lambda: QUIET))
    async with server, asyncio.timeout(30):
        while len(opened) < 4:  # noqa: ASYNC110  another task's
            await asyncio.sleep(0.01)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        await link.close()

    pauses = [after - before for before, after in pairwise(opened)]
    assert pauses[0] >= 0.05
    assert pauses[2] >= 0.2
