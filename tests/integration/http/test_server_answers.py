"""How answers leave the server: framing, slow and vanishing clients, an orderly end."""

import asyncio
import socket
from collections.abc import Callable

import pytest

from kvmesh.errors import TransportError
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.limits import HttpLimits
from kvmesh.transport.http.server.server import HttpServer
from kvmesh.transport.http.wire.problem import Problem
from tests.conftest import Eventually
from tests.integration.http.peers import Client, Front
from tests.unit.transport.http.malformed import get

pytestmark = pytest.mark.integration

GET = get(b"Host: a")


class Desk:
    """Keeps exchanges, and what happens to them."""

    def __init__(self) -> None:
        self.open: list[Exchange] = []
        self.gone: list[Exchange] = []
        self.paused = 0
        self.resumed = 0
        self._arrivals: asyncio.Queue[Exchange] = asyncio.Queue()

    async def arrival(self) -> Exchange:
        """Wait for a request that was not awaited yet."""
        return await asyncio.wait_for(self._arrivals.get(), 60)

    def take(self, exchange: Exchange) -> None:
        exchange.on_disconnect = lambda: self.gone.append(exchange)
        exchange.on_pause = self.pause
        exchange.on_resume = self.resume
        self.open.append(exchange)
        self._arrivals.put_nowait(exchange)

    def pause(self) -> None:
        self.paused += 1

    def resume(self) -> None:
        self.resumed += 1


@pytest.fixture
def desk() -> Desk:
    return Desk()


async def ask(fronts: Front, server: HttpServer, desk: Desk, data: bytes = GET) -> Client:
    """Send a request that waits at the desk."""
    client = await fronts.connect(server)
    client.send(data)
    await desk.arrival()
    return client


async def test_a_body_of_unknown_length_is_chunked(fronts: Front, desk: Desk) -> None:
    client = await ask(fronts, await fronts.serve(desk.take), desk)
    (exchange,) = desk.open

    exchange.start(200, [(b"content-type", b"text/plain")])
    head = await client.until(b"\r\n\r\n")
    exchange.write(b"")
    exchange.write(b"a" * 20)
    exchange.write(b"b")
    exchange.end()

    assert b"transfer-encoding: chunked\r\n" in head
    assert b"\r\ndate: " in head
    assert await client.until(b"0\r\n\r\n") == b"14\r\n%b\r\n1\r\nb\r\n0\r\n\r\n" % (b"a" * 20)
    assert (exchange.ended, exchange.scope.status, exchange.started) == (True, 200, True)


async def test_a_held_head_leaves_with_the_first_bytes_or_the_end(
    fronts: Front, desk: Desk
) -> None:
    server = await fronts.serve(desk.take)

    for pieces in ((b"x",), (b"",), ()):
        client = await ask(fronts, server, desk)
        exchange = desk.open.pop()
        exchange.pass_head(200, b"", [], None)
        for piece in pieces:
            exchange.write(piece)
        if pieces:
            assert (await client.until(b"\r\n\r\n")).startswith(b"HTTP/1.1 200")
            exchange.end()
        else:
            exchange.end()
            assert (await client.answer()).whole


async def test_a_body_of_known_length_is_not_chunked(fronts: Front, desk: Desk) -> None:
    client = await ask(fronts, await fronts.serve(desk.take), desk)
    (exchange,) = desk.open

    exchange.start(200, [], 4)
    exchange.write(b"ab")
    exchange.write(b"cd")
    exchange.end()

    answer = await client.answer()
    assert (answer.body, answer.headers[b"content-length"]) == (b"abcd", b"4")


async def test_a_body_short_of_its_length_is_cut_visibly(fronts: Front, desk: Desk) -> None:
    client = await ask(fronts, await fronts.serve(desk.take), desk)
    (exchange,) = desk.open

    exchange.start(200, [], 4)
    exchange.write(b"ab")
    exchange.end()

    answer = await client.answer()
    assert (answer.body, answer.whole) == (b"ab", False)


@pytest.mark.parametrize("length", [None, 100])
async def test_an_aborted_answer_is_cut_visibly_behind_what_was_written(
    length: int | None, fronts: Front, desk: Desk
) -> None:
    client = await ask(fronts, await fronts.serve(desk.take), desk)
    (exchange,) = desk.open

    exchange.pass_head(200, b"", [], length)
    exchange.write(b"ab")
    exchange.abort()
    exchange.abort()

    answer = await client.answer()
    assert (answer.body, answer.whole) == (b"ab", False)


