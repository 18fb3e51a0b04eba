"""Requests to upstreams that answer, hesitate, lie and die."""

import asyncio
import gc
import socket
import ssl
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kvmesh.core.engines.event_stream import new_event_stream
from kvmesh.errors import ConfigError
from kvmesh.transport.http.upstream.client import (
    OnChunk,
    UpstreamCall,
    UpstreamFailure,
    UpstreamOptions,
    UpstreamPool,
    UpstreamRequest,
)
from kvmesh.transport.http.upstream.response_head import ResponseHead
from kvmesh.transport.http.wire.headers import Headers
from tests.conftest import Eventually
from tests.integration.http.peers import Die, Turn, Upstream, answer, chunked, living, sends

pytestmark = pytest.mark.integration

TLS = Path(__file__).parents[2] / "fixtures" / "tls"


class Sink:
    """Keeps what arrives, in order."""

    def __init__(self) -> None:
        self.on_chunk: OnChunk | None = None
        self.status = 0
        self.headers: Headers = ()
        self._body = bytearray()
        self.calls: list[str] = []
        self.failure: UpstreamFailure | None = None
        self.over = asyncio.Event()

    def on_head(self, head: ResponseHead) -> None:
        self.calls.append("head")
        self.status, self.headers = head.status, head.headers

    def on_body(self, data: bytes) -> None:
        self.calls.append("body")
        self._body += data

    def on_due(self) -> None:
        """Not called: there is no `on_chunk`."""

    def on_last_chunks(self, data: bytes) -> None:
        """Not called: there is no `on_chunk`."""

    def on_whole(self, head: ResponseHead, body: bytes) -> None:
        self.on_head(head)
        self.on_end(body)

    def on_end(self, data: bytes = b"") -> None:
        if data:
            self.on_body(data)
        self.calls.append("end")
        self.over.set()

    def on_failure(self, failure: UpstreamFailure) -> None:
        self.calls.append("failure")
        self.failure = failure
        self.over.set()

    def crash(self, error: Exception) -> None:
        self.calls.append(f"crash: {error}")
        self.over.set()

    @property
    def body(self) -> bytes:
        return bytes(self._body)

    async def end(self) -> "Sink":
        """Wait for the end; a second one would be an error."""
        await asyncio.wait_for(self.over.wait(), 60)
        await asyncio.sleep(0)
        assert self.calls.count("end") + self.calls.count("failure") == 1
        assert self.calls[-1] in {"end", "failure"}
        return self


class Pool:
    """Pools under test."""

    def __init__(self) -> None:
        self.pool = UpstreamPool()
        self._all = [self.pool]

    def options(self, options: UpstreamOptions, tls: ssl.SSLContext | None = None) -> UpstreamPool:
        """Use other options from now on."""
        self.pool = UpstreamPool(options=options, ssl=tls)
        self._all.append(self.pool)
        return self.pool

    def send(
        self, origin: str, *, method: str = "POST", body: bytes = b"", target: bytes = b"/v1/x"
    ) -> tuple[Sink, UpstreamCall]:
        """Send a request."""
        sink = Sink()
        request = UpstreamRequest(origin, method, target, ((b"x-a", b"b"),), body)
        return sink, self.pool.send(request, sink)

    async def ask(self, origin: str, *, method: str = "POST", body: bytes = b"") -> Sink:
        """Send a request and wait for the end of its response."""
        return await self.send(origin, method=method, body=body)[0].end()

    async def close(self) -> None:
        for pool in self._all:
            await pool.close()


@pytest.fixture
async def pools() -> AsyncIterator[Pool]:
    made = Pool()
    yield made
    await made.close()


def failure_of(sink: Sink) -> tuple[str, str]:
    assert sink.failure is not None, sink.calls
    return sink.failure.stage, sink.failure.kind


