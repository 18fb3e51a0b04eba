"""Pages that are asked for without end take a share of a core, and the newest page is answered."""

import asyncio
import time

import httpx
import pytest

from tests.integration.support import live_router

pytestmark = [pytest.mark.integration, pytest.mark.nightly]

LONG_S = 6.0
"""Processor time that the asked pages would take if each was made anew."""


async def ask(url: str, path: str, times: int) -> tuple[float, set[int]]:
    """Return the processor time of all answers, this plain client's included, and the statuses."""
    reader, writer = await asyncio.open_connection("127.0.0.1", httpx.URL(url).port)
    statuses: set[int] = set()
    began = time.process_time()
    for number in range(times):
        target = path.format(number).encode()
        writer.write(b"GET %b HTTP/1.1\r\nHost: a\r\n\r\n" % target)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        statuses.add(int(head.split(b" ")[1]))
        await reader.readexactly(int(head.partition(b"content-length: ")[2].split(b"\r\n")[0]))
    took_s = time.process_time() - began
    writer.close()
    return took_s, statuses


@pytest.mark.parametrize(
    ("path", "statuses"),
    [("/metrics", {200}), ("/v1/overview", {200}), ("/v1/overview?limit=90&since={}", {200, 503})],
)
async def test_pages_asked_for_without_end_cost_little_more_than_their_burst(
    path: str, statuses: set[int]
) -> None:
    wanted = live_router.mocker_options(16, 1000)
    async with (
        live_router.engine(wanted),
        live_router.router([f"http://127.0.0.1:{wanted.port}"]) as url,
        httpx.AsyncClient(base_url=url, timeout=30) as client,
    ):
        for number in range(30):
            await live_router.chat(client, f"hello {number}")
        few_s, found = await ask(url, path, 20)
        assert found == {200}

        times = int(20 * LONG_S / few_s)
        all_s, found = await ask(url, path, times)

        assert found == statuses
        assert (await client.get("/health")).status_code == 200
        # A burst of a second, a tenth of what passes, and the answers themselves.
        assert all_s < 1.0 + 0.6 * LONG_S, (times, all_s)