async def test_an_abort_before_the_head_closes_without_a_word(fronts: Front, desk: Desk) -> None:
    client = await ask(fronts, await fronts.serve(desk.take), desk)

    desk.open[0].abort()

    assert await client.closed()


async def test_a_held_head_is_not_lost_by_an_abort(fronts: Front, desk: Desk) -> None:
    client = await ask(fronts, await fronts.serve(desk.take), desk)

    desk.open[0].pass_head(200, b"", [], 5)
    desk.open[0].abort()

    answer = await client.answer()
    assert (answer.status, answer.whole) == (200, False)


async def test_http_1_0_gets_its_stream_until_the_close_and_a_reset_for_a_cut(
    fronts: Front, desk: Desk
) -> None:
    server = await fronts.serve(desk.take)
    whole = await ask(fronts, server, desk, b"GET / HTTP/1.0\r\n\r\n")
    cut = await ask(fronts, server, desk, b"GET / HTTP/1.0\r\n\r\n")
    for exchange in desk.open:
        exchange.start(200, [])
        exchange.write(b"abc")

    desk.open[0].end()
    assert (await cut.until(b"abc")).startswith(b"HTTP/1.1 200")
    desk.open[1].abort()

    assert (await whole.rest()).endswith(b"\r\n\r\nabc")
    with pytest.raises(ConnectionError):
        await cut.read(1)


async def test_misuse_is_told_to_the_programmer(fronts: Front, desk: Desk) -> None:
    client = await ask(fronts, await fronts.serve(desk.take), desk)
    (exchange,) = desk.open

    with pytest.raises(RuntimeError, match="NONE"):
        exchange.write(b"x")
    with pytest.raises(RuntimeError, match="NONE"):
        exchange.end()
    with pytest.raises(ValueError, match="line break"):
        exchange.respond(200, b"", headers=[(b"a", b"b\r\nc: d")])
    exchange.start(200, [], 1)
    with pytest.raises(RuntimeError, match="second answer"):
        exchange.respond(200, b"")
    with pytest.raises(RuntimeError, match="longer"):
        exchange.write(b"xx")
    exchange.abort()
    with pytest.raises(RuntimeError, match="ENDED"):
        exchange.write(b"x")
    client.close()


@pytest.mark.parametrize("leave", [Client.close, Client.reset])
async def test_a_client_that_leaves_is_noticed_once(
    leave: Callable[[Client], None], fronts: Front, desk: Desk, eventually: Eventually
) -> None:
    client = await ask(fronts, await fronts.serve(desk.take), desk)
    (exchange,) = desk.open

    leave(client)
    await eventually(lambda: desk.gone)

    assert exchange.disconnected
    exchange.start(200, [])
    exchange.write(b"into the void")
    exchange.end()
    exchange.respond(200, b"")
    exchange.fail(Problem(500, "late"))
    exchange.abort()
    assert desk.gone == [exchange]


async def test_a_client_that_leaves_behind_its_answer_is_not_gone(
    fronts: Front, desk: Desk, eventually: Eventually
) -> None:
    server = await fronts.serve(desk.take)
    client = await ask(fronts, server, desk)
    desk.open[0].respond(200, b"done")

    client.close()
    await eventually(lambda: server.statistics().open_connections == 0)

    assert desk.gone == []


def wait_for_head(exchange: Exchange) -> None:
    del exchange


def hold_a_head(exchange: Exchange) -> None:
    exchange.pass_head(200, b"", [], None)


def begin_a_stream(exchange: Exchange) -> None:
    exchange.start(200, [])


def stand_between_chunks(exchange: Exchange) -> None:
    exchange.start(200, [])
    exchange.write(b"first ")


PHASES = [wait_for_head, hold_a_head, begin_a_stream, stand_between_chunks]
OLD = b"GET / HTTP/1.0\r\nHost: a\r\n\r\n"


@pytest.mark.parametrize("request_", [GET, OLD], ids=["1.1", "1.0"])
async def test_a_client_that_ends_its_requests_gets_its_whole_answer(
    request_: bytes, fronts: Front, desk: Desk
) -> None:
    server = await fronts.serve(desk.take)
    client = await ask(fronts, server, desk, request_)
    client.writer.write_eof()
    await client.until(b"HTTP/1.1 ")

    desk.open[0].respond(200, b"still here")

    head = await client.until(b"\r\n\r\n")
    assert head.startswith(b"200 OK\r\n")
    assert await client.rest() == b"still here"
    assert desk.gone == []