async def test_a_request_arrives_as_sent_and_its_response_as_answered(
    pools: Pool, upstream: Upstream
) -> None:
    upstream.script = sends(answer(b"hello", b"X-Thing: 1", b"X-Thing: 2", status=b"201 Created"))
    sink = await pools.ask(upstream.origin, body=b"question")

    assert (sink.status, sink.body, sink.calls) == (201, b"hello", ["head", "body", "end"])
    assert list(sink.headers).count((b"x-thing", b"1")) == 1
    assert list(sink.headers).count((b"x-thing", b"2")) == 1
    (turn,) = upstream.turns
    assert turn.head == (
        b"POST /v1/x HTTP/1.1\r\nhost: 127.0.0.1:%d\r\nx-a: b\r\ncontent-length: 8\r\n\r\n"
        % upstream.port
    )
    assert turn.body == b"question"


async def test_a_get_has_no_length_an_empty_post_has(pools: Pool, upstream: Upstream) -> None:
    await pools.ask(upstream.origin, method="GET")
    await pools.ask(upstream.origin, method="POST")

    assert b"content-length" not in upstream.turns[0].head
    assert b"content-length: 0\r\n" in upstream.turns[1].head


USUAL = answer(b"hello", b"X-Thing: 1")
FOLLOWERS = {
    "the same": USUAL,
    "another length": answer(b"other words" * 9, b"X-Thing: 1"),
    "no body": answer(b"", b"X-Thing: 1"),
    "more zeros": USUAL.replace(b": 5", b": 005"),
    "a length that is none": USUAL.replace(b": 5", b": 5x"),
    "two lengths": USUAL.replace(b"X-Thing: 1", b"Content-Length: 6"),
    "a byte too many": USUAL + b"!",
    "another header": answer(b"hello", b"X-Thing: 2"),
    "a header more": answer(b"hello", b"X-Thing: 1", b"X-Other: 2"),
    "another status": answer(b"hello", b"X-Thing: 1", status=b"404 Not Found"),
    "the last": answer(b"hello", b"X-Thing: 1", b"Connection: close"),
    "an interim one before": b"HTTP/1.1 103 Early Hints\r\n\r\n" + USUAL,
    "chunks": chunked(b"hello", kind=b"x/y"),
}


@pytest.mark.parametrize("method", ["POST", "HEAD"])
@pytest.mark.parametrize("follower", FOLLOWERS.values(), ids=list(FOLLOWERS))
async def test_a_response_whose_head_is_known_is_what_it_is_to_a_parser(
    pools: Pool, upstream: Upstream, follower: bytes, method: str
) -> None:
    async def facts() -> object:
        sink = await pools.ask(upstream.origin, method=method)
        headers = [header for header in sink.headers if header[0] != b"content-length"]
        failure = failure_of(sink) if sink.failure else None
        idle = pools.pool.statistics().idle_connections
        return sink.status, headers, sink.body, failure, idle

    answers = [follower]

    async def script(turn: Turn) -> None:
        turn.send(answers.pop(0))

    upstream.script = script
    expected = await facts()
    pools.options(UpstreamOptions())
    answers += [USUAL, follower]
    await pools.ask(upstream.origin)
    assert await facts() == expected


async def test_an_answer_of_which_a_part_is_late_is_whole(pools: Pool, upstream: Upstream) -> None:
    late = asyncio.Event()

    async def script(turn: Turn) -> None:
        if len(upstream.turns) == 1:
            turn.send(USUAL)
            return
        turn.send(USUAL[:-2])
        await late.wait()
        turn.send(USUAL[-2:])

    upstream.script = script
    await pools.ask(upstream.origin)
    sink, _ = pools.send(upstream.origin)
    while not sink.body:  # noqa: ASYNC110  bounded by the test's own time
        await asyncio.sleep(0.01)
    late.set()
    await sink.end()

    assert (sink.status, sink.body, sink.failure) == (200, b"hello", None)


async def test_connections_are_used_again_the_latest_first(pools: Pool, upstream: Upstream) -> None:
    first, second = pools.send(upstream.origin)[0], pools.send(upstream.origin)[0]
    await first.end()
    await second.end()
    for _ in range(5):
        await pools.ask(upstream.origin)

    assert upstream.connections == 2
    assert len({turn.connection for turn in upstream.turns[2:]}) == 1
    statistics = pools.pool.statistics()
    assert (statistics.open_connections, statistics.idle_connections) == (2, 2)
    assert (statistics.connects, statistics.reuses) == (2, 5)


