"""Either side of a stream vanishes, at every byte; slow readers; a thousand streams."""

import asyncio
import contextlib
import gc
import signal
import socket
import sys
from collections.abc import Callable

import openai
import pytest

from kvmesh.core.engines.event_stream import MAX_HELD_BYTES, EventStream
from kvmesh.transport.http.forward.plan import ForwardOptions, Target
from kvmesh.transport.http.server.connection import Connection
from kvmesh.transport.http.server.limits import HttpLimits
from kvmesh.transport.http.server.listener import Listener
from kvmesh.transport.http.upstream.client import UpstreamOptions
from kvmesh.transport.http.upstream.response_head import MAX_KEPT_BYTES
from kvmesh.transport.http.wire.deadlines import DeadlineWheel
from tests.conftest import Eventually
from tests.integration.http.peers import (
    Client,
    Die,
    Front,
    Turn,
    Upstream,
    answer,
    chunked,
    living,
    sends,
)
from tests.integration.http.proxied import Proxy
from tests.integration.support.live_router import ended
from tests.property.bounds.test_answers import one_by_one
from tests.property.bounds.work import assert_linear
from tests.unit.transport.http.malformed import post

pytestmark = pytest.mark.integration

POST = post(b"Content-Length: 4", body=b"body")
EVENTS = [b'data: {"n":%d}\n\n' % number for number in range(3)]
STREAM = chunked(*EVENTS)
JSON = answer(b'{"some":"json"}', b"Content-Type: application/json")


def events_in(body: bytes) -> list[bytes]:
    """Return the events of a stream, which must be whole."""
    assert body == b"" or body.endswith(b"\n\n")
    return [event + b"\n\n" for event in body.split(b"\n\n")[:-1]]


@pytest.mark.parametrize("die", [Turn.close, Turn.reset])
async def test_a_worker_may_die_at_any_byte_of_its_stream(
    die: Die, proxy: Proxy, upstream: Upstream, fronts: Front
) -> None:
    head = STREAM.index(b"\r\n\r\n") + 4
    first_event = STREAM.index(EVENTS[0]) + len(EVENTS[0]) - head

    async def script(turn: Turn) -> None:
        turn.send(STREAM[: head + len(upstream.turns) - 1])
        await asyncio.sleep(0.001)
        die(turn)

    upstream.script = script
    for cut in range(len(STREAM) - head):
        plan = proxy.plan()
        client = await fronts.connect(proxy.server)
        got = await client.ask(POST)
        if cut < first_event:
            assert (got.status, got.whole) == (502, True), cut
            assert (await plan.outcome()).kind == "failed"
            continue
        *passed, error = events_in(got.body)

        assert got.status == 200
        assert passed == EVENTS[: len(passed)], cut
        assert error.startswith(b'data: {"error":{"message":"upstream failed')
        assert not got.whole
        assert await client.closed()
        scanner = EventStream()
        scanner.feed(got.body)
        assert scanner.errors == 1
        outcome = await plan.outcome()
        assert (outcome.kind, outcome.status) == ("cut", 200)
        assert outcome.failure is not None
        assert outcome.failure.stage == "mid_response"
        assert plan.failures == []  # only what may be asked for elsewhere is


@pytest.mark.parametrize("die", [Turn.close, Turn.reset])
async def test_a_stream_that_said_done_is_whole_though_its_worker_dies(
    die: Die, proxy: Proxy, upstream: Upstream, fronts: Front
) -> None:
    whole = chunked(*EVENTS, b"data: [DONE]\n\n")

    upstream.script = sends(whole.removesuffix(b"0\r\n\r\n"), then=die)
    plan = proxy.plan()
    client = await fronts.connect(proxy.server)
    got = await client.ask(POST)

    assert events_in(got.body) == [*EVENTS, b"data: [DONE]\n\n"]
    assert got.whole
    assert (await plan.outcome()).kind == "finished"
    assert plan.failures == []


