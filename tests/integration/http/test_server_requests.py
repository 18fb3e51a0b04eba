"""What the server takes, refuses and answers, over real sockets."""

import asyncio
import socket
import ssl
from pathlib import Path

import pytest

from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.limits import HttpLimits
from tests.conftest import Eventually
from tests.integration.http.peers import Client, Front
from tests.unit.transport.http.malformed import CORPUS, Malformed, get, post

pytestmark = pytest.mark.integration

TLS = Path(__file__).parents[2] / "fixtures" / "tls"
QUICK = HttpLimits(
    header_timeout_s=1.0,
    body_window_s=1.0,
    idle_timeout_s=1.0,
    linger_s=30.0,
    write_stall_s=1.0,
    max_body_bytes=100_000,
)


def echo(exchange: Exchange) -> None:
    """Answer with what was asked."""
    request = exchange.request
    exchange.respond(200, b"%b %b %b" % (request.method.encode(), request.target, request.body))


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.name)
async def test_a_malformed_request_is_answered_and_the_connection_closed(
    case: Malformed, fronts: Front
) -> None:
    handled: list[Exchange] = []
    server = await fronts.serve(handled.append)
    client = await fronts.connect(server)

    answer = await client.ask(case.data)

    assert answer.status == case.status
    assert answer.headers[b"connection"] == b"close"
    assert b'"error"' in answer.body
    assert answer.headers[b"x-request-id"] in answer.body
    assert await client.closed()
    assert handled == []
    assert server.statistics().malformed_requests == 1


async def test_a_connection_serves_many_requests(fronts: Front) -> None:
    server = await fronts.serve(echo)
    client = await fronts.connect(server)

    for number in range(5):
        answer = await client.ask(post(b"Content-Length: 1", body=b"%d" % number))
        assert answer.body == b"POST /v1/x %d" % number
        assert b"connection" not in answer.headers

    assert server.statistics().accepted_connections == 1
    assert server.statistics().requests == 5


async def test_each_answer_has_a_request_id_of_its_own_or_the_clients(fronts: Front) -> None:
    client = await fronts.connect(await fronts.serve(echo))

    ids = [(await client.ask(get(b"Host: a"))).headers[b"x-request-id"] for _ in range(3)]
    sent = await client.ask(get(b"Host: a", b"X-Request-Id: mine-1"))
    odd = await client.ask(get(b"Host: a", b"X-Request-Id: not mine"))

    assert len(set(ids)) == 3
    assert sent.headers[b"x-request-id"] == b"mine-1"
    assert odd.headers[b"x-request-id"] not in {*ids, b"not mine"}


async def test_pipelined_requests_are_answered_one_after_the_other(
    fronts: Front, eventually: Eventually
) -> None:
    open_: list[Exchange] = []
    client = await fronts.connect(await fronts.serve(open_.append))
    client.send(get(b"Host: a") + post(b"Content-Length: 1", body=b"b") + get(b"Host: c"))

    for expected in (b"GET", b"POST", b"GET"):
        await eventually(lambda: open_)
        exchange = open_.pop()
        assert open_ == []
        exchange.respond(200, exchange.request.method.encode())
        assert (await client.answer()).body == expected


async def test_requests_that_wait_behind_a_slow_one_are_not_read_without_end(
    fronts: Front, eventually: Eventually
) -> None:
    open_: list[Exchange] = []
    server = await fronts.serve(open_.append)
    client = await fronts.connect(server)
    client.send(get(b"Host: a"))
    await eventually(lambda: open_)

    for _ in range(200):
        client.send(post(b"Content-Length: 100000", body=b"x" * 100_000))
    await asyncio.sleep(0.2)

    assert client.writer.transport.get_write_buffer_size() > 10_000_000
    for _ in range(201):
        await eventually(lambda: open_)
        open_.pop().respond(200, b"")
        assert (await client.answer()).status == 200