async def test_no_more_idle_connections_are_kept_than_asked(
    pools: Pool, upstream: Upstream, eventually: Eventually
) -> None:
    pools.options(UpstreamOptions(max_idle=1))
    sinks = [pools.send(upstream.origin)[0] for _ in range(3)]
    for sink in sinks:
        await sink.end()

    await eventually(lambda: pools.pool.statistics().open_connections == 1)


async def test_an_idle_connection_is_closed_before_the_engine_does(
    pools: Pool, upstream: Upstream, eventually: Eventually
) -> None:
    pools.options(UpstreamOptions(keepalive_s=0.4))
    await pools.ask(upstream.origin)

    await eventually(lambda: pools.pool.statistics().open_connections == 0, timeout_s=60)

    await pools.ask(upstream.origin)
    assert upstream.connections == 2


async def test_a_connection_closed_while_idle_is_not_used(
    pools: Pool, upstream: Upstream, eventually: Eventually
) -> None:
    upstream.script = sends(answer(b"bye"), then=Turn.close)
    await pools.ask(upstream.origin)
    await eventually(lambda: pools.pool.statistics().open_connections == 0)

    assert (await pools.ask(upstream.origin)).body == b"bye"


async def test_bytes_on_an_idle_connection_close_it(
    pools: Pool, upstream: Upstream, eventually: Eventually
) -> None:
    await pools.ask(upstream.origin)

    upstream.turns[0].send(answer(b"unasked"))

    await eventually(lambda: pools.pool.statistics().open_connections == 0)
    assert (await pools.ask(upstream.origin)).body == b""


@pytest.mark.parametrize("die", [Turn.close, Turn.reset])
async def test_a_pooled_connection_that_dies_unanswered_is_replaced_once(
    die: Die, pools: Pool, upstream: Upstream
) -> None:
    async def script(turn: Turn) -> None:
        if len(upstream.turns) == 2:
            die(turn)
        turn.send(answer(b"%d" % len(upstream.turns)))

    upstream.script = script
    await pools.ask(upstream.origin)

    sink = await pools.ask(upstream.origin, body=b"again")

    assert sink.body == b"3"
    assert upstream.turns[1].body == upstream.turns[2].body == b"again"
    assert pools.pool.statistics().stale_retries == 1


async def test_a_fresh_connection_that_dies_is_not_replaced(
    pools: Pool, upstream: Upstream
) -> None:
    upstream.script = sends(then=Turn.reset)

    sink = await pools.ask(upstream.origin)

    assert failure_of(sink) == ("after_send", "reset")
    assert len(upstream.turns) == 1


async def test_an_engine_that_thought_before_it_died_is_not_asked_again(
    pools: Pool, upstream: Upstream
) -> None:
    pools.options(UpstreamOptions(stale_window_s=0.1))

    async def script(turn: Turn) -> None:
        if len(upstream.turns) > 1:
            await asyncio.sleep(0.4)
            turn.reset()
        turn.send(answer(b""))

    upstream.script = script
    await pools.ask(upstream.origin)

    assert failure_of(await pools.ask(upstream.origin)) == ("after_send", "reset")
    assert len(upstream.turns) == 2


async def test_a_pooled_connection_that_dies_in_its_answer_is_not_replaced(
    pools: Pool, upstream: Upstream
) -> None:
    async def script(turn: Turn) -> None:
        turn.send(answer(b"full") if len(upstream.turns) == 1 else b"HTTP/1.1 2")
        if len(upstream.turns) > 1:
            turn.close()

    upstream.script = script
    await pools.ask(upstream.origin)

    assert failure_of(await pools.ask(upstream.origin)) == ("mid_response", "truncated")
    assert len(upstream.turns) == 2


async def test_a_closed_port_refuses(pools: Pool) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        origin = f"http://127.0.0.1:{sock.getsockname()[1]}"

        sink = await pools.ask(origin)

    assert failure_of(sink) == ("before_send", "refused")
    assert sink.failure is not None
    assert sink.failure.origin == origin
    assert pools.pool.statistics().open_connections == 0