@pytest.mark.parametrize(
    ("before", "more", "pause_s"),
    [
        (b"0\r\n", b"t: x\r\n" * 100, 0.0),
        (b"0\r\nt: ", b"x" * 1000, 0.0),
        (b"5;", b"x" * 1000, 0.0),
        (b"0\r\nt: ", b"x", 0.05),
    ],
)
async def test_a_stream_that_said_done_ends_for_its_client_though_framing_goes_on(
    before: bytes, more: bytes, pause_s: float, upstream: Upstream, fronts: Front
) -> None:
    proxy = Proxy(upstream)
    await proxy.start(fronts, upstreams=UpstreamOptions(idle_timeout_s=1.0))
    whole = chunked(*EVENTS, b"data: [DONE]\n\n", end=False)

    async def script(turn: Turn) -> None:
        turn.send(whole + before)
        with contextlib.suppress(ConnectionError):
            while not turn.writer.transport.is_closing():
                turn.send(more)
                await turn.writer.drain()
                await asyncio.sleep(pause_s)

    upstream.script = script
    plan = proxy.plan()
    client = await fronts.connect(proxy.server)
    async with asyncio.timeout(10):
        got = await client.ask(POST)
        outcome = await plan.outcome()

    assert events_in(got.body) == [*EVENTS, b"data: [DONE]\n\n"]
    assert got.whole
    assert outcome.kind == "finished"
    await proxy.pool.close()


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_a_worker_may_die_at_any_byte_of_a_plain_answer(
    proxy: Proxy, upstream: Upstream, fronts: Front
) -> None:
    async def script(turn: Turn) -> None:
        turn.send(JSON[: len(upstream.turns) - 1])
        await asyncio.sleep(0.001)
        turn.close()

    upstream.script = script
    for cut in range(len(JSON)):
        plan = proxy.plan()
        client = await fronts.connect(proxy.server)
        got = await client.ask(POST)

        assert (got.status, got.whole) == (502, True), cut
        assert (await plan.outcome()).kind == "failed"


async def test_a_long_plain_answer_that_breaks_is_cut_visibly(
    proxy: Proxy, upstream: Upstream, fronts: Front
) -> None:
    body = b"x" * (MAX_KEPT_BYTES + 1000)

    upstream.script = sends(answer(body)[:-10], then=Turn.close)
    plan = proxy.plan()
    client = await fronts.connect(proxy.server)
    got = await client.ask(POST)

    assert (got.status, got.whole, got.body) == (200, False, body[:-10])
    assert (await plan.outcome()).kind == "cut"


@pytest.mark.parametrize("broken", [JSON[:-4], STREAM[: STREAM.index(EVENTS[0]) + 5]])
async def test_an_answer_that_breaks_before_its_client_could_use_it_is_asked_for_elsewhere(
    broken: bytes, proxy: Proxy, upstream: Upstream, fronts: Front
) -> None:
    async def script(turn: Turn) -> None:
        turn.send(broken if len(upstream.turns) == 1 else JSON)
        await asyncio.sleep(0.01)
        turn.close()

    upstream.script = script
    plan = proxy.plan(Target(upstream.origin), Target(upstream.origin))
    client = await fronts.connect(proxy.server)
    got = await client.ask(POST)

    assert (got.status, got.whole, got.body) == (200, True, b'{"some":"json"}')
    assert (await plan.outcome()).attempts == 2
    assert [failure.stage for failure in plan.failures] == ["mid_response"]


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_a_client_may_leave_at_any_byte_of_a_stream(
    proxy: Proxy, upstream: Upstream, fronts: Front, eventually: Eventually
) -> None:
    gone: list[Turn] = []

    async def script(turn: Turn) -> None:
        turn.send(chunked(*EVENTS, end=False))
        await turn.gone()
        gone.append(turn)

    upstream.script = script
    probe = await fronts.connect(proxy.server)
    probe.send(POST)
    whole = await probe.until(EVENTS[-1] + b"\r\n")
    probe.close()
    await eventually(lambda: len(gone) == 1)
    for offset in range(0, len(whole), 3):
        plan = proxy.plan()
        client = await fronts.connect(proxy.server)
        client.send(POST)
        await client.read(offset)

        client.close() if offset % 2 else client.reset()
        outcome = await plan.outcome()
        await eventually(lambda: len(gone) == len(upstream.turns))

        assert outcome.kind == "client_gone"
    assert proxy.pool.statistics().open_connections == 0


async def test_a_client_may_leave_at_any_byte_of_its_request(
    proxy: Proxy, upstream: Upstream, fronts: Front, eventually: Eventually
) -> None:
    for offset in range(len(POST)):
        client = await fronts.connect(proxy.server)
        client.send(POST[:offset])
        await asyncio.sleep(0)
        client.close() if offset % 2 else client.reset()
    await eventually(lambda: proxy.server.statistics().accepted_connections == len(POST))
    await eventually(lambda: proxy.server.statistics().open_connections == 0)

    assert upstream.turns == []
    assert proxy.used == []


