import pytest

from kvmesh._native import take_answer
from kvmesh.transport.http.upstream.response_reader import ReadStage, ResponseReader

OK = b"HTTP/1.1 200 OK\r\n"


def read(*pieces: bytes, expect_body: bool = True) -> tuple[ResponseReader, bytes]:
    reader = ResponseReader()
    reader.begin(expect_body=expect_body)
    return reader, b"".join([reader.feed(piece) for piece in pieces])


RESPONSES = [
    (OK + b"Content-Length: 3\r\n\r\nabc", b"abc"),
    (OK + b"Transfer-Encoding: chunked\r\n\r\n1\r\na\r\n2;x\r\nbc\r\n0\r\nT: x\r\n\r\n", b"abc"),
    (b"HTTP/1.1 100 Continue\r\n\r\n" + OK + b"Content-Length: 1\r\n\r\na", b"a"),
    (b"HTTP/1.1 103 Hints\r\nLink: x\r\n\r\n" + OK + b"Content-Length: 0\r\n\r\n", b""),
    (b"HTTP/1.1 204 No Content\r\n\r\n", b""),
    (b"HTTP/1.1 304 Not Modified\r\nContent-Length: 10\r\n\r\n", b""),
    (b"HTTP/1.1 200\r\nContent-Length: 1\r\n\r\na", b"a"),
]


ANSWERS = [
    *(data for data, _ in RESPONSES),
    OK + b"Server: a\r\nContent-Type:\tx \r\nX-Odd: \xff\r\nContent-Length: 3\r\n\r\nabc",
    OK + b"Connection: keep-alive\r\nTransfer-Encoding: chunked\r\n\r\n",
]
PIECES = [
    *(b"", b"\r", b"\n", b"\r\n", b"\0", b" ", b"\t", b":", b"\x7f", b"\x80", b"1", b"0", b"9"),
    *(b"Content-Length: 3\r\n", b"Transfer-Encoding: chunked\r\n", b"Connection: close\r\n"),
    *(
        b"Content-Type: y\r\n",
        b"Upgrade: x\r\n",
        b"Proxy-Connection: close\r\n",
        b"X:\r\n",
        b" x\r\n",
    ),
    *(b"Connection: upgrade\r\nUpgrade: h2c\r\n", b"Trailer: x\r\n", b"Content-Length: +3\r\n"),
]


@pytest.mark.parametrize("data", ANSWERS)
def test_what_is_taken_at_once_is_what_the_parser_finds(data: bytes) -> None:
    """At each place of it every piece stands once, in place of a byte and before one."""
    taken = 0
    for place in range(len(data) + 1):
        for piece in PIECES:
            for behind in (place, place + 1):
                taken += _agrees(data[:place] + piece + data[behind:])

    whole = not (data.startswith(b"HTTP/1.1 1") or b" 204 " in data or b" 304 " in data)
    assert _agrees(data) is whole
    assert bool(taken) is whole or b" 1" in data


def _agrees(data: bytes) -> bool:
    found = take_answer(data, 1 << 14, 100, 1 << 16)
    if found is None:
        return False
    status, head, start, body = found
    reader, read_body = read(data if body is not None else data[:start])
    framing = {b"content-length", b"transfer-encoding"}
    assert reader.status == status
    assert [one for one in reader.headers if one[0] not in framing] == head.headers()
    if body is None:
        assert reader.stage is ReadStage.BODY
        assert not reader.until_close
    else:
        assert reader.stage is ReadStage.COMPLETE
        assert reader.reusable
        assert (read_body, start + len(body)) == (body, len(data))
    return True


@pytest.mark.parametrize(("head", "headers", "body"), [(49, 3, 4), (90, 2, 4), (90, 3, 2)])
def test_an_answer_above_a_bound_is_the_parsers(head: int, headers: int, body: int) -> None:
    data = OK + b"A: b\r\nContent-Length: 3\r\nC: d\r\n\r\nabc"

    assert take_answer(data, 90, 3, 3) is not None
    assert take_answer(data, head, headers, body) is None


