import tracemalloc

import pytest

from kvmesh.transport.http.server.limits import BodyBudget, HttpLimits
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.server.request_reader import Phase, RequestReader
from kvmesh.transport.http.wire.problem import Problem
from tests.unit.transport.http.malformed import CORPUS, Malformed, get, post

LIMITS = HttpLimits(max_body_bytes=1000, max_pipelined=4)


def read(*pieces: bytes, limits: HttpLimits = LIMITS) -> list[Request | Problem]:
    reader = RequestReader(limits)
    for piece in pieces:
        reader.feed(piece)
    return list(reader.ready)


def one(*pieces: bytes) -> Request:
    """Return the only request in the pieces."""
    (request,) = read(*pieces)
    assert isinstance(request, Request), request
    return request


def status_of(item: Request | Problem) -> int:
    assert isinstance(item, Problem), vars(item)
    return item.status


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.name)
def test_a_malformed_request_gets_the_status_it_deserves(case: Malformed) -> None:
    (problem,) = read(case.data)

    assert status_of(problem) == case.status


@pytest.mark.parametrize("case", CORPUS, ids=lambda case: case.name)
def test_a_malformed_request_is_refused_however_it_is_cut(case: Malformed) -> None:
    for cut in range(1, min(len(case.data), 120)):
        (problem,) = read(case.data[:cut], case.data[cut:])

        assert status_of(problem) == case.status, cut


def test_a_request_is_read_with_names_in_lower_case_and_values_trimmed() -> None:
    request = one(
        b"POST /v1/chat?a=%20b HTTP/1.1\r\nHost: a:1\r\nX-Thing:  Some Value \t\r\nEmpty:\r\n"
        b"Content-Length: 3\r\n\r\nabc"
    )

    assert request.method == "POST"
    assert (request.path, request.query, request.target) == (
        "/v1/chat",
        "a=%20b",
        b"/v1/chat?a=%20b",
    )
    assert request.header(b"x-thing") == b"Some Value"
    assert request.header(b"empty") == b""
    assert request.header(b"absent") is None
    assert request.header(b"content-length") is None
    assert request.body == b"abc"
    assert request.keep_alive


@pytest.mark.parametrize(
    ("data", "keep_alive"),
    [
        (get(b"Host: a"), True),
        (get(b"Host: a", b"Connection: close"), False),
        (get(b"Host: a", b"Connection: x, Close"), False),
        (b"GET / HTTP/1.0\r\n\r\n", False),
        (b"GET / HTTP/1.0\r\nConnection: keep-alive\r\n\r\n", True),
    ],
)
def test_a_client_says_whether_it_will_send_more(data: bytes, keep_alive: bool) -> None:
    assert one(data).keep_alive is keep_alive


def test_an_absolute_target_becomes_its_path() -> None:
    assert one(b"GET http://h:1/a?b HTTP/1.1\r\nHost: a\r\n\r\n").target == b"/a?b"
    assert one(b"GET http://h HTTP/1.1\r\nHost: a\r\n\r\n").target == b"/"
    assert one(b"GET HTTP://h?q HTTP/1.1\r\nHost: a\r\n\r\n").target == b"/?q"
    assert one(b"OPTIONS * HTTP/1.1\r\nHost: a\r\n\r\n").target == b"*"


def test_a_chunked_body_is_whole_its_extensions_and_trailers_dropped() -> None:
    data = post(
        b"Transfer-Encoding: Chunked", body=b"3;x=y\r\nabc\r\n1\r\nd\r\n0\r\nTrailer: x\r\n\r\n"
    )

    request = one(data)

    assert request.body == b"abcd"
    assert request.header(b"trailer") is None
    assert one(*(data[i : i + 1] for i in range(len(data)))).body == b"abcd"


def test_a_body_over_the_limit_is_refused_before_or_while_it_arrives() -> None:
    chunk = b"1f4\r\n" + b"a" * 500 + b"\r\n"

    assert status_of(read(post(b"Content-Length: 1001"))[0]) == 413
    assert status_of(read(post(b"Transfer-Encoding: chunked", body=chunk * 3))[0]) == 413


def test_a_client_that_waits_to_continue_is_noticed() -> None:
    reader = RequestReader(LIMITS)

    reader.feed(post(b"Expect: 100-Continue", b"Content-Length: 2"))

    assert (reader.wants_continue, reader.phase) == (True, Phase.BODY)
    reader.feed(b"ab")
    assert (reader.wants_continue, reader.phase) == (False, Phase.IDLE)
    assert len(reader.ready) == 1


UPGRADE = (b"Connection: Upgrade, HTTP2-Settings", b"Upgrade: h2c", b"HTTP2-Settings: AAMAA")