async def test_more_pipelined_requests_than_allowed_are_refused_behind_the_others(
    fronts: Front,
) -> None:
    server = await fronts.serve(echo, limits=HttpLimits(max_pipelined=2))
    client = await fronts.connect(server)
    client.send(get(b"Host: a") * 5)

    statuses = [(await client.answer()).status for _ in range(3)]

    assert statuses == [200, 200, 400]
    assert await client.closed()


@pytest.mark.parametrize("status", [204, 304])
async def test_an_answer_without_a_body_has_none(status: int, fronts: Front) -> None:
    client = await fronts.connect(await fronts.serve(lambda e: e.respond(status, b"ignored")))
    client.send(get(b"Host: a") * 2)

    for _ in range(2):
        answer = await client.answer()
        assert answer.status == status
        assert b"content-length" not in answer.headers


async def test_head_is_answered_like_get_but_for_the_body(fronts: Front) -> None:
    client = await fronts.connect(await fronts.serve(lambda e: e.respond(200, b"12345")))

    client.send(b"HEAD / HTTP/1.1\r\nHost: a\r\n\r\n" + get(b"Host: a"))
    head = await client.answer(bodiless=True)

    assert head.headers[b"content-length"] == b"5"
    assert (await client.answer()).body == b"12345"


async def test_http_1_0_is_served_and_closed_unless_asked(fronts: Front) -> None:
    server = await fronts.serve(echo)
    client = await fronts.connect(server)

    kept = await client.ask(b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n")
    last = await client.ask(b"GET / HTTP/1.0\r\n\r\n")

    assert kept.headers[b"connection"] == b"keep-alive"
    assert last.headers[b"connection"] == b"close"
    assert await client.closed()


async def test_a_client_that_waits_is_told_to_continue(fronts: Front) -> None:
    client = await fronts.connect(await fronts.serve(echo))

    client.send(post(b"Expect: 100-continue", b"Content-Length: 2"))
    assert await client.until(b"\r\n\r\n") == b"HTTP/1.1 100 Continue\r\n\r\n"
    answer = await client.ask(b"ok")

    assert answer.body == b"POST /v1/x ok"


async def test_a_client_that_waits_in_vain_is_refused_at_once(fronts: Front) -> None:
    client = await fronts.connect(await fronts.serve(echo, limits=QUICK))

    answer = await client.ask(post(b"Expect: 100-continue", b"Content-Length: 100001"))

    assert answer.status == 413


async def test_an_upload_may_be_chunked(fronts: Front) -> None:
    client = await fronts.connect(await fronts.serve(echo))

    client.send(post(b"Transfer-Encoding: chunked", body=b"3\r\nabc\r\n"))
    await asyncio.sleep(0.01)
    answer = await client.ask(b"2\r\nde\r\n0\r\n\r\n")

    assert answer.body == b"POST /v1/x abcde"


async def test_a_refusal_reaches_a_client_that_is_still_sending(fronts: Front) -> None:
    client = await fronts.connect(await fronts.serve(echo, limits=QUICK))

    client.send(post(b"Content-Length: 20000000", body=b"x" * 20_000_000))
    answer = await client.answer()

    assert answer.status == 413
    assert b"100000 bytes" in answer.body


async def test_a_slow_head_is_timed_out(fronts: Front) -> None:
    client = await fronts.connect(await fronts.serve(echo, limits=QUICK))
    client.send(b"GET / HTTP/1.1\r\n")
    for _ in range(30):
        await asyncio.sleep(0.05)
        client.send(b"X: y\r\n")

    assert (await client.answer()).status == 408
    assert await client.closed()


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_a_slow_body_is_timed_out_a_steady_one_is_not(fronts: Front) -> None:
    server = await fronts.serve(echo, limits=QUICK)
    slow, steady = await fronts.connect(server), await fronts.connect(server)

    async def upload(client: Client, piece: bytes) -> None:
        client.send(post(b"Content-Length: 3000"))
        for _ in range(3000 // len(piece)):
            await asyncio.sleep(0.1)
            client.send(piece)

    uploads = [
        asyncio.create_task(upload(client, piece))
        for client, piece in ((slow, b"x"), (steady, b"x" * 100))
    ]

    assert (await slow.answer()).status == 408
    uploads[0].cancel()
    assert (await steady.answer()).status == 200


async def test_a_connection_that_says_nothing_is_closed_without_a_word(fronts: Front) -> None:
    server = await fronts.serve(echo, limits=QUICK)
    silent, idle = await fronts.connect(server), await fronts.connect(server)
    await idle.ask(get(b"Host: a"))

    assert await silent.closed()
    assert await idle.closed()


@pytest.mark.asyncio(loop_factories=["uvloop"])
async def test_a_request_in_work_has_no_deadline_of_the_servers(fronts: Front) -> None:
    open_: list[Exchange] = []
    client = await fronts.connect(await fronts.serve(open_.append, limits=QUICK))
    client.send(get(b"Host: a"))

    await asyncio.sleep(2.0)
    open_[0].respond(200, b"late")

    assert (await client.answer()).body == b"late"


async def test_connections_over_the_limit_are_turned_away(fronts: Front) -> None:
    server = await fronts.serve(echo, limits=HttpLimits(max_connections=2))
    kept = [await fronts.connect(server) for _ in range(2)]
    assert [(await client.ask(get(b"Host: a"))).status for client in kept] == [200, 200]

    refused = await fronts.connect(server)
    answer = await refused.answer()

    assert (answer.status, answer.headers[b"retry-after"]) == (503, b"1")
    assert await refused.closed()
    assert server.statistics().refused_connections == 1


async def test_who_is_being_turned_away_takes_nobodys_place(fronts: Front) -> None:
    server = await fronts.serve(echo, limits=HttpLimits(max_connections=1, linger_s=60.0))
    leaving = await fronts.connect(server)
    await leaving.ask(get(b"Host: a"))
    refused = await fronts.connect(server)
    assert (await refused.answer()).status == 503

    leaving.send(get(b"Host: a", b"Connection: close"))
    assert (await leaving.answer()).status == 200
    assert await leaving.closed()

    assert (await (await fronts.connect(server)).ask(get(b"Host: a"))).status == 200


async def test_a_client_turned_away_is_not_reset_though_it_sends_at_once(fronts: Front) -> None:
    server = await fronts.serve(echo, limits=HttpLimits(max_connections=1, linger_s=60.0))
    await (await fronts.connect(server)).ask(get(b"Host: a"))
    loop = asyncio.get_running_loop()

    with socket.socket() as refused:
        refused.setblocking(False)
        await loop.sock_connect(refused, ("127.0.0.1", server.port))
        await loop.sock_sendall(refused, post(b"Content-Length: 1", body=b"x"))
        answer = b""
        while piece := await loop.sock_recv(refused, 65536):
            answer += piece

    assert answer.startswith(b"HTTP/1.1 503 ")


async def test_a_handler_that_fails_is_answered_for(
    fronts: Front, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(exchange: Exchange) -> None:
        if exchange.request.path == "/late":
            exchange.start(200, [])
            exchange.write(b"half")
        raise KeyError("oops")

    server = await fronts.serve(fail)
    client = await fronts.connect(server)
    answer = await client.ask(get(b"Host: a"))
    client.send(b"GET /late HTTP/1.1\r\nHost: a\r\n\r\n")
    cut = await client.answer()

    assert (answer.status, b"internal error" in answer.body) == (500, True)
    assert (cut.body, cut.whole) == (b"half", False)
    assert server.statistics().handler_failures == 2
    assert "KeyError" in capsys.readouterr().out


async def test_tls_is_served(fronts: Front) -> None:
    server_tls = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    server_tls.load_cert_chain(TLS / "cert.pem", TLS / "key.pem")
    client_tls = ssl.create_default_context(cafile=str(TLS / "cert.pem"))
    secure: list[bool] = []

    def handle(exchange: Exchange) -> None:
        secure.append(exchange.request.secure)
        exchange.respond(200, b"x" * 1_000_000)

    client = await fronts.connect(await fronts.serve(handle, tls=server_tls), tls=client_tls)

    for _ in range(2):
        assert len((await client.ask(get(b"Host: a"))).body) == 1_000_000
    assert secure == [True, True]
