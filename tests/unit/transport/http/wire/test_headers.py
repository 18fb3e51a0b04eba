from typing import Any

import pytest

from kvmesh._native import match_head, render
from kvmesh.bounds import MAX_SECONDS
from kvmesh.transport.http.server.request import Request, forwarded_block
from kvmesh.transport.http.wire.headers import (
    HttpDate,
    end_to_end,
    retry_after_s,
)
from tests.reference.transport import heads


@pytest.mark.parametrize("value", [b"a\r\nx: y", b"a\nb", b"a\rb"])
def test_a_line_break_in_a_header_is_refused(value: bytes) -> None:
    for header in ((b"b", value), (value, b"b")):
        with pytest.raises(ValueError, match="header with a line break in b'a: 1"):
            render([(b"a", b"1"), header])


@pytest.mark.parametrize("headers", [[(b"a", "b")], [(b"a", object())], [1], None, [(None, b"a")]])
def test_what_is_no_header_is_an_error(headers: Any) -> None:
    given: Any = [(b"a", b"1"), *headers] if headers is not None else 1
    with pytest.raises(TypeError):
        render(given)


def test_misuse_of_the_compiled_functions_is_an_error() -> None:
    match: Any = match_head
    for wrong in (("a", b"", b"", 0), (b"", b"", b"", "0"), (b"", 1, b"", 0), (b"", b"")):
        with pytest.raises(TypeError):
            match(*wrong)


def test_headers_of_one_hop_are_dropped_with_those_connection_names() -> None:
    headers = [
        (b"connection", b"keep-alive, X-Secret"),
        (b"x-secret", b"1"),
        (b"keep-alive", b"timeout=5"),
        (b"te", b"trailers"),
        (b"date", b"now"),
        (b"x-kept", b"2"),
    ]

    assert end_to_end(headers, frozenset({b"date"})) == [(b"x-kept", b"2")]
    assert end_to_end([(b"connection", b"close"), (b"a", b"b")], frozenset()) == [(b"a", b"b")]


def test_the_date_is_made_once_a_second() -> None:
    date = HttpDate()
    line = date.line

    date.refresh()

    assert line.startswith(b"date: ")
    assert line.endswith(b" GMT\r\n")
    assert date.line is line or date.line != line


def request(*headers: tuple[bytes, bytes], client: str = "10.0.0.9") -> Request:
    made = Request("POST", b"/", [(b"host", b"front:1"), *headers])
    made.client = client
    return made


def test_a_forwarded_request_says_where_it_came_from() -> None:
    block = forwarded_block(request((b"accept", b"*/*"), (b"accept-encoding", b"gzip")))

    assert block == (
        b"accept: */*\r\nx-forwarded-for: 10.0.0.9\r\n"
        b"x-forwarded-proto: http\r\nx-forwarded-host: front:1\r\n"
    )


def test_what_earlier_proxies_said_is_kept() -> None:
    block = forwarded_block(
        request(
            (b"x-forwarded-for", b"1.2.3.4"),
            (b"x-forwarded-proto", b"https"),
            (b"x-forwarded-host", b"public"),
        )
    )

    assert b"x-forwarded-for: 1.2.3.4, 10.0.0.9\r\n" in block
    assert b"x-forwarded-proto: https\r\n" in block
    assert b"x-forwarded-host: public\r\n" in block


def test_a_target_replaces_the_clients_header_of_the_same_name() -> None:
    sent = request((b"x-data-parallel-rank", b"7"), (b"a", b"b"))

    assert b"rank" not in forwarded_block(sent, ((b"x-data-parallel-rank", b"1"),))
    assert b"rank: 7" in forwarded_block(sent, ((b"x-other", b"1"),))


@pytest.mark.parametrize(
    "value",
    [
        b"9" * 400,
        b"-1",
        b"1e400",
        b"NaN",
        b"\xb2",
        b"",
        b"Mon, 01 Jan 99999999999 00:00:00 GMT",
        b"Mon, 01 Jan 2020 00:00:00 +99999999999999",
        b"Mon, 01 Jan 9999 00:00:00 GMT",
        b"Mon, 01 Jan 0001 00:00:00 -2359",
        b"Mon, 01 Jan 2020 00:00:00 GMT" * 10_000,
    ],
)
def test_no_upstream_is_left_alone_for_longer_than_can_be(value: bytes) -> None:
    assert 0.0 <= retry_after_s([(b"retry-after", value)]) <= MAX_SECONDS


BEFORE, BEHIND = b"POST / HTTP/1.1\r\nl: ", b" \r\nx: y\r\n\r\n"


@pytest.mark.parametrize(
    ("length", "body", "most"),
    [
        (b"3", b"abc", 3),
        (b"3", b"abc", 2),
        (b"03", b"abc", 9),
        (b"000000000003", b"abc", 9),
        (b"0000000000003", b"abc", 9),
        (b"", b"", 9),
        (b"0", b"", 9),
        (b"0", b"", -1),
        (b"2", b"abc", 9),
        (b"4", b"abc", 9),
        (b"+3", b"abc", 9),
        (b"3x", b"abc", 9),
        (b"\xb2", b"ab", 9),
        (b"999999999999", b"abc", 1 << 60),
    ],
)
def test_a_repeated_head_is_found_as_by_its_model(length: bytes, body: bytes, most: int) -> None:
    whole = BEFORE + length + BEHIND + body
    wanted = {b"3": b"abc", b"03": b"abc", b"000000000003": b"abc", b"0": b""}.get(length)
    for data in (whole, whole[:-1], whole[1:], whole + b"x", BEFORE, BEFORE[:-1], b""):
        for behind in (BEHIND, None):
            assert match_head(data, BEFORE, behind, most) == heads.match_head(
                data, BEFORE, behind, most
            )

    assert match_head(whole, BEFORE, BEHIND, most) == (wanted if len(body) <= most else None)
    assert match_head(whole, whole, None, most) == b""
    assert match_head(whole + b"x", whole, None, most) is None