@pytest.mark.parametrize(
    ("lines", "body"),
    [
        ((b"Content-Length: 3",), b"abc"),
        ((b"Transfer-Encoding: chunked",), b"3\r\nabc\r\n0\r\n\r\n"),
    ],
)
def test_an_offer_to_upgrade_is_ignored_and_its_body_kept(
    lines: tuple[bytes, ...], body: bytes
) -> None:
    data = post(*UPGRADE, *lines, body=body)

    for cut in range(1, len(data)):
        reader = RequestReader(LIMITS)
        reader.feed(data[:cut])
        reader.feed(data[cut:] + get(b"Host: b"))
        first, second = reader.ready

        assert isinstance(first, Request)
        assert isinstance(second, Request)
        assert (first.method, first.path, first.body) == ("POST", "/v1/x", b"abc")
        assert first.header(b"host") == b"a"
        assert second.header(b"host") == b"b"


def test_bodies_of_all_connections_share_one_bound() -> None:
    budget = BodyBudget(1000)
    first, second, third = (RequestReader(LIMITS, budget) for _ in range(3))
    body = post(b"Content-Length: 600", body=b"x" * 600)

    first.feed(body)
    second.feed(body[:-1])
    third.feed(post(b"Transfer-Encoding: chunked", body=b"1\r\nx\r\n"))

    assert [status_of(item) for item in second.ready] == [503]
    assert isinstance(first.ready[0], Request)
    assert budget.used == 601
    third.close()
    assert budget.used == 600
    first.ready[0].release_body()
    first.ready[0].release_body()
    assert budget.used == 0


MANY = HttpLimits(max_body_items=50_000, max_body_depth=20)


def chunked(body: bytes, size: int) -> bytes:
    pieces = [body[i : i + size] for i in range(0, len(body), size)]
    framed = b"".join([b"%x\r\n%b\r\n" % (len(piece), piece) for piece in pieces])
    return post(b"Transfer-Encoding: chunked", body=framed + b"0\r\n\r\n")


def sized(body: bytes) -> bytes:
    return post(b"Content-Length: %d" % len(body), body=body)


def test_a_large_body_is_counted_and_kept_whatever_its_pieces() -> None:
    body = b'{"a": [%b]}' % b",".join([b'{"b": 1}'] * 5000)
    for data in (sized(body), chunked(body, 7), chunked(body, 40_000)):
        for step in (11, 4096, len(data)):
            pieces = (data[i : i + step] for i in range(0, len(data), step))
            (request,) = read(*pieces, limits=MANY)

            assert isinstance(request, Request), request
            assert request.body == body
            assert request.items == 3 + 2 * 5000 + 5000 // 4


def test_a_body_of_too_many_values_is_refused_before_all_of_it_came() -> None:
    body = b'{"a": [%b' % (b"[]," * 60_000)
    reader = RequestReader(MANY, budget := BodyBudget(1 << 30))
    data = post(b"Content-Length: 1000000", body=body)

    for i in range(0, len(data), 65_536):
        reader.feed(data[i : i + 65_536])

    (problem,) = reader.ready
    assert isinstance(problem, Problem)
    assert (problem.status, problem.code) == (413, "too_many_items")
    assert "50000 values" in problem.message
    assert budget.used == 0


def test_a_large_body_nested_too_deeply_is_refused() -> None:
    body = b'{"a": %b%b, "b": "%b"}' % (b"[" * 30, b"]" * 30, b"x" * 40_000)

    (problem,) = read(sized(body), limits=MANY)

    assert isinstance(problem, Problem)
    assert (problem.status, problem.code) == (413, "nested_too_deeply")


def test_what_is_no_json_may_hold_anything() -> None:
    (request,) = read(sized(b"[" * 100_000), limits=MANY)

    assert isinstance(request, Request), request
    assert request.items == 0


def test_small_pieces_take_no_more_memory_than_their_bytes() -> None:
    body = b'{"a": "%b"}' % (b"x" * 100_000)
    data = chunked(body, 2)[:-10]
    reader = RequestReader(MANY)
    tracemalloc.start()
    reader.feed(data)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert reader.crowded
    assert peak < 4 * len(body)


def test_a_head_is_screened_before_its_long_body_is_taken() -> None:
    seen: list[Request] = []

    def screen(head: Request) -> Problem | None:
        seen.append(head)
        return Problem(401, "who are you?") if head.path == "/v1/x" else None

    def screened(line: bytes, target: bytes = b"/v1/x") -> list[Request | Problem]:
        reader = RequestReader(MANY, BodyBudget(1 << 30), screen)
        reader.feed(b"POST %b HTTP/1.1\r\nHost: a\r\n%b\r\n\r\n" % (target, line))
        return reader.ready

    assert [status_of(item) for item in screened(b"Content-Length: 60000000")] == [401]
    assert [status_of(item) for item in screened(b"Transfer-Encoding: chunked")] == [401]
    assert screened(b"Content-Length: 60000000", b"/health") == []
    assert len(seen) == 3
    assert screened(b"Content-Length: 100") == []
    assert len(seen) == 3
    assert seen[0].header(b"host") is not None