async def test_an_unknown_host_refuses(pools: Pool) -> None:
    pools.options(UpstreamOptions(connect_timeout_s=60))  # resolvers take their time

    assert failure_of(await pools.ask("http://no-such-host.invalid")) == ("before_send", "refused")


@contextmanager
def accepting_nobody(sock: socket.socket) -> Iterator[None]:
    """Fill the queue of a socket that listens with a backlog of 0: who connects now waits."""
    fillers = [socket.socket() for _ in range(4)]
    for filler in fillers:
        filler.setblocking(False)
        filler.connect_ex(sock.getsockname())
    yield
    for filler in fillers:
        filler.close()


async def test_a_port_that_does_not_accept_times_out(pools: Pool) -> None:
    pools.options(UpstreamOptions(connect_timeout_s=0.4))
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(0)
        with accepting_nobody(sock):
            sink = await pools.ask(f"http://127.0.0.1:{sock.getsockname()[1]}")

    assert failure_of(sink) == ("before_send", "timeout")


async def test_a_request_whose_connection_is_not_open_yet_takes_one_given_back(
    pools: Pool, eventually: Eventually
) -> None:
    pools.options(UpstreamOptions(connect_timeout_s=2.0))
    loop, tasks = asyncio.get_running_loop(), len(asyncio.all_tasks())
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen(0)
        sock.setblocking(False)
        origin = f"http://127.0.0.1:{sock.getsockname()[1]}"
        first, _ = pools.send(origin, body=b"one")
        engine, _ = await loop.sock_accept(sock)
        with engine, accepting_nobody(sock):
            assert (await loop.sock_recv(engine, 4096)).endswith(b"one")
            second, _ = pools.send(origin, body=b"two")
            gone, call = pools.send(origin, body=b"three")
            call.cancel()
            last, _ = pools.send(origin, body=b"four")

            for sink, body in ((first, b"two"), (second, b"four")):
                await loop.sock_sendall(engine, answer(b"yes"))
                assert (await sink.end()).body == b"yes"
                assert (await loop.sock_recv(engine, 4096)).endswith(body)

            # No connection ever opens: that concerns nobody who has one.
            await eventually(lambda: len(asyncio.all_tasks()) == tasks, timeout_s=60)
            await loop.sock_sendall(engine, answer(b"at last"))
            assert (await last.end()).body == b"at last"
    assert gone.calls == []


async def test_an_upstream_silent_from_the_start_times_out(pools: Pool, upstream: Upstream) -> None:
    pools.options(UpstreamOptions(first_byte_timeout_s=0.4))

    upstream.script = Turn.gone

    assert failure_of(await pools.ask(upstream.origin)) == ("after_send", "timeout")


async def test_an_upstream_silent_in_the_middle_times_out_a_slow_one_does_not(
    pools: Pool, upstream: Upstream
) -> None:
    pools.options(UpstreamOptions(idle_timeout_s=1.5))

    async def script(turn: Turn) -> None:
        turn.send(chunked(b"a", end=False))
        for _ in range(10):
            await asyncio.sleep(0.2)
            turn.send(b"1\r\nb\r\n")
        await turn.gone()

    upstream.script = script
    sink = await pools.ask(upstream.origin)

    assert failure_of(sink) == ("mid_response", "timeout")
    assert sink.body == b"abbbbbbbbbb"


class PassingSink(Sink):
    """Takes chunks by a look at them, from the first event on."""

    def __init__(self) -> None:
        super().__init__()
        self.passed: list[bytes] = []
        self.dues = 0
        self.stream = new_event_stream()
        self.stream.keep(1000, strip=True)

    def on_body(self, data: bytes) -> None:
        super().on_body(self.stream.feed(data))
        self.on_chunk = self.stream.take, self.passed.append

    def on_due(self) -> None:
        self.dues += 1
        self.stream.due += 2

    def on_last_chunks(self, data: bytes) -> None:
        self.passed.append(data)
        self.on_end()


