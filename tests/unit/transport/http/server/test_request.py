import pytest

from kvmesh.transport.http.server.budget import BodyBudget
from kvmesh.transport.http.server.limits import HttpLimits
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.server.request_reader import RequestReader
from tests.unit.transport.http.malformed import CORPUS, get, post

LIMITS = HttpLimits(max_body_bytes=1000)
FIRST = post(b"X: y", b"Content-Length: 3", b"Accept: */*", body=b"abc")


def taught(first: bytes) -> RequestReader:
    """Return the reader of a connection that has taken `first` twice: a first is not learnt."""
    reader = RequestReader(LIMITS)
    reader.feed(first)
    reader.feed(first)
    reader.ready.clear()
    return reader


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


@pytest.mark.parametrize("first", [FIRST, get(b"Host: a"), get(b"Host: a", b"X: y")])
@pytest.mark.parametrize("follower", FOLLOWERS)
def test_a_repeated_head_changes_nothing_but_the_time_it_takes(
    first: bytes, follower: bytes
) -> None:
    fresh = RequestReader(LIMITS)
    fresh.feed(follower)
    reader = taught(first)

    for _ in range(2):
        reader.feed(follower)
        if len(reader.ready) == len(fresh.ready):
            break

    assert facts(reader)[: len(fresh.ready)] == facts(fresh)
    assert reader.phase is fresh.phase or len(reader.ready) > len(fresh.ready)


def test_requests_with_one_head_have_one_twin() -> None:
    reader = RequestReader(LIMITS)
    for body in (b"a", b"abc", b"abcdefghijkl", b""):
        reader.feed(post(b"X: y", b"Content-Length: %d" % len(body), body=body))

    first, *requests = [item for item in reader.ready if isinstance(item, Request)]

    assert first.twin is None
    assert [request.body for request in requests] == [b"abc", b"abcdefghijkl", b""]
    assert len({id(request.twin) for request in requests}) == 1
    assert requests[0].twin is not None
    assert requests[0].twin.body == b""


def test_the_parser_goes_on_where_a_repeated_head_left_it() -> None:
    reader = taught(FIRST)
    reader.feed(FIRST)

    reader.feed(post(b"Transfer-Encoding: chunked", body=b"1\r\nz\r\n0\r\n\r\n"))
    reader.feed(FIRST)

    bodies = [item.body for item in reader.ready if isinstance(item, Request)]
    assert bodies == [b"abc", b"z", b"abc"]


def test_a_client_that_never_repeats_itself_is_soon_left_alone() -> None:
    reader = RequestReader(LIMITS)
    for number in range(20):
        reader.feed(get(b"Host: a", b"X: %d" % number))

    assert len({id(item.twin) for item in reader.ready if isinstance(item, Request)}) == 8


def test_headers_put_in_place_of_those_sent_are_what_is_asked_for_from_then_on() -> None:
    reader = taught(FIRST)
    reader.feed(FIRST)
    reader.feed(FIRST)
    changed, other = [item for item in reader.ready if isinstance(item, Request)]
    fresh = Request("GET", b"/", [(b"x", b"y")])
    assert (changed.header(b"x"), fresh.header(b"x")) == (b"y", b"y")

    for one in (changed, fresh):
        one.replace_headers([(b"tenant", b"t")])

    assert [one.header(b"tenant") for one in (changed, fresh, other)] == [b"t", b"t", None]
    assert [one.header(b"x") for one in (changed, fresh, other)] == [None, None, b"y"]


def test_a_long_head_is_not_kept() -> None:
    reader = RequestReader(LIMITS)
    long = get(b"Host: a", b"X: " + b"a" * 5000)
    reader.feed(long)
    reader.feed(long)

    assert [item.twin for item in reader.ready if isinstance(item, Request)] == [None, None]


def test_a_released_body_is_gone() -> None:
    request = Request("POST", b"/", [], b"abc")

    request.release_body()

    assert request.body == b""


def test_a_replaced_body_is_charged_in_place_of_the_one_sent() -> None:
    request, budget = Request("POST", b"/", [], b"abc"), BodyBudget(100)
    request.budget, budget.used = budget, 3

    request.replace_body(b"abcdefg")
    charged = budget.used
    request.release_body()
    request.replace_body(b"")

    assert (charged, budget.used) == (7, 0)
