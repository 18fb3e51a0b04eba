"""WebSockets through routers and meta-routers, to engines that echo, refuse, or die."""

import asyncio
import contextlib
from base64 import b64encode
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from hashlib import sha1
from typing import Any

import httpx
import pytest

from kvmesh.app.meta.command import MetaServer
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.requests import StreamSettings
from kvmesh.settings.roles import MetaRouterSettings
from kvmesh.transport.http.forward.plan import WAIT, ForwardOptions, Outcome, Target, Wait
from kvmesh.transport.http.forward.websocket import WebSocketForward
from kvmesh.transport.http.server.server import Exchange, HttpServer
from kvmesh.transport.http.upstream.client import UpstreamFailure, UpstreamOptions, UpstreamPool
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.websocket import Frames, close_frame
from tests.integration.support.live_router import MODELS, free_port, router, serving

pytestmark = pytest.mark.integration

KEY = b"dGhlIHNhbXBsZSBub25jZQ=="
HANDSHAKE = (
    b"GET /v1/realtime?model=mock HTTP/1.1\r\nhost: x\r\nconnection: keep-alive, Upgrade\r\n"
    b"upgrade: websocket\r\nsec-websocket-version: 13\r\nsec-websocket-key: " + KEY + b"\r\n"
)
MAGIC = b"258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
Talk = Callable[[asyncio.StreamReader, asyncio.StreamWriter], Awaitable[None]]


def frame(payload: bytes, opcode: int = 2, *, masked: bool = False) -> bytes:
    mask = 0x80 if masked else 0
    size = len(payload)
    if size < 126:
        head = bytes((0x80 | opcode, mask | size))
    elif size < 1 << 16:
        head = bytes((0x80 | opcode, mask | 126)) + size.to_bytes(2)
    else:
        head = bytes((0x80 | opcode, mask | 127)) + size.to_bytes(8)
    return head + (bytes(4) if masked else b"") + payload


async def read_frame(reader: asyncio.StreamReader) -> tuple[int, bytes]:
    head = await reader.readexactly(2)
    size = head[1] & 0x7F
    if size > 125:
        size = int.from_bytes(await reader.readexactly(2 if size == 126 else 8))
    if head[1] & 0x80:
        await reader.readexactly(4)
    return head[0] & 0x0F, await reader.readexactly(size)