async def test_chunks_pass_as_what_looks_at_them_has_changed_them(
    pools: Pool, upstream: Upstream
) -> None:
    def event(ids: bytes) -> bytes:
        return b'data: {"choices":[{"index":0,"text":"a","token_ids":%b}]}\n\n' % ids

    async def script(turn: Turn) -> None:
        turn.send(chunked(event(b"[1]"), end=False))
        for ids in (b"[2,3]", b"null"):
            await asyncio.sleep(0.01)
            turn.send(b"%X\r\n%b\r\n" % (len(event(ids)), event(ids)))
        await asyncio.sleep(0.01)
        turn.send(b"40\r\n%b\r\n0\r\n\r\n" % event(b"[50,51]"))

    upstream.script = script
    sinks = [PassingSink(), PassingSink()]
    for one in sinks:
        pools.pool.send(UpstreamRequest(upstream.origin, "POST", b"/"), one)
        await one.end()
    sink = sinks[1]  # whose head was known: its end may pass by the parser, too

    plain = event(b"null")
    assert (sink.body, sink.dues) == (plain, 2)
    assert sink.passed == [
        b"%x\r\n%b\r\n" % (len(plain), plain),
        b"%X\r\n%b\r\n" % (len(plain), plain),
        b"%x\r\n%b\r\n0\r\n\r\n" % (len(plain), plain),
    ]
    assert sink.stream.kept is not None
    assert sink.stream.kept.lost == "no ids"


@pytest.mark.parametrize(
    "cut",
    [
        answer(b"whole")[:-1],
        chunked(b"whole", end=False),
        chunked(b"whole")[:-2],
        chunked(b"whole")[:-7],
        answer(b"")[:-1],
    ],
)
@pytest.mark.parametrize("die", [Turn.close, Turn.reset])
async def test_a_truncated_response_is_a_failure_never_an_end(
    cut: bytes, die: Die, pools: Pool, upstream: Upstream
) -> None:
    upstream.script = sends(cut, then=die)

    assert failure_of(await pools.ask(upstream.origin)) == ("mid_response", "truncated")


async def test_a_response_until_close_ends_with_a_fin_and_not_with_a_reset(
    pools: Pool, upstream: Upstream
) -> None:
    async def script(turn: Turn) -> None:
        turn.send(b"HTTP/1.0 200 OK\r\n\r\nabc")
        await asyncio.sleep(0.01)
        turn.close() if len(upstream.turns) == 1 else turn.reset()

    upstream.script = script

    ended, cut = await pools.ask(upstream.origin), await pools.ask(upstream.origin)

    assert (ended.body, ended.calls[-1]) == (b"abc", "end")
    assert failure_of(cut) == ("mid_response", "truncated")


@pytest.mark.parametrize(
    "data",
    [
        b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        b"HTTP/1.1 200 OK\nContent-Length: 1\n\na",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"220 mail.example ESMTP\r\n",
    ],
)
async def test_a_malformed_response_is_a_failure(
    data: bytes, pools: Pool, upstream: Upstream
) -> None:
    upstream.script = sends(data, then=Turn.gone)

    assert failure_of(await pools.ask(upstream.origin)) == ("mid_response", "malformed")


@pytest.mark.parametrize("end", [b"1\r\nb\r\n0\r\n\r\n", b"1;odd\r\nb\r\n0\r\n\r\n", b"1\r\nb\r"])
async def test_streams_on_one_connection_are_read_alike(
    pools: Pool, upstream: Upstream, end: bytes
) -> None:
    async def script(turn: Turn) -> None:
        date = b"Date: Sun, 22 Nov 2026 14:20:%02d GMT" % len(upstream.turns)
        lines = (b"HTTP/1.1 200 OK", date, b"X-Kept: yes", b"Transfer-Encoding: chunked")
        turn.send(b"\r\n".join(lines), b"\r\n\r\n")
        await asyncio.sleep(0.02)
        turn.send(b"1\r\na\r\n")
        await asyncio.sleep(0.02)
        turn.send(end)
        if end.endswith(b"\r"):
            await asyncio.sleep(0.02)
            turn.send(b"\n0\r\n\r\n")

    upstream.script = script

    for _ in range(3):
        sink = await pools.ask(upstream.origin)
        assert (sink.status, sink.body, sink.calls[-1]) == (200, b"ab", "end")
        assert (b"x-kept", b"yes") in sink.headers
    assert upstream.connections == 1


