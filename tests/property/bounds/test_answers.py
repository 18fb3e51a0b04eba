"""What engines answer, byte by byte and at ten times each bound: work grows as the bytes do."""

from collections.abc import Callable

import pytest

from kvmesh._native import EventStream as CompiledStream
from kvmesh.core.engines.event_stream import (
    MAX_EVENT_BYTES,
    MAX_HELD_BYTES,
    EventStream,
    new_event_stream,
)
from kvmesh.core.engines.sse import find_usage
from kvmesh.transport.http.upstream.response_reader import ReadStage, ResponseReader
from kvmesh.transport.http.wire.headers import MAX_FRAMING_BYTES
from tests.property.bounds.work import assert_linear

STREAMS = pytest.mark.parametrize("new", [EventStream, new_event_stream])
NewStream = Callable[[], EventStream | CompiledStream]
CHUNKED = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
)
DONE = b"e\r\ndata: [DONE]\n\n\r\n"


def one_by_one(feed: Callable[[bytes], object], data: bytes) -> Callable[[], None]:
    pieces = [data[at : at + 1] for at in range(len(data))]

    def work() -> None:
        for piece in pieces:
            feed(piece)

    return work


LINES = {
    "one long event": lambda size: b"data: {" + b"x" * size,
    "one long event of many lines": lambda size: b"data: x\n" * (size // 8),
    "lines that end in CR": lambda size: b"data: x\r" * (size // 8),
    "whole events": lambda size: b"data: {}\n\n" * (size // 10),
    "blank lines": lambda size: b"\n" * size,
}


@STREAMS
@pytest.mark.parametrize("kind", LINES)
def test_an_event_that_comes_byte_by_byte_costs_as_its_bytes(new: NewStream, kind: str) -> None:
    assert_linear(lambda size: one_by_one(new().feed, LINES[kind](size)), 6_000)


@STREAMS
def test_an_event_of_ten_times_the_bound_is_passed_on_and_counted_once(new: NewStream) -> None:
    stream = new()
    piece = b"x" * (MAX_HELD_BYTES // 4)
    passed = stream.feed(b"data: {")
    held = 0

    for _ in range(10 * MAX_EVENT_BYTES // len(piece)):
        passed += stream.feed(piece)
        held = max(held, len(stream.held))
    passed += stream.feed(b"\n\n")

    assert held <= MAX_HELD_BYTES
    assert len(passed) == len(b"data: {\n\n") + 10 * MAX_EVENT_BYTES
    assert stream.tokens == 1


WORDS = [
    b'"usage":null,',
    b'"usage":null,"x":"\\n",',
    b'"error":null,',
    b'_reason":null,',
    b'"name":',
    b'"n"_r"u',
    b"[" * 13,
    b"9" * 13,
]


@STREAMS
@pytest.mark.parametrize("word", WORDS)
def test_a_word_said_many_times_in_an_event_costs_as_its_bytes(new: NewStream, word: bytes) -> None:
    def make(size: int) -> Callable[[], object]:
        event = b"data: {" + word * (size // len(word)) + b"}\n\n"
        return lambda: new().feed(event)

    assert_linear(make, 100_000)


@pytest.mark.parametrize("number", ["1" + "0" * 25, "1e400", "9" * 5_000, "-1", "1" + "0" * 50_000])
def test_usage_of_any_size_is_none_or_within_bounds(number: str) -> None:
    assert find_usage(b'{"usage":{"prompt_tokens":%b}}' % number.encode()) is None


def reading(*pieces: bytes) -> ResponseReader:
    reader = ResponseReader()
    for piece in pieces:
        reader.feed(piece)
    return reader


HEADS = {
    "a head of one long field": b"HTTP/1.1 200 OK\r\nx: %b\r\n",
    "a long name of a field": b"HTTP/1.1 200 OK\r\n%b: x\r\n",
    "a long reason": b"HTTP/1.1 200 %b\r\n",
}


@pytest.mark.parametrize("kind", HEADS)
def test_a_head_that_comes_byte_by_byte_costs_as_its_bytes(kind: str) -> None:
    def make(size: int) -> Callable[[], object]:
        return one_by_one(ResponseReader().feed, HEADS[kind] % (b"x" * size))

    assert_linear(make, 10_000)


@pytest.mark.parametrize(
    "field", [b"x: y\r\n", b"x" * 200_000, b"x: " + b"y" * 200_000, b"HTTP/1.1 103 H\r\n\r\n"]
)
def test_a_head_of_ten_times_the_bound_is_refused(field: bytes) -> None:
    head = field if field.startswith(b"HTTP") else b"HTTP/1.1 200 OK\r\n" + field
    data = (head + field * (10 * 131_072 // len(field)))[: 10 * 131_072]
    reader = ResponseReader()

    def read_all() -> None:
        for at in range(0, len(data), 4_096):
            reader.feed(data[at : at + 4_096])

    with pytest.raises(ValueError, match=r"head exceeds|malformed"):
        read_all()


ENDLESS = {
    "trailers": (DONE + b"0\r\n", b"t: x\r\n"),
    "one trailer": (DONE + b"0\r\nt: ", b"xxxx"),
    "a chunk's extension": (DONE + b"5;", b"aaaa"),
    "a chunk's size": (DONE, b"0000"),
}


@pytest.mark.parametrize("size", [1, 16, 4_096, 10 * MAX_FRAMING_BYTES])
@pytest.mark.parametrize("kind", ENDLESS)
def test_framing_without_content_is_bounded(kind: str, size: int) -> None:
    before, more = ENDLESS[kind]
    data = more * (10 * MAX_FRAMING_BYTES // len(more))
    reader = reading(CHUNKED, before)
    taken = 0

    try:
        while taken < len(data) and reader.stage is not ReadStage.COMPLETE:
            reader.feed(data[taken : taken + size])
            taken += size
    except ValueError as error:
        assert "framing without content" in str(error) or "malformed" in str(error)  # noqa: PT017
    else:
        assert reader.stage is ReadStage.COMPLETE
        assert not reader.reusable

    assert taken <= MAX_FRAMING_BYTES + size


def test_trailers_that_end_where_they_began_leave_the_connection_usable() -> None:
    reader = reading(CHUNKED, DONE + b"0\r\nt: x\r\nu: y\r\n\r\n")

    assert reader.stage is ReadStage.COMPLETE
    assert reader.reusable


def test_content_between_framing_begins_the_count_anew() -> None:
    reader = reading(CHUNKED)

    for _ in range(20):
        assert reader.feed(b"1;" + b"a" * (MAX_FRAMING_BYTES // 2)) == b""
        assert reader.feed(b"\r\nx\r\n") == b"x"


def test_small_chunks_cost_as_their_bytes() -> None:
    def make(size: int) -> Callable[[], object]:
        data = b"1\r\n:\r\n" * (size // 6)
        reader = reading(CHUNKED)
        return lambda: reader.feed(data)

    assert_linear(make, 20_000)