def test_a_response_without_length_lasts_until_the_connection_closes() -> None:
    reader, body = read(OK + b"\r\nab", b"c")

    assert body == b"abc"
    assert reader.stage is ReadStage.BODY
    assert reader.until_close
    assert not reader.reusable


def test_an_unknown_coding_is_not_taken_for_an_end_by_close() -> None:
    reader, _ = read(OK + b"Transfer-Encoding: gzip\r\n\r\nab")

    assert not reader.until_close


def test_a_head_request_is_answered_by_the_head_alone() -> None:
    reader, body = read(OK + b"Content-Length: 100\r\n\r\n", expect_body=False)

    assert (body, reader.stage) == (b"", ReadStage.COMPLETE)
    assert not reader.reusable


@pytest.mark.parametrize(
    "surplus", [b"x", b"\0\0", OK + b"Content-Length: 1\r\n\r\nb", OK + b"\r\nbody"]
)
def test_bytes_behind_a_response_spoil_the_connection_not_the_response(surplus: bytes) -> None:
    reader, body = read(OK + b"Content-Length: 1\r\n\r\na" + surplus)

    assert body == b"a"
    assert reader.stage is ReadStage.COMPLETE
    assert not reader.reusable


@pytest.mark.parametrize(
    "data",
    [
        OK + b"Content-Length: 3\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
        OK + b"Content-Length: 3\r\nContent-Length: 4\r\n\r\nabcd",
        OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\nContent-Length: 1\n\na",
        b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: x\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\n\r\n",
        b"HTTP/1.1 101 Switching Protocols\r\nContent-Length: 3\r\n\r\nabc",
        b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 101 Switching Protocols\r\n\r\n" + OK,
        b"HTTP/1.1 099 Odd\r\n\r\n",
        b"SSH-2.0-OpenSSH_9.2\r\n",
        OK + b"X: " + b"a" * 140_000,
        OK + b"X: a\r\n" * 300 + b"\r\n",
    ],
)
def test_what_is_no_http_1_1_response_is_an_error(data: bytes) -> None:
    with pytest.raises(ValueError, match=r"response|upstream"):
        read(data)


@pytest.mark.parametrize(
    ("data", "between"),
    [
        (b"3\r\nabc\r\n", True),
        (b"1\r\ne\r\n1\r\nf\r\n", True),
        (b"1;ext\r\nh\r\n", True),
        (b"1\r\ng\r", False),
        (b"2", False),
        (b"2\r\nx", False),
        (b"2\r\n\r\n", False),
        (b"1\r\nh\r\n0\r\n", False),
        (b"0\r\n\r\n", False),
    ],
)
def test_a_reader_knows_when_it_stands_between_two_chunks(data: bytes, *, between: bool) -> None:
    reader, _ = read(OK + b"Transfer-Encoding: chunked\r\n\r\n")
    before = reader.between_chunks

    reader.feed(data)

    assert (before, reader.between_chunks) == (True, between)


STREAM = OK + b"Transfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "pieces",
    [
        (b"1\r\na\r\n2\r\nbc\r\n0\r\n\r\n",),
        (b"1\r\na\r\n", b"2\r\nb", b"c\r\n0\r\n\r\n"),
        (b"1;x\r\na\r\n2\r\nbc\r\n", b"0\r\nT: x\r\n\r\n"),
    ],
)
def test_a_known_head_needs_no_parser_until_something_odd_comes(pieces: tuple[bytes, ...]) -> None:
    reader, _ = read(STREAM, b"0\r\n\r\n")
    reader.begin()
    reader.take_head(STREAM, 200)
    assert b"".join([reader.feed(piece) for piece in pieces]) == b"abc"

    assert (reader.stage, reader.status, reader.reusable) == (ReadStage.COMPLETE, 200, True)
