"""What clients send of HTTP/1.1, byte by byte and at ten times each bound."""

from collections.abc import Callable

import pytest

from kvmesh.transport.http.server.limits import HttpLimits
from kvmesh.transport.http.server.request_reader import Phase, RequestReader
from kvmesh.transport.http.wire.headers import MAX_FRAMING_BYTES
from kvmesh.transport.http.wire.problem import Problem
from tests.property.bounds.test_answers import one_by_one
from tests.property.bounds.work import assert_linear

LIMITS = HttpLimits()
HEAD = b"POST / HTTP/1.1\r\nHost: a\r\n"
CHUNKED = HEAD + b"Transfer-Encoding: chunked\r\n\r\n"

HEADS = {
    "one long field": HEAD + b"x: %b",
    "a long name": HEAD + b"x%b",
    "many fields": HEAD + b"%b",
    "empty lines": b"%b",
}


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_that_comes_byte_by_byte_costs_as_its_bytes(kind: str) -> None:
    def make(size: int) -> Callable[[], object]:
        fill = {"many fields": b"x: y\r\n", "empty lines": b"\r\n"}.get(kind, b"x")
        return one_by_one(RequestReader(LIMITS).feed, HEADS[kind] % (fill * (size // len(fill))))

    assert_linear(make, 6_000)


ENDLESS = {
    "a field": (HEAD, b"x: y\r\n", "headers_too_large"),
    "one field": (HEAD + b"x: ", b"yyyy", "headers_too_large"),
    "a name": (HEAD, b"xxxx", "headers_too_large"),
    "the target": (b"GET /", b"xxxx", "uri_too_long"),
    "the method": (b"", b"POST", "malformed_request"),
    "a trailer": (CHUNKED + b"0\r\n", b"x: y\r\n", "framing_too_large"),
    "one trailer": (CHUNKED + b"0\r\nx: ", b"yyyy", "framing_too_large"),
    "an extension": (CHUNKED + b"5;", b"yyyy", "framing_too_large"),
    "a size": (CHUNKED, b"0000", "framing_too_large"),
}


@pytest.mark.parametrize("size", [16, 4_096, 1 << 18])
@pytest.mark.parametrize("kind", ENDLESS)
def test_what_never_ends_is_refused_at_its_bound(kind: str, size: int) -> None:
    before, more, code = ENDLESS[kind]
    bound = LIMITS.max_header_bytes + LIMITS.max_target_bytes
    reader = RequestReader(LIMITS)
    data = more * (10 * bound // len(more))
    taken = 0

    reader.feed(before)
    while taken < len(data) and reader.phase is not Phase.BROKEN:
        reader.feed(data[taken : taken + size])
        taken += size

    (problem,) = reader.ready
    assert isinstance(problem, Problem)
    assert problem.code in {code, "headers_too_large", "malformed_request"}
    assert taken <= bound + size
    if code == "framing_too_large":
        assert taken <= max(MAX_FRAMING_BYTES, LIMITS.max_header_bytes) + size


def test_content_between_framing_begins_the_count_anew() -> None:
    reader = RequestReader(LIMITS)
    reader.feed(CHUNKED)

    for _ in range(20):
        reader.feed(b"1;" + b"a" * (MAX_FRAMING_BYTES // 2))
        reader.feed(b"\r\nx\r\n")

    assert reader.ready == []
    assert reader.body_bytes == 20


@pytest.mark.parametrize("chunk", [b"1\r\n:\r\n", b"1;a=b\r\n:\r\n"])
def test_small_chunks_cost_as_their_bytes(chunk: bytes) -> None:
    def make(size: int) -> Callable[[], object]:
        reader = RequestReader(LIMITS)
        reader.feed(CHUNKED)
        data = chunk * (size // len(chunk))
        return lambda: reader.feed(data)

    assert_linear(make, 20_000)


def test_pipelined_requests_are_bounded() -> None:
    reader = RequestReader(LIMITS)

    reader.feed(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n" * (10 * LIMITS.max_pipelined))

    assert len(reader.ready) == LIMITS.max_pipelined + 1
    assert isinstance(reader.ready[-1], Problem)
    assert reader.phase is Phase.BROKEN
