"""The event feed over real sockets, with a view made for the purpose."""

import asyncio
import contextlib
import socket
from collections.abc import AsyncIterator, Callable

import httpx
import pytest

from kvmesh.app.front.viewers import Viewers
from kvmesh.app.views import live
from kvmesh.app.views.decision_view import DecisionRow
from kvmesh.app.views.live import LiveFeed
from kvmesh.app.views.overview import Overview
from kvmesh.core.admission.access import Viewer
from kvmesh.core.insight.record_search import RecordSearch
from kvmesh.transport.http.server.server import HttpServer
from tests.conftest import Eventually
from tests.integration.support.live_router import events

pytestmark = pytest.mark.integration


class WordyView:
    """A view whose rows are as long as the test wants them; each tick has a new one."""

    tick_s = 0.01

    def __init__(self) -> None:
        self.words = "x"
        self.rows = 1
        self.version = 0
        self.broken = False

    async def refresh(self, *, watched: bool) -> None:
        self.version += watched
        if self.broken:
            raise ValueError("a mistake in the view")

    def overview(self, since: int, decisions: int, after: int = 0) -> Overview:
        return Overview(
            role="router",
            name="r0",
            version="",
            started=since,
            now=0.0,
            ready=True,
            reason="",
            policy="",
            block_size=after,
            buckets=[],
            replicas=[],
            workers=[],
            counters={"decisions": decisions},
            seconds=[],
            decisions=[],
            cursor=self.version,
        )

    def changes(self, after: int, limit: int) -> tuple[list[DecisionRow], int]:
        rows = [self.row(number) for number in range(min(limit, self.rows))]
        return (rows if self.version > after else []), self.version

    async def latest(self, limit: int, search: RecordSearch) -> Callable[[], list[DecisionRow]]:
        del search
        return lambda: [self.row(number) for number in range(limit)]

    async def find(self, request_id: str, viewer: Viewer | None = None) -> bytes | None:
        del viewer
        return request_id.encode()

    def row(self, number: int) -> DecisionRow:
        return DecisionRow(
            key=str(number),
            request_id="r",
            router="r0",
            bucket="b",
            worker="w",
            policy="p",
            why=self.words,
            decided_at=0.0,
            state="open",
            status=0,
            attempts=1,
            failures=(),
            prompt_tokens=0,
            overlap_blocks=0,
            total_blocks=0,
            round_robin_blocks=None,
            score=0.0,
            considered=1,
            weighed=1,
            held_ms=None,
            ttft_ms=None,
            duration_ms=None,
            reported_tokens=None,
            cached_tokens=None,
            output_tokens=None,
        )


class Feeding:
    def __init__(self, feed: LiveFeed, view: WordyView, port: int) -> None:
        self.feed = feed
        self.view = view
        self.port = port


@pytest.fixture
async def feeding() -> AsyncIterator[Feeding]:
    view = WordyView()
    feed = LiveFeed(view, Viewers(""))
    server = HttpServer(feed.serve)
    await server.start("127.0.0.1", 0)
    running = asyncio.ensure_future(feed.run())
    yield Feeding(feed, view, server.port)
    running.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await running
    feed.close()
    await server.close()


async def test_a_client_that_reads_slowly_gets_nothing_more_and_then_everything_anew(
    feeding: Feeding, eventually: Eventually
) -> None:
    feeding.view.words = "x" * 50_000
    loop = asyncio.get_running_loop()
    sock = socket.socket()
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    sock.setblocking(False)
    await loop.sock_connect(sock, ("127.0.0.1", feeding.port))
    await loop.sock_sendall(sock, b"GET /v1/events HTTP/1.1\r\nhost: x\r\n\r\n")
    await eventually(
        lambda: any(one.paused for one in feeding.feed._clients.values()), what="a pause"
    )
    (client,) = feeding.feed._clients.values()
    held = client.exchange.channel.transport.get_write_buffer_size()
    seen = feeding.view.version

    await eventually(lambda: feeding.view.version > seen + 20, what="the feed goes on")
    assert client.exchange.channel.transport.get_write_buffer_size() <= held

    feeding.view.words = "short"
    received = bytearray()
    while received.count(b"event: hello") < 2:
        received += await asyncio.wait_for(loop.sock_recv(sock, 1 << 20), 60)
    sock.close()
    await eventually(lambda: not feeding.feed.clients(), what="the client is forgotten")


async def test_a_burst_is_cut_and_the_next_snapshot_brings_the_newest(feeding: Feeding) -> None:
    feeding.view.rows = 1000
    asked = []
    async with (
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{feeding.port}", timeout=60) as client,
        contextlib.aclosing(events(client)) as stream,
    ):
        async for name, data in stream:
            if name == "decisions":
                assert len(data) == live.CHANGES_A_TICK
            if name == "overview":
                asked.append(data["counters"]["decisions"])
                break

    assert asked == [live.HELLO_DECISIONS]


async def test_a_mistake_in_a_view_ends_nothing(feeding: Feeding, eventually: Eventually) -> None:
    feeding.view.broken = True
    async with (
        httpx.AsyncClient(base_url=f"http://127.0.0.1:{feeding.port}", timeout=60) as client,
        contextlib.aclosing(events(client)) as stream,
    ):
        waiting = asyncio.ensure_future(anext(stream))
        await eventually(lambda: feeding.view.version > 3, what="it goes on")
        feeding.view.broken = False

        name, _ = await waiting

    assert name == "hello"


async def test_only_so_many_dashboards_are_served(
    feeding: Feeding, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(live, "MAX_CLIENTS", 1)
    async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{feeding.port}", timeout=60) as client:
        async with contextlib.aclosing(events(client)) as stream:
            await anext(stream)
            second = await client.get("/v1/events")
            feeding.feed.close()
            rest = [name async for name, _ in stream]
        closed = await client.get("/v1/events")

    assert second.status_code == 503
    assert "dashboards are open" in second.json()["error"]["message"]
    assert set(rest) <= {"hello", "decisions", "overview"}
    assert closed.status_code == 503
