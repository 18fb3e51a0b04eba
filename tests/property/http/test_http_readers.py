"""Mutated messages into both HTTP readers: nothing raises, and cuts change nothing."""

from itertools import accumulate, pairwise

from hypothesis import given, settings
from hypothesis import strategies as st

from kvmesh._native import take_answer
from kvmesh.core.engines.event_stream import ENDED, new_event_stream
from kvmesh.transport.http.server.limits import HttpLimits
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.server.request_reader import RequestReader
from kvmesh.transport.http.upstream.response_reader import COMPLETE, ResponseReader
from kvmesh.transport.http.wire.problem import Problem
from tests.unit.transport.http.malformed import CORPUS, get, post

LIMITS = HttpLimits(
    max_body_bytes=200, max_header_bytes=500, max_target_bytes=100, max_headers=10, max_pipelined=5
)
SEEDS = [
    get(b"Host: a"),
    get(b"Host: a", b"Connection: upgrade", b"Upgrade: h2c"),
    post(b"Content-Length: 3", body=b"abc"),
    post(b"Transfer-Encoding: chunked", body=b"3;x=y\r\nabc\r\n0\r\nT: x\r\n\r\n"),
    post(b"Expect: 100-continue", b"Content-Length: 3", body=b"abc"),
    *(case.data for case in CORPUS if len(case.data) < 200),
]
RESPONSES = [
    b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nabc",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3\r\nabc\r\n0\r\nT: x\r\n\r\n",
    b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 204 No Content\r\n\r\n",
    b"HTTP/1.0 200 OK\r\n\r\nuntil close",
]
BITS = [b"\r\n", b"\n", b"\r", b"\0", b" ", b":", b"Host: b\r\n", b"0\r\n\r\n", b"chunked", b"\xff"]


@st.composite
def mutated(draw: st.DrawFn, seeds: list[bytes]) -> bytes:
    """Some seeds in a row, with bits inserted, removed or replaced."""
    data = b"".join(draw(st.lists(st.sampled_from(seeds), min_size=1, max_size=3)))
    for _ in range(draw(st.integers(0, 4))):
        at = draw(st.integers(0, len(data)))
        cut = draw(st.integers(0, 3))
        data = data[:at] + draw(st.sampled_from(BITS) | st.binary(max_size=3)) + data[at + cut :]
    return data


def facts(reader: RequestReader) -> list[object]:
    return [
        (item.method, item.target, item.headers, item.body)
        if isinstance(item, Request)
        # llhttp words an error differently where a token was cut
        else (item.status, item.code)
        for item in reader.ready
    ]


WHOLE = [
    post(b"X: y", b"Content-Length: 3", body=b"abc"),
    post(b"Connection: keep-alive", b"Content-Length:  3 ", b"X-A:\ty\xe9", body=b"abc"),
    post(b"Content-Length: 0", b"X-Request-Id: r", b"A: "),
    get(b"Host: a", b"Accept: */*", b"Cookie: a=b; c"),
    b"POST /a?b=c?d HTTP/1.1\r\nhost: a:1\r\ncontent-length: 1\r\n\r\nz",
]
ODD = [*BITS, b"\t", b"?", b"#", b"%", b"Content-Length: 3\r\n", b"Connection: close\r\n", b"\x7f"]


@settings(max_examples=300)
@given(st.sampled_from(WHOLE), st.lists(st.tuples(st.integers(0, 130), st.sampled_from(ODD))))
def test_what_is_taken_whole_is_what_llhttp_reads(
    data: bytes, odd: list[tuple[int, bytes]]
) -> None:
    for at, bits in odd[:3]:
        data = data[:at] + bits + data[at:]
    whole, pieces = RequestReader(LIMITS), RequestReader(LIMITS)

    whole.feed(data)
    for piece in (data[:1], data[1:]):
        pieces.feed(piece)

    assert facts(whole) == facts(pieces)


@given(mutated(SEEDS), st.integers(0, 300), st.integers(0, 300))
def test_requests_are_read_the_same_however_they_are_cut(
    data: bytes, first: int, second: int
) -> None:
    whole, pieces = RequestReader(LIMITS), RequestReader(LIMITS)
    first, second = sorted((min(first, len(data)), min(second, len(data))))

    whole.feed(data)
    for piece in (data[:first], data[first:second], data[second:]):
        if piece:
            pieces.feed(piece)

    assert facts(pieces) == facts(whole)
    problems = [item for item in whole.ready if isinstance(item, Problem)]
    assert not problems or problems == [whole.ready[-1]]
    bodies = sum(len(item.body) for item in whole.ready if isinstance(item, Request))
    assert whole._budget.used >= bodies