@pytest.mark.parametrize("pause_at", [0, 1])
async def test_a_client_that_ends_its_requests_gets_the_workers_stream(
    pause_at: int, proxy: Proxy, upstream: Upstream, fronts: Front
) -> None:
    cut = asyncio.Event()
    pieces = [chunked(*EVENTS[:pause_at], end=False), chunked(*EVENTS[pause_at:])]
    if pause_at:
        pieces[1] = pieces[1].partition(b"\r\n\r\n")[2]

    async def script(turn: Turn) -> None:
        if pause_at:
            turn.send(pieces[0])
        await cut.wait()
        turn.send(pieces[1])

    upstream.script = script
    plan = proxy.plan()
    client = await fronts.connect(proxy.server)
    client.send(POST)
    if pause_at:
        await client.until(EVENTS[0])
    else:
        await client.writer.drain()
        await asyncio.sleep(0.05)
    client.writer.write_eof()
    await asyncio.sleep(0.05)
    cut.set()

    rest = await client.rest()

    got = bytes(client.received) + rest
    assert all(event in got for event in EVENTS)
    assert got.endswith(b"0\r\n\r\n")
    assert (await plan.outcome()).kind == "finished"


@pytest.mark.parametrize("upgrade", [b"", b"Connection: upgrade\r\nUpgrade: x\r\n"])
async def test_an_unasked_for_change_of_protocol_is_no_answer(
    upgrade: bytes, proxy: Proxy, upstream: Upstream, fronts: Front
) -> None:
    upstream.script = sends(
        b"HTTP/1.1 101 Switching Protocols\r\n" + upgrade + b"\r\n", then=Turn.gone
    )
    plan = proxy.plan()
    client = await fronts.connect(proxy.server)

    got = await client.ask(POST)

    assert (got.status, got.whole) == (502, True)
    assert {failure.stage for failure in plan.failures} == {"mid_response"}
    assert proxy.pool.statistics().open_connections == 0


