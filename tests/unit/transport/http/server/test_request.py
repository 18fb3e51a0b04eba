from math import inf

import pytest

from kvmesh._native import Names
from kvmesh.transport.http.server.limits import COUNT_ABOVE, BodyBudget, HttpLimits
from kvmesh.transport.http.server.request import Request, patience_s
from kvmesh.transport.http.server.request_reader import RequestReader
from kvmesh.transport.http.wire.problem import Problem
from tests.unit.transport.http.malformed import CORPUS, get, post

LIMITS = HttpLimits(max_body_bytes=1000)
FIRST = post(b"X: y", b"Content-Length: 3", b"Accept: */*", body=b"abc")


FACTS = ("method", "target", "path", "query", "headers", "body", "http_1_0", "keep_alive")


def facts(reader: RequestReader) -> list[object]:
    return [
        tuple(getattr(item, name) for name in FACTS) if isinstance(item, Request) else item
        for item in reader.ready
    ]


FOLLOWERS = [
    FIRST,
    post(b"X: y", b"Content-Length: 0", b"Accept: */*"),
    post(b"X: y", b"Content-Length: 1000", b"Accept: */*", body=b"a" * 1000),
    post(b"X: y", b"Content-Length: 1001", b"Accept: */*", body=b"a" * 1001),
    post(b"X: y", b"Content-Length: 007", b"Accept: */*", body=b"a" * 7),
    post(b"X: y", b"Content-Length: 3", b"Accept: */*", body=b"abcd"),
    post(b"X: y", b"Content-Length: 3", b"Accept: */*", body=b"ab"),
    post(b"X: y", b"Content-Length: ", b"Accept: */*"),
    post(b"X: y", b"Content-Length: 3x", b"Accept: */*", body=b"abc"),
    post(b"X: y", b"Content-Length: +3", b"Accept: */*", body=b"abc"),
    post(b"X: y", b"Content-Length: 9999999999999999", b"Accept: */*", body=b"abc"),
    post(b"X: y", b"Content-Length: 3", b"Content-Length: 3", b"Accept: */*", body=b"abc"),
    post(b"X: z", b"Content-Length: 3", b"Accept: */*", body=b"abc"),
    post(b"X: y", b"Content-Length: 3", b"Accept: x/y", body=b"abc"),
    post(b"X: y", b"Content-Length: 3", b"Accept: */*", b"Connection: close", body=b"abc"),
    FIRST + get(b"Host: a"),
    FIRST[:-1],
    b"\r\n" + FIRST,
    *(case.data for case in CORPUS),
]


@pytest.mark.parametrize("data", FOLLOWERS)
def test_what_comes_whole_is_taken_as_llhttp_takes_it_from_pieces(data: bytes) -> None:
    whole, pieces = RequestReader(LIMITS), RequestReader(LIMITS)

    whole.feed(data)
    for piece in (data[:1], data[1:]):
        pieces.feed(piece)

    assert facts(whole) == facts(pieces)
    assert whole.phase is pieces.phase


def test_the_parser_goes_on_behind_a_request_that_came_whole() -> None:
    reader = RequestReader(LIMITS)
    reader.feed(FIRST)

    reader.feed(post(b"Transfer-Encoding: chunked", body=b"1\r\nz\r\n0\r\n\r\n"))
    reader.feed(FIRST)

    bodies = [item.body for item in reader.ready if isinstance(item, Request)]
    assert bodies == [b"abc", b"z", b"abc"]


def test_a_body_beyond_what_is_left_of_the_budget_is_refused_when_it_comes_whole() -> None:
    reader = RequestReader(LIMITS, BodyBudget(2))

    reader.feed(FIRST)

    assert [item.status for item in reader.ready if isinstance(item, Problem)] == [503]


def test_a_long_body_is_screened_though_it_came_whole() -> None:
    refused = Problem(401, "no key")
    reader = RequestReader(HttpLimits(), screen=lambda _head: refused)
    size = COUNT_ABOVE + 1

    reader.feed(post(b"Content-Length: %d" % size, body=b"a" * size))

    assert reader.ready == [refused]


def test_headers_are_made_once_and_of_what_was_put_in_their_place() -> None:
    reader = RequestReader(LIMITS)
    reader.feed(FIRST)
    (request,) = [item for item in reader.ready if isinstance(item, Request)]
    before = request.headers
    assert request.headers is before

    request.change_headers(Names((b"x", b"accept"), b""), ((b"t", b"1"),))

    assert request.headers == [(b"host", b"a"), (b"t", b"1")]
    assert request.header(b"x") is None
    assert request.header(b"t") == b"1"


def test_headers_put_in_place_of_those_sent_are_what_is_asked_for_from_then_on() -> None:
    reader = RequestReader(LIMITS)
    reader.feed(FIRST)
    reader.feed(FIRST)
    changed, other = [item for item in reader.ready if isinstance(item, Request)]
    fresh = Request("GET", b"/", [(b"x", b"y")])
    assert (changed.header(b"x"), fresh.header(b"x")) == (b"y", b"y")

    for one in (changed, fresh):
        one.replace_headers([(b"tenant", b"t")])

    assert [one.header(b"tenant") for one in (changed, fresh, other)] == [b"t", b"t", None]
    assert [one.header(b"x") for one in (changed, fresh, other)] == [None, None, b"y"]


def test_a_replaced_body_is_charged_in_place_of_the_one_sent() -> None:
    request, budget = Request("POST", b"/", [], b"abc"), BodyBudget(100)
    request.budget, budget.used = budget, 3

    request.replace_body(b"abcdefg")
    charged = budget.used
    request.release_body()
    request.replace_body(b"")

    assert (charged, budget.used) == (7, 0)


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, inf),
        ({b"x-stainless-read-timeout": b"600"}, 600.0),
        ({b"x-stainless-read-timeout": b" 12.5 "}, 12.5),
        ({b"x-stainless-timeout": b"60", b"x-stainless-read-timeout": b"600.0"}, 60.0),
        ({b"x-kvmesh-timeout-s": b"5", b"x-stainless-timeout": b"60"}, 5.0),
        ({b"x-stainless-timeout": b"0"}, inf),
        ({b"x-stainless-timeout": b"-4"}, inf),
        ({b"x-stainless-timeout": b"1e25", b"x-stainless-read-timeout": b"7"}, 7.0),
        ({b"x-stainless-timeout": b"nan"}, inf),
        ({b"x-stainless-timeout": b"NOT_GIVEN"}, inf),
        ({b"x-stainless-timeout": b"9" * 400}, inf),
        ({b"x-stainless-timeout": b"\xff\xfe"}, inf),
        ({b"x-stainless-timeout": b""}, inf),
    ],
)
def test_a_clients_patience_is_the_least_of_what_it_says_and_rubbish_is_nothing(
    headers: dict[bytes, bytes], seconds: float
) -> None:
    lines = [name + b": " + value for name, value in headers.items()]
    reader = RequestReader(LIMITS)
    reader.feed(post(*lines, b"Content-Length: 3", body=b"abc"))
    [request] = reader.ready
    assert isinstance(request, Request)

    assert patience_s(request) == seconds