@given(mutated(RESPONSES), st.integers(0, 300))
def test_responses_are_read_the_same_however_they_are_cut(data: bytes, cut: int) -> None:
    def read(*pieces: bytes) -> tuple[bytes, object, int] | None:
        reader = ResponseReader()
        body = b""
        for piece in pieces:
            try:
                body += reader.feed(piece) if piece else b""
            except ValueError:
                return None
        return body, reader.stage, reader.status

    assert read(data[:cut], data[cut:]) == read(data)


def chunk(data: bytes, end: bytes, size: str) -> bytes:
    return size.format(len(data)).encode() + end + data + b"\r\n"


EVENT = b'data: {"a":1}\n\n'
chunks = st.builds(
    chunk,
    st.binary(min_size=1, max_size=20)
    | st.sampled_from([EVENT, 2 * EVENT, b"data: [DONE]\n\n", EVENT[:-1], b"\n" + EVENT])
    | st.sampled_from([b"a\r\n", b"5\r\n", b"\r\n0\r\n\r\n"]),
    st.sampled_from([b"\r\n", b"\r\n", b"\r\n", b";x=y\r\n", b"\n", b" \r\n"]),
    st.sampled_from(["{:x}", "{:x}", "{:X}", "{:04x}", "{:x}", "+{:x}", "0x{:x}", "{:d}", "{:x}0"]),
)
HEADS = [
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"HTTP/1.1 200 OK\r\ntransfer-encoding: Chunked\r\n\r\n",
    b"HTTP/1.1 103 Hints\r\nLink: x\r\n\r\nHTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\nConnection: close\r\n\r\n",
    b"HTTP/1.1 200 OK\r\nContent-Length: 9\r\n\r\n",
    b"HTTP/1.1 200 OK\r\n\r\n",
    b"HTTP/1.1 204 No Content\r\nTransfer-Encoding: chunked\r\n\r\n",
]
ENDS = [b"", b"0\r\n\r\n", b"0\r\nT: x\r\n\r\n", b"00\r\n\r\n", b"0;x\r\n\r\n", b"0\r\n\r\nsurplus"]


def passing(reader: ResponseReader, piece: bytes) -> bytes:
    """Return the body in a piece, which may pass by the parser as the chunks of a stream do."""
    taken = new_event_stream().take(piece, reader.unseen) if reader.between_chunks else 0
    if not taken:
        return reader.feed(piece)
    assert isinstance(taken, int)
    by_parser = ResponseReader()
    by_parser.feed(HEADS[0])
    body = by_parser.feed(piece)
    if taken & ENDED:
        assert by_parser.stage is COMPLETE
        reader.take_end()
        reader.stage, reader.reusable = COMPLETE, True
    return body


def taken_head(piece: bytes) -> int:
    """Return where the head ends that `piece` begins with, of a response in chunks; 0: llhttp's."""
    found = take_answer(piece, 1 << 14, 100, 0)
    return found[2] if found is not None and found[3] is None else 0


@given(
    st.sampled_from(HEADS),
    st.lists(chunks, max_size=5),
    st.sampled_from(ENDS),
    st.lists(st.integers(0, 200), max_size=6),
    st.booleans(),
)
def test_whole_chunks_may_pass_by_the_parser_wherever_a_stream_is_cut(
    head: bytes, parts: list[bytes], end: bytes, cuts: list[int], bodiless: bool
) -> None:
    pieces = [head, *parts, end]
    data = b"".join(pieces)
    edges = sorted({0, *accumulate(map(len, pieces)), *(cut for cut in cuts if cut < len(data))})

    def read(pieces: list[bytes], *, shortcut: bool) -> list[object]:
        found: list[object] = []
        reader = ResponseReader()
        for _ in range(2):  # the second response comes on the same connection
            reader.begin(expect_body=not bodiless)
            body = b""
            for piece in pieces:
                if shortcut and not bodiless and reader.fresh and (taken := taken_head(piece)):
                    reader.take_head(piece[:taken], 200)
                    piece = piece[taken:]  # noqa: PLW2901  the rest
                    if not piece:
                        continue
                before = reader.stage
                if before is COMPLETE and reader.fresh:  # ended past the parser: nothing may follow
                    reader.reusable = False
                    continue
                try:
                    body += passing(reader, piece) if shortcut else reader.feed(piece)
                except ValueError:
                    return [*found, "malformed"]
            found += [body, reader.stage, reader.reusable, reader.until_close]
            if not reader.reusable:
                break
        return found

    bytewise = read([data[at : at + 1] for at in range(len(data))], shortcut=False)

    for way in ([data[start:stop] for start, stop in pairwise(edges)], [data]):
        assert read(way, shortcut=True) == bytewise