@pytest.mark.parametrize("phase", PHASES)
async def test_a_client_that_ends_its_requests_gets_its_whole_stream(
    phase: Callable[[Exchange], None], fronts: Front, desk: Desk
) -> None:
    server = await fronts.serve(desk.take)
    client = await ask(fronts, server, desk)
    (exchange,) = desk.open
    phase(exchange)
    client.writer.write_eof()
    await asyncio.sleep(0.05)

    if not exchange.started:
        exchange.start(200, [])
    exchange.write(b"and ")
    exchange.end_framed(b"4\r\nlast\r\n0\r\n\r\n")

    answer = await client.answer()
    assert answer.whole
    assert answer.body.removeprefix(b"first ") == b"and last"
    assert await client.closed()
    assert desk.gone == []


# A body of HTTP/1.0, until the end of the connection, has nothing that may come early.
@pytest.mark.parametrize(
    ("phase", "request_"),
    [*((each, GET) for each in PHASES), *((each, OLD) for each in PHASES[:2])],
)
async def test_a_client_that_is_gone_is_noticed_soon_though_nothing_is_written_for_it(
    phase: Callable[[Exchange], None], request_: bytes, fronts: Front, desk: Desk
) -> None:
    client = await ask(fronts, await fronts.serve(desk.take), desk, request_)
    (exchange,) = desk.open
    phase(exchange)
    loop = asyncio.get_running_loop()
    noticed: asyncio.Future[float] = loop.create_future()
    exchange.on_disconnect = lambda: noticed.set_result(loop.time())

    left_s = loop.time()
    client.close()

    assert await asyncio.wait_for(noticed, 60) - left_s < 0.1


async def test_a_slow_client_pauses_its_answer_and_bounds_the_memory(
    fronts: Front, desk: Desk, eventually: Eventually
) -> None:
    server = await fronts.serve(desk.take, limits=HttpLimits(write_buffer_bytes=32 * 1024))
    client = await fronts.connect(server, receive_buffer=16 * 1024)
    client.send(GET)
    await eventually(lambda: desk.open)
    (exchange,) = desk.open
    exchange.start(200, [], 20_000_000)
    sent = 0
    while desk.paused == desk.resumed and sent < 20_000_000:
        exchange.write(b"x" * 10_000)
        sent += 10_000
        await asyncio.sleep(0)
    assert sent < 15_000_000

    await client.until(b"\r\n\r\n")
    reading = asyncio.create_task(client.read(20_000_000))
    while sent < 20_000_000:
        await eventually(lambda: desk.paused == desk.resumed)
        exchange.write(b"x" * 10_000)
        sent += 10_000
    exchange.end()

    assert await reading == b"x" * 20_000_000
    assert desk.paused == desk.resumed


async def test_a_client_that_takes_nothing_is_cut_off(
    fronts: Front, desk: Desk, eventually: Eventually
) -> None:
    server = await fronts.serve(desk.take, limits=HttpLimits(write_stall_s=0.3))
    client = await fronts.connect(server, receive_buffer=16 * 1024)
    client.send(GET)
    await eventually(lambda: desk.open)
    desk.open[0].start(200, [], 50_000_000)
    desk.open[0].write(b"x" * 50_000_000)

    await eventually(lambda: desk.gone)

    assert desk.open[0].disconnected


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_the_next_request_waits_until_a_slow_client_took_the_last_answer(
    fronts: Front, desk: Desk, eventually: Eventually
) -> None:
    server = await fronts.serve(desk.take)
    client = await fronts.connect(server, receive_buffer=16 * 1024)
    client.send(GET + GET)
    await eventually(lambda: desk.open)
    desk.open.pop().respond(200, b"x" * 20_000_000)
    await asyncio.sleep(0.05)

    assert desk.open == []
    assert len((await client.answer()).body) == 20_000_000
    await eventually(lambda: desk.open)
    desk.open.pop().respond(200, b"next")
    assert (await client.answer()).body == b"next"


async def test_a_client_that_never_takes_a_short_last_answer_is_cut_off(
    fronts: Front, desk: Desk, eventually: Eventually
) -> None:
    limits = HttpLimits(write_stall_s=0.3, idle_timeout_s=0.3, write_buffer_bytes=100_000_000)
    server = await fronts.serve(desk.take, limits=limits)
    clients = [await fronts.connect(server, receive_buffer=16 * 1024) for _ in range(2)]
    clients[0].send(GET)
    clients[1].send(get(b"Host: a", b"Connection: close"))
    await eventually(lambda: len(desk.open) == 2)

    for exchange in desk.open:
        exchange.respond(200, b"x" * 50_000_000)

    await eventually(lambda: server.statistics().open_connections == 0)