async def test_a_head_alone_is_told_without_a_body(pools: Pool, upstream: Upstream) -> None:
    async def script(turn: Turn) -> None:
        turn.send(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n\r\n")
        await asyncio.sleep(0.05)
        turn.send(b"x")

    upstream.script = script

    assert (await pools.ask(upstream.origin)).calls == ["head", "body", "end"]


async def test_an_answer_to_head_has_no_body_and_ends_the_connection(
    pools: Pool, upstream: Upstream
) -> None:
    upstream.script = sends(b"HTTP/1.1 200 OK\r\nContent-Length: 100\r\n\r\n")
    sinks = [await pools.ask(upstream.origin, method="HEAD") for _ in range(2)]

    assert [sink.calls[-1] for sink in sinks] == ["end", "end"]
    assert upstream.connections == 2


async def test_an_early_answer_to_a_long_upload_arrives(pools: Pool, upstream: Upstream) -> None:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        sock.listen()
        sock.setblocking(False)
        loop = asyncio.get_running_loop()
        sink, _ = pools.send(f"http://127.0.0.1:{sock.getsockname()[1]}", body=b"x" * 20_000_000)
        connection, _ = await loop.sock_accept(sock)
        with connection:
            await loop.sock_recv(connection, 1000)
            await loop.sock_sendall(connection, answer(b"too much", status=b"413 No"))

            await sink.end()

    assert (sink.status, sink.body) == (413, b"too much")
    assert pools.pool.statistics().idle_connections == 0
    del upstream


async def test_a_long_upload_arrives_whole(pools: Pool, upstream: Upstream) -> None:
    body = bytes(range(256)) * 20_000

    await pools.ask(upstream.origin, body=body)

    assert upstream.turns[0].body == body


async def test_a_cancelled_request_is_gone_at_the_upstream(
    pools: Pool, upstream: Upstream, eventually: Eventually
) -> None:
    gone: list[Turn] = []

    async def script(turn: Turn) -> None:
        if turn.head.startswith(b"PUT"):
            turn.send(chunked(b"a", end=False))
        await turn.gone()
        gone.append(turn)

    upstream.script = script
    for method in ("POST", "PUT"):
        sink, call = pools.send(upstream.origin, method=method)
        count = len(gone)
        await eventually(lambda: len(upstream.turns) == count + 1)  # noqa: B023  awaited at once
        if method == "PUT":
            await eventually(lambda: sink.body)  # noqa: B023  awaited at once
        call.cancel()
        call.cancel()
        await eventually(lambda: len(gone) == count + 1)  # noqa: B023  awaited at once

        assert "failure" not in sink.calls


async def test_a_request_may_be_cancelled_while_it_connects(
    pools: Pool, upstream: Upstream, eventually: Eventually
) -> None:
    for turns in range(20):
        sink, call = pools.send(upstream.origin)
        for _ in range(turns % 5):
            await asyncio.sleep(0)
        call.cancel()
        await asyncio.sleep(0)
        assert "failure" not in sink.calls

    await eventually(lambda: pools.pool.statistics().open_connections <= 1)


async def test_a_late_cancel_does_not_touch_the_next_request(
    pools: Pool, upstream: Upstream
) -> None:
    first, call = pools.send(upstream.origin)
    await first.end()
    second, _ = pools.send(upstream.origin)

    call.cancel()
    call.pause()
    call.resume()

    assert (await second.end()).calls[-1] == "end"
    assert upstream.connections == 1


async def test_a_paused_response_is_held_back_and_not_timed_out(
    pools: Pool, upstream: Upstream
) -> None:
    pools.options(UpstreamOptions(first_byte_timeout_s=1.0, idle_timeout_s=1.0))
    written: list[int] = [0]

    async def script(turn: Turn) -> None:
        turn.send(chunked(end=False, kind=b"x"))
        for _ in range(400):
            turn.send(b"10000\r\n", b"x" * 0x10000, b"\r\n")
            await turn.writer.drain()
            written[0] += 0x10000
        turn.send(b"0\r\n\r\n")

    upstream.script = script
    sink, call = pools.send(upstream.origin)
    call.pause()
    call.pause()
    await asyncio.sleep(1.6)
    held = written[0]

    assert sink.calls == []
    assert held < 15_000_000
    call.resume()
    call.resume()
    await sink.end()
    assert len(sink.body) == 400 * 0x10000


async def test_connections_are_bounded_where_asked(pools: Pool, upstream: Upstream) -> None:
    pools.options(UpstreamOptions(max_connections=2, connect_timeout_s=60))
    together = 0
    most = 0

    async def script(turn: Turn) -> None:
        nonlocal together, most
        together += 1
        most = max(most, together)
        await asyncio.sleep(0.01)
        together -= 1
        turn.send(answer(b""))
        if len(upstream.turns) % 3 == 0:
            turn.close()

    upstream.script = script
    sinks = [pools.send(upstream.origin) for _ in range(20)]
    sinks[10][1].cancel()
    for number, (sink, _) in enumerate(sinks):
        if number != 10:
            assert (await sink.end()).calls[-1] == "end"

    assert most == 2
    assert pools.pool.statistics().open_connections <= 2


async def test_a_request_that_waits_too_long_for_a_connection_fails(
    pools: Pool, upstream: Upstream
) -> None:
    pools.options(UpstreamOptions(max_connections=1, connect_timeout_s=0.2))

    upstream.script = Turn.gone
    _, running = pools.send(upstream.origin)

    assert failure_of(await pools.ask(upstream.origin)) == ("before_send", "busy")
    running.cancel()


async def test_https_upstreams_are_verified(pools: Pool) -> None:
    server_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_tls.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
    upstream = Upstream()
    await upstream.start(tls=server_tls)
    origin = f"https://localhost:{upstream.port}"

    untrusted = await pools.ask(origin)
    pools.options(UpstreamOptions(), ssl.create_default_context(cafile=str(TLS / "cert.pem")))
    trusted = [await pools.ask(origin, body=b"x" * 300_000) for _ in range(2)]
    await upstream.close()

    assert failure_of(untrusted) == ("before_send", "refused")
    assert [sink.calls[-1] for sink in trusted] == ["end", "end"]
    assert len(upstream.turns) == 2


async def test_a_closed_pool_fails_what_runs_and_frees_everything(
    pools: Pool, upstream: Upstream, eventually: Eventually
) -> None:
    upstream.script = Turn.gone
    running, _ = pools.send(upstream.origin)
    await eventually(lambda: upstream.turns)
    connecting, _ = pools.send(upstream.origin)

    await pools.pool.close()
    await pools.pool.close()

    assert failure_of(await running.end()) == ("after_send", "reset")
    assert failure_of(await connecting.end()) == ("before_send", "reset")
    assert pools.pool.statistics().open_connections == 0


async def test_what_is_no_origin_or_no_header_is_told_at_once(pools: Pool) -> None:
    with pytest.raises(ConfigError):
        pools.send("tcp://x")
    with pytest.raises(ValueError, match="line break"):
        pools.pool.send(
            UpstreamRequest("http://127.0.0.1:9", "GET", b"/", ((b"a", b"b\r\nc: d"),)), Sink()
        )


async def test_requests_leave_no_garbage_for_the_collector(pools: Pool, upstream: Upstream) -> None:
    upstream.script = sends(chunked(b"data: 1\n\n", b"data: [DONE]\n\n"))
    await pools.ask(upstream.origin)
    gc.collect()
    gc.disable()
    try:
        before = living()
        for _ in range(20):
            await pools.ask(upstream.origin)
        after = living()
    finally:
        gc.enable()

    for kind in ("UpstreamCall", "UpstreamConnection"):
        assert after[kind] == before[kind], kind