async def echo(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    """Send each frame back; behind a close frame close."""
    while True:
        opcode, payload = await read_frame(reader)
        writer.write(frame(payload, opcode))
        await writer.drain()
        if opcode == 8:
            return


class Engine:
    """An engine that answers its probes, and a WebSocket as it is told."""

    def __init__(self, talk: Talk = echo, answer: bytes = b"", early: bytes = b"") -> None:
        self.talk, self.answer, self.early = talk, answer, early
        self.heads: list[bytes] = []
        self.open: list[asyncio.StreamWriter] = []
        self.ended = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = await reader.readuntil(b"\r\n\r\n")
                if b"upgrade: websocket" not in head.lower():
                    found = MODELS if b"/v1/models" in head else b""
                    status = b"200 OK" if b"/v1/models" in head or b"/health" in head else b"404 X"
                    writer.write(b"HTTP/1.1 %b\r\ncontent-length: %d\r\n\r\n%b" % (
                        status, len(found), found))  # fmt: skip
                    continue
                self.heads.append(head)
                if self.answer:
                    writer.write(self.answer)
                    break
                accept = b64encode(sha1(KEY + MAGIC, usedforsecurity=False).digest())
                writer.write(
                    b"HTTP/1.1 101 Switching Protocols\r\nUpgrade: websocket\r\n"
                    b"Connection: Upgrade\r\nset-cookie: a=b\r\n"
                    b"Sec-WebSocket-Accept: " + accept + b"\r\n\r\n" + self.early
                )
                self.open.append(writer)
                try:
                    await self.talk(reader, writer)
                finally:
                    self.ended += 1
                break
        writer.close()


@contextlib.asynccontextmanager
async def engine(**wanted: Any) -> AsyncIterator[tuple[Engine, str]]:
    one = Engine(**wanted)
    server = await asyncio.start_server(one.serve, "127.0.0.1", 0)
    try:
        yield one, f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    finally:
        server.close()


class Client:
    """A WebSocket by hand."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer
        self.head = b""

    async def ask(self, head: bytes = HANDSHAKE + b"\r\n", behind: bytes = b"") -> bytes:
        self.writer.write(head + behind)
        async with asyncio.timeout(10):
            self.head = await self.reader.readuntil(b"\r\n\r\n")
        return self.head

    async def read(self) -> tuple[int, bytes]:
        async with asyncio.timeout(10):
            return await read_frame(self.reader)

    async def read_rest(self) -> bytes:
        async with asyncio.timeout(10):
            return await self.reader.read()


@contextlib.asynccontextmanager
async def client(url: str) -> AsyncIterator[Client]:
    port = int(url.rpartition(":")[2])
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    try:
        yield Client(reader, writer)
    finally:
        writer.close()


async def until(check: Callable[[], bool]) -> None:
    async with asyncio.timeout(10):
        while not check():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


async def test_bytes_go_both_ways_and_the_socket_is_booked_while_it_is_open() -> None:
    async with engine(early=frame(b"hello")) as (one, url), router([url]) as front:
        async with client(front) as asked:
            head = await asked.ask(HANDSHAKE + b"authorization: Bearer k\r\n\r\n")
            assert await asked.read() == (2, b"hello")
            for size in (1, 126, 70_000):
                asked.writer.write(frame(b"x" * size, masked=True))
                assert await asked.read() == (2, b"x" * size)
            async with httpx.AsyncClient(base_url=front) as http:
                (worker,) = (await http.get("/v1/status")).json()["workers"]
                metrics = (await http.get("/metrics")).text
            asked.writer.write(frame(b"", 8, masked=True))
            assert await asked.read() == (8, b"")
            assert await asked.read_rest() == b""
        async with httpx.AsyncClient(base_url=front) as http:
            after = (await http.get("/v1/status")).json()
            ends = (await http.get("/metrics")).text

    assert head.startswith(b"HTTP/1.1 101 ")
    assert b"sec-websocket-accept: s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in head
    assert b"x-kvmesh-worker: w0" in head
    assert b"set-cookie" not in head
    assert b"GET /v1/realtime?model=mock HTTP/1.1\r\n" in one.heads[0]
    assert b"authorization: Bearer k" in one.heads[0]
    assert worker["active_requests"] == 1
    assert "\nkvmesh_open_websockets 1.0\n" in metrics
    assert after["workers"][0]["active_requests"] == 0
    assert 'outcome="finished",status="1xx"} 1.0\n' in ends


async def test_a_meta_router_passes_a_socket_on_to_a_replica() -> None:
    async with engine() as (_, url), router([url]) as front:
        settings = MetaRouterSettings(
            replica=(f"default={front}",), http=HttpSettings(http_port=free_port(), drain_s=1.0)
        )
        meta = f"http://127.0.0.1:{settings.http.http_port}"
        async with serving(MetaServer(settings).serve, meta), client(meta) as asked:
            head = await asked.ask()
            asked.writer.write(frame(b"x", masked=True))

            assert b"x-kvmesh-worker: w0" in head
            assert await asked.read() == (2, b"x")
            async with client(meta) as plain:
                assert b" 426 " in await plain.ask(b"GET /v1/realtime HTTP/1.1\r\nhost: x\r\n\r\n")


async def test_an_engine_that_dies_closes_the_socket_with_a_close_frame() -> None:
    async with engine() as (one, url), router([url]) as front, client(front) as asked:
        await asked.ask()
        await until(lambda: bool(one.open))
        one.open[0].transport.abort()

        opcode, payload = await asked.read()
        assert (opcode, int.from_bytes(payload[:2])) == (8, 1014)
        assert await asked.read_rest() == b""


async def test_an_engine_that_dies_within_a_frame_has_no_close_frame_put_into_it() -> None:
    async def half(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(frame(b"x" * 100)[:50])
        await writer.drain()
        await reader.readexactly(1)

    async with engine(talk=half) as (_, url), router([url]) as front, client(front) as asked:
        await asked.ask()
        assert await asked.reader.readexactly(50) == frame(b"x" * 100)[:50]
        asked.writer.write(b"x")

        with pytest.raises(ConnectionResetError):
            await asked.read_rest()


async def test_a_client_that_is_gone_has_its_engine_s_connection_closed() -> None:
    async with engine() as (one, url), router([url]) as front:
        async with client(front) as asked:
            await asked.ask()
            await until(lambda: bool(one.open))
        await until(lambda: one.ended == 1)


async def test_a_router_that_drains_closes_at_the_end_of_a_frame() -> None:
    go_on = asyncio.Event()

    async def slow(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        whole = frame(b"x" * 200)
        writer.write(whole[:50])
        await go_on.wait()
        writer.write(whole[50:] + frame(b"next"))
        await reader.read()

    async with contextlib.AsyncExitStack() as stack:
        _, url = await stack.enter_async_context(engine(talk=slow))
        _, other = await stack.enter_async_context(engine())
        asked: list[Client] = []
        async with router([url, other], drain_s=0.3) as front:
            for _ in range(2):
                one = await stack.enter_async_context(client(front))
                await one.ask()
                asked.append(one)
            asyncio.get_running_loop().call_later(0.8, go_on.set)
        found = [await one.read_rest() for one in asked]

    close = close_frame(1012, "the server restarts")
    assert sorted(found, key=len) == [close, frame(b"x" * 200) + close]


@pytest.mark.parametrize(
    ("lines", "status"),
    [
        (b"GET /v1/realtime HTTP/1.1\r\nhost: x\r\n", 426),
        (HANDSHAKE.replace(b"version: 13", b"version: 8"), 426),
        (HANDSHAKE.replace(b"GET", b"POST"), 400),
        (HANDSHAKE.replace(b"HTTP/1.1", b"HTTP/1.0"), 400),
        (HANDSHAKE.replace(b"keep-alive, Upgrade", b"keep-alive"), 400),
        (HANDSHAKE.replace(KEY, b""), 400),
        (HANDSHAKE + b"origin: https://elsewhere.example\r\n", 403),
        (HANDSHAKE.replace(b"model=mock", b"model=" + b"x" * 600), 400),
        (HANDSHAKE.replace(b"model=mock", b"model=other"), 404),
        (HANDSHAKE + b"connection: Upgrade\r\n", 101),
    ],
)
async def test_what_is_no_handshake_is_told_so_and_reaches_no_engine(
    lines: bytes, status: int
) -> None:
    async with engine() as (one, url), router([url]) as front, client(front) as asked:
        head = await asked.ask(lines + b"\r\n")

    assert head.startswith(b"HTTP/1.1 %d " % status)
    assert len(one.heads) == (status == 101)


async def test_bytes_behind_a_handshake_are_refused_before_its_answer() -> None:
    async with engine() as (one, url), router([url]) as front, client(front) as asked:
        head = await asked.ask(behind=frame(b"x", masked=True))

    assert head.startswith(b"HTTP/1.1 400 ")
    assert not one.heads


async def test_what_an_engine_says_instead_is_passed_on_and_another_asked_for_a_503() -> None:
    no = b"HTTP/1.1 403 No\r\ncontent-type: text/plain\r\n\r\nnot you"
    full = b"HTTP/1.1 503 Full\r\ncontent-length: 0\r\n\r\n"
    async with engine(answer=no) as (_, url), router([url]) as front, client(front) as asked:
        head = await asked.ask()
        body = await asked.read_rest()
    async with (
        engine(answer=full) as (_, url),
        engine() as (_, other),
        router([url, other]) as front,
    ):
        heads = []
        for _ in range(3):
            async with client(front) as asked:
                heads.append(await asked.ask())

    assert head.startswith(b"HTTP/1.1 403 ")
    assert body == b"not you"
    assert all(b" 101 " in one and b"x-kvmesh-worker: w1" in one for one in heads)


@pytest.mark.parametrize(
    "answer",
    [
        b"nonsense\r\n\r\n",
        b"x" * 20_000,
        b"HTTP/1.1 101 X\r\nupgrade: other\r\n\r\n",
        b"HTTP/1.1 101 X\r\nupgrade: websocket\r\nsec-websocket-x: a\nset-cookie: b\r\n\r\n",
        b"HTTP/1.1 200",
    ],
)
async def test_an_engine_that_answers_no_http_fails_the_handshake(answer: bytes) -> None:
    async with engine(answer=answer) as (_, url), router([url]) as front, client(front) as asked:
        assert (await asked.ask()).startswith(b"HTTP/1.1 502 ")


async def test_a_socket_that_is_open_for_too_long_is_closed() -> None:
    stream = StreamSettings(request_timeout_s=0.4)
    async with engine() as (_, url), router([url], stream=stream) as front, client(front) as asked:
        await asked.ask()

        opcode, payload = await asked.read()
        assert (opcode, int.from_bytes(payload[:2])) == (8, 1001)


async def test_who_takes_nothing_holds_the_other_side_back() -> None:
    size = 1 << 20
    sent = 0

    async def flood(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        nonlocal sent
        for _ in range(64):
            writer.write(frame(b"x" * size))
            await writer.drain()
            sent += size
        await reader.read()

    async with engine(talk=flood) as (_, url), router([url]) as front, client(front) as asked:
        await asked.ask()
        await asyncio.sleep(1.0)
        held = sent
        for _ in range(64):
            assert len((await asked.read())[1]) == size

    assert held < 40 * size


async def test_an_engine_that_reads_nothing_holds_the_client_back() -> None:
    go_on = asyncio.Event()
    size, count = 1 << 20, 48

    async def late(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await go_on.wait()
        for _ in range(count):
            await read_frame(reader)
        writer.write(frame(b"all"))
        await reader.read()

    async with engine(talk=late) as (_, url), router([url]) as front, client(front) as asked:
        await asked.ask()
        for _ in range(count):
            asked.writer.write(frame(bytes(size), masked=True))
        await asyncio.sleep(1.0)
        held = asked.writer.transport.get_write_buffer_size()
        go_on.set()

        assert await asked.read() == (2, b"all")
    assert held > size


async def test_an_engine_that_cannot_be_reached_or_hangs_fails_the_handshake() -> None:
    async def nothing(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read()
        writer.close()

    silent = await asyncio.start_server(nothing, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{silent.sockets[0].getsockname()[1]}"
    pool = UpstreamPool(options=UpstreamOptions(idle_timeout_s=0.3))
    barred = UpstreamPool(options=UpstreamOptions(why_not_peer=lambda *_: "not there"))
    plan = Plan(url)
    heads = []
    for used, place in ((pool, url), (pool, f"http://127.0.0.1:{free_port()}"), (barred, url)):
        plan.url = place
        server = HttpServer(partial(begin, pool=used, plan=plan, made=[]))
        await server.start("127.0.0.1", 0)
        async with client(f"http://127.0.0.1:{server.port}") as asked:
            heads.append(await asked.ask())
        await server.close()
    await pool.close()
    await barred.close()
    silent.close()

    assert [one.split()[1] for one in heads] == [b"504", b"502", b"502"]
    assert {one.kind for one in plan.failures} == {"timeout", "refused"}
    assert [one.kind for one in plan.ends] == ["failed"] * 3


async def test_a_handshake_is_given_up_by_who_watches_or_drains() -> None:
    plan = Plan("http://127.0.0.1:1")
    pool = UpstreamPool()
    made: list[WebSocketForward] = []
    heads: list[bytes] = []
    for end in ("wait", "leave", "early"):
        plan.waits = True
        server = HttpServer(partial(begin, pool=pool, plan=plan, made=made))
        await server.start("127.0.0.1", 0)
        async with client(f"http://127.0.0.1:{server.port}") as asked:
            asked.writer.write(HANDSHAKE + b"\r\n")
            await until(lambda: len(made) > len(heads))
            one = made[-1]
            one.fail_attempt(LEFT)
            one.hand_over(LEFT)
            one.usage()
            assert one.patience_s() > 1e9
            if end == "wait":
                plan.waits = False
                one.proceed()
            elif end == "leave":
                one.leave()
            else:
                asked.writer.write(bytes(20_000))
            async with asyncio.timeout(10):
                heads.append(await asked.reader.readuntil(b"\r\n\r\n"))
            one.proceed()
        await server.close()
    await pool.close()

    assert [one.split()[1] for one in heads] == [b"502", b"503", b"400"]


def begin(
    exchange: Exchange, pool: UpstreamPool, plan: "Plan", made: list[WebSocketForward]
) -> None:
    made.append(WebSocketForward(exchange, pool, ForwardOptions(max_retries=0)))
    made[-1].begin(plan)


LEFT = UpstreamFailure("mid_response", "left", "it drains", "w0")


class Plan:
    """One target, or a wait."""

    def __init__(self, url: str) -> None:
        self.url, self.waits = url, False
        self.failures: list[UpstreamFailure] = []
        self.ends: list[Outcome] = []

    def next_target(self) -> Target | Wait:
        return WAIT if self.waits else Target(self.url)

    def on_attempt_failed(self, failure: UpstreamFailure) -> bool:
        self.failures.append(failure)
        return True

    def on_head(self, status: int) -> Headers:
        raise AssertionError(status)

    def on_tokens(self, tokens: int) -> None:
        raise AssertionError(tokens)

    def on_finish(self, outcome: Outcome) -> None:
        self.ends.append(outcome)


def test_frames_are_followed_byte_by_byte() -> None:
    data = b"".join(frame(b"x" * size) for size in (0, 5, 126, 70_000)) + frame(b"", 8, masked=True)
    frames, ends = Frames(), 0
    for at in range(len(data)):
        frames.feed(data[at : at + 1])
        ends += frames.between

    assert ends == 5
    assert frames.closed


async def test_a_websocket_library_sees_nothing_of_the_router_between() -> None:
    websockets = pytest.importorskip("websockets.asyncio.client")
    servers = pytest.importorskip("websockets.asyncio.server")

    async def talk(socket: Any) -> None:
        async for message in socket:
            await socket.send(message)

    async def probe(connection: Any, request: Any) -> Any:
        if "upgrade" in request.headers:
            return None
        found = MODELS.decode() if request.path == "/v1/models" else ""
        return connection.respond(200 if found or request.path == "/health" else 404, found)

    async with servers.serve(talk, "127.0.0.1", 0, process_request=probe) as server:
        port = server.sockets[0].getsockname()[1]
        async with router([f"http://127.0.0.1:{port}"]) as front:
            uri = front.replace("http", "ws") + "/v1/realtime?model=mock"
            async with websockets.connect(uri, subprotocols=["realtime"]) as socket:
                for message in ("text", b"bytes", "x" * 300_000):
                    await socket.send(message)
                    assert await socket.recv() == message
                await (await socket.ping())
                extensions = socket.protocol.extensions

    assert extensions
    assert socket.close_code == 1000