async def test_a_drain_finishes_what_runs_and_takes_nothing_new(fronts: Front, desk: Desk) -> None:
    server = await fronts.serve(desk.take)
    idle = await fronts.connect(server)
    idle.send(GET)
    await desk.arrival()
    desk.open.pop().respond(200, b"")
    await idle.answer()
    busy = await ask(fronts, server, desk)
    streaming = await ask(fronts, server, desk)
    desk.open[1].start(200, [])

    drained = asyncio.create_task(server.drain(60))

    assert await idle.closed()
    with pytest.raises(ConnectionRefusedError):
        await Client.connect(server.port)
    desk.open[0].respond(200, b"bye")
    answer = await busy.answer()
    assert (answer.body, answer.headers[b"connection"]) == (b"bye", b"close")
    assert await busy.closed()
    assert not drained.done()
    desk.open[1].write(b"last")
    desk.open[1].end()
    assert (await streaming.answer()).body == b"last"
    await asyncio.wait_for(drained, 60)
    assert server.statistics().open_connections == 0


async def test_requests_under_way_as_a_drain_begins_are_answered(
    fronts: Front, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvmesh.transport.http.server.server.LAST_REQUESTS_S", 2.0)
    server = await fronts.serve(desk.take)
    idle = await fronts.connect(server)
    idle.send(GET)
    await desk.arrival()
    desk.open.pop().respond(200, b"")
    await idle.answer()

    # The kernel has taken this one, the server has not.
    untaken = socket.create_connection(("127.0.0.1", server.port))
    drained = asyncio.create_task(server.drain(60))
    await asyncio.sleep(0)
    late = Client(*await asyncio.open_connection(sock=untaken))

    for client in (idle, late):
        client.send(GET)
        await desk.arrival()
        desk.open.pop().respond(200, b"served")
        answer = await client.answer()
        assert (answer.body, answer.headers[b"connection"]) == (b"served", b"close")
        assert await client.closed()
    late.close()
    await asyncio.wait_for(drained, 60)


async def test_a_request_that_came_unread_is_answered_as_idle_connections_close(
    fronts: Front, desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvmesh.transport.http.server.server.LAST_REQUESTS_S", 0.0)
    server = await fronts.serve(desk.take)
    idle, silent = [await fronts.connect(server) for _ in range(2)]
    for client in (idle, silent):
        client.send(GET)
        await desk.arrival()
        desk.open.pop().respond(200, b"")
        await client.answer()
    listener = server._listener
    assert listener is not None

    idle.send(GET)
    server._shut(listener, at_once=False)

    await desk.arrival()
    desk.open.pop().respond(200, b"served")
    assert (await idle.answer()).body == b"served"
    assert await idle.closed()
    assert await silent.closed()


async def test_a_drain_cuts_what_outlives_its_grace(fronts: Front, desk: Desk) -> None:
    server = await fronts.serve(desk.take)
    client = await ask(fronts, server, desk)
    desk.open[0].start(200, [])
    desk.open[0].write(b"never")

    await asyncio.wait_for(server.drain(0.1), 60)

    answer = await client.answer()
    assert (answer.body, answer.whole) == (b"never", False)
    assert desk.gone == desk.open


async def test_a_taken_port_is_named_and_closing_twice_is_fine(desk: Desk) -> None:
    first = HttpServer(desk.take)
    await first.start("127.0.0.1", 0)

    with pytest.raises(TransportError, match=str(first.port)):
        await HttpServer(desk.take).start("127.0.0.1", first.port)

    await first.close()
    await first.close()


async def test_a_server_that_never_started_closes_and_drains() -> None:
    server = HttpServer(lambda _: None)

    await server.drain(1)
    await server.close()

    assert server.statistics().requests == 0


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_a_thousand_streams_at_once_get_every_chunk(
    fronts: Front, desk: Desk, eventually: Eventually
) -> None:
    server = await fronts.serve(desk.take)
    clients = [await fronts.connect(server) for _ in range(1000)]
    for client in clients:
        client.send(GET)
    await eventually(lambda: len(desk.open) == 1000)

    for exchange in desk.open:
        exchange.start(200, [(b"content-type", b"text/event-stream")])
    for number in range(10):
        for exchange in desk.open:
            exchange.write(b"data: %d\n\n" % number)
        await asyncio.sleep(0)
    for exchange in desk.open:
        exchange.end()

    expected = b"".join(b"data: %d\n\n" % number for number in range(10))
    answers = await asyncio.gather(*(client.answer() for client in clients))
    assert all(answer.body == expected and answer.whole for answer in answers)