async def test_interim_answers_are_not_passed_on(
    proxy: Proxy, upstream: Upstream, fronts: Front
) -> None:
    async def script(turn: Turn) -> None:
        turn.send(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 102 Processing\r\n\r\n")
        await asyncio.sleep(0.02)
        turn.send(b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + JSON)

    upstream.script = script
    proxy.plan()
    client = await fronts.connect(proxy.server)

    got = await client.ask(POST)

    assert got.status == 200
    assert b"link" not in got.headers


async def test_a_client_that_leaves_during_prefill_cancels_it(
    proxy: Proxy, upstream: Upstream, fronts: Front, eventually: Eventually
) -> None:
    gone: list[Turn] = []

    async def script(turn: Turn) -> None:
        await turn.gone()
        gone.append(turn)

    upstream.script = script
    plan = proxy.plan()
    client = await fronts.connect(proxy.server)
    client.send(POST)
    await eventually(lambda: upstream.turns)

    client.close()
    await eventually(lambda: gone)

    outcome = await plan.outcome()
    assert (outcome.kind, outcome.status) == ("client_gone", 0)


class Wire(asyncio.Transport):
    """A client's connection as its protocol sees it; nothing is sent."""

    def __init__(self) -> None:
        super().__init__()
        self._closing = False

    def write(self, data: bytes | bytearray | memoryview) -> None:
        assert data

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        del high, low

    def is_closing(self) -> bool:
        return self._closing

    def abort(self) -> None:
        self._closing = True


@pytest.mark.parametrize("phase", ["prefill", "stream"])
@pytest.mark.parametrize("leave", ["fin", "reset"])
async def test_the_turn_that_sees_a_client_leave_closes_the_upstream_connection(
    leave: str, phase: str, proxy: Proxy, upstream: Upstream, eventually: Eventually
) -> None:
    async def script(turn: Turn) -> None:
        if phase == "stream":
            turn.send(chunked(*EVENTS, end=False))
        await turn.gone()

    upstream.script = script
    plans = [proxy.plan()]
    wheel = DeadlineWheel(asyncio.get_running_loop())
    connection = Connection(Listener(proxy.handle, HttpLimits(), wheel))
    connection.connection_made(Wire())
    connection.data_received(POST)
    await eventually(lambda: upstream.turns and (phase == "prefill" or plans[0].tokens))

    if leave == "fin":
        connection.eof_received()
    else:
        connection.connection_lost(ConnectionResetError())

    assert plans[0].outcomes[0].kind == "client_gone"
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    assert proxy.pool.statistics().open_connections == 0
    if leave == "fin":
        connection.connection_lost(None)
    wheel.close()


async def test_an_overlong_event_that_is_cut_is_closed_before_the_error(
    proxy: Proxy, upstream: Upstream, fronts: Front
) -> None:
    upstream.script = sends(
        chunked(b"data: " + b"x" * (MAX_HELD_BYTES + 10), end=False), then=Turn.close
    )
    client = await fronts.connect(proxy.server)

    got = await client.ask(POST)

    torn, error = events_in(got.body)
    assert len(torn) == MAX_HELD_BYTES + 18
    assert error.startswith(b'data: {"error"')


async def test_http_1_0_gets_the_error_event_and_the_close(
    proxy: Proxy, upstream: Upstream, fronts: Front
) -> None:
    upstream.script = sends(chunked(EVENTS[0], end=False), then=Turn.close)
    client = await fronts.connect(proxy.server)
    client.send(b"POST / HTTP/1.0\r\nContent-Length: 0\r\n\r\n")

    body = (await client.rest()).partition(b"\r\n\r\n")[2]

    assert [event[:12] for event in events_in(body)] == [b'data: {"n":0', b'data: {"erro']
    assert proxy.server.statistics().open_connections == 0


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_a_slow_reader_holds_the_upstream_back_and_little_memory(
    proxy: Proxy, upstream: Upstream, fronts: Front, eventually: Eventually
) -> None:
    await proxy.start(fronts, limits=HttpLimits(write_buffer_bytes=64 * 1024))
    event = b"data: " + b"x" * 1000 + b"\n\n"
    count = 40_000
    written = [0]

    async def script(turn: Turn) -> None:
        turn.send(chunked(end=False))
        for _ in range(count // 100):
            turn.send(b"%x\r\n%b\r\n" % (len(event) * 100, event * 100))
            await turn.writer.drain()
            written[0] += len(event) * 100
        turn.send(b"0\r\n\r\n")

    upstream.script = script
    client = await fronts.connect(proxy.server, receive_buffer=256 * 1024)
    client.send(POST)
    await client.until(b"\r\n\r\n")

    before = -1
    while before != written[0]:
        before = written[0]
        await asyncio.sleep(0.2)

    transport = proxy.exchanges[0].channel.transport
    assert written[0] < 25_000_000
    assert transport.get_write_buffer_size() < 1_000_000
    body, whole = await client._chunks()
    assert whole
    assert body == event * count
    await eventually(lambda: proxy.used[0].outcomes)


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_a_thousand_streams_pass_at_once(
    proxy: Proxy, upstream: Upstream, fronts: Front, eventually: Eventually
) -> None:
    go = asyncio.Event()

    async def script(turn: Turn) -> None:
        turn.send(chunked(end=False))
        await go.wait()
        for event in EVENTS:
            data = turn.body + event
            turn.send(b"%x\r\n%b\r\n" % (len(data), data))
            await asyncio.sleep(0)
        turn.send(b"0\r\n\r\n")

    upstream.script = script
    clients = [await fronts.connect(proxy.server) for _ in range(1000)]
    for number, client in enumerate(clients):
        client.send(post(b"Content-Length: 4", body=b"%04d" % number))
    await eventually(lambda: len(upstream.turns) == 1000, timeout_s=60)
    go.set()

    answers = await asyncio.gather(*(client.answer() for client in clients))

    for number, got in enumerate(answers):
        assert got.whole
        assert got.body == b"".join(b"%04d" % number + event for event in EVENTS)
    await eventually(lambda: all(plan.outcomes for plan in proxy.used))
    assert {plan.outcomes[0].kind for plan in proxy.used} == {"finished"}


async def test_a_forwarded_exchange_leaves_no_garbage(
    proxy: Proxy, upstream: Upstream, fronts: Front
) -> None:
    upstream.script = sends(STREAM)
    client = await fronts.connect(proxy.server)
    await client.ask(POST)
    gc.collect()
    gc.disable()
    try:
        before = living()
        for _ in range(20):
            await client.ask(POST)
            proxy.forwards.clear()
            proxy.exchanges.clear()
        after = living()
    finally:
        gc.enable()

    for kind in ("Forward", "Exchange", "UpstreamCall", "EventStream"):
        assert after[kind] <= before[kind] + 1, kind
    assert after["Connection"] == before["Connection"]


WORKER = """
import http.server, time
class Worker(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def do_POST(self):
        self.rfile.read(int(self.headers["content-length"]))
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("transfer-encoding", "chunked")
        self.end_headers()
        chunk = (b'data: {"id":"c","object":"chat.completion.chunk","created":1,"model":"m",'
                 b'"choices":[{"index":0,"delta":{"content":"x"},"finish_reason":null}]}\\n\\n')
        while True:
            self.wfile.write(b"%x\\r\\n%b\\r\\n" % (len(chunk), chunk))
            time.sleep(0.01)
    def log_message(self, *args): pass
server = http.server.HTTPServer(("127.0.0.1", 0), Worker)
print(server.server_port, flush=True)
server.serve_forever()
"""


async def test_a_worker_killed_in_the_middle_gives_the_openai_client_an_error(
    proxy: Proxy,
) -> None:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", WORKER, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None
    port = int(await process.stdout.readline())
    proxy._upstream.port = port
    tokens = 0
    async with (
        ended(process),
        openai.AsyncOpenAI(
            api_key="k", base_url=f"http://127.0.0.1:{proxy.server.port}/v1", max_retries=0
        ) as client,
    ):
        stream = await client.chat.completions.create(
            model="m", messages=[{"role": "user", "content": "hi"}], stream=True
        )

        for _ in range(3):
            chunk = await anext(stream)
            tokens += len(chunk.choices[0].delta.content or "")
        process.send_signal(signal.SIGKILL)

        with pytest.raises(openai.APIError, match="upstream failed"):
            [chunk async for chunk in stream]

    await process.wait()
    assert tokens == 3
    assert proxy.used[0].outcomes[0].kind == "cut"


async def test_an_engine_that_closes_idle_connections_costs_no_request(
    proxy: Proxy, upstream: Upstream, fronts: Front
) -> None:
    """The race of keep-alive: the engine closes just as the next request is on its way."""

    async def script(turn: Turn) -> None:
        turn.send(answer(b"ok"))
        await turn.writer.drain()
        turn.close()

    upstream.script = script
    clients = [await fronts.connect(proxy.server) for _ in range(8)]
    for _ in range(25):
        answers = await asyncio.gather(*(client.ask(POST) for client in clients))

        assert {got.status for got in answers} == {200}


async def test_a_restarted_worker_is_reached_again(proxy: Proxy, fronts: Front) -> None:
    first = Upstream()
    await first.start()
    client = await fronts.connect(proxy.server)
    proxy._upstream.port = first.port
    assert (await client.ask(POST)).status == 200
    await first.close()
    assert (await client.ask(POST)).status == 502

    with socket.socket() as sock:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        sock.bind(("127.0.0.1", first.port))
        sock.listen()
        sock.setblocking(False)
        asking = asyncio.create_task(client.ask(POST))
        loop = asyncio.get_running_loop()
        connection, _ = await loop.sock_accept(sock)
        with connection:
            await loop.sock_recv(connection, 1000)
            await loop.sock_sendall(connection, answer(b"back"))
            assert (await asking).body == b"back"


async def test_the_client_class_of_the_tests_sees_a_cut(upstream: Upstream) -> None:
    upstream.script = sends(STREAM[:-3], then=Turn.close)
    client = await Client.connect(upstream.port)

    assert not (await client.ask(POST)).whole
    client.close()


async def test_an_error_behind_comments_that_comes_byte_by_byte_costs_as_its_bytes(
    proxy: Proxy, upstream: Upstream, fronts: Front, eventually: Eventually
) -> None:
    proxy.options = ForwardOptions(comments_s=0.05)
    proxy.stream = True
    asked, reported = asyncio.Event(), asyncio.Event()

    async def script(turn: Turn) -> None:
        await asked.wait()
        turn.send(b"HTTP/1.1 418 No\r\nTransfer-Encoding: chunked\r\n\r\n")
        turn.send(b"%x\r\n%b\r\n" % (MAX_KEPT_BYTES + 1, b"x" * (MAX_KEPT_BYTES + 1)))
        await reported.wait()

    upstream.script = script
    plan = proxy.plan()
    client = await fronts.connect(proxy.server)
    client.send(POST)
    await client.until(b": waiting\n\n")
    asked.set()
    await eventually(lambda: bool(plan.heads))
    (forward,) = proxy.forwards
    answer = forward.answer
    assert answer is not None

    def make(size: int) -> Callable[[], object]:
        return one_by_one(answer.on_body, b"x" * size)

    assert_linear(make, 2_500)
    reported.set()
