"""The compiled event stream against the pure one, piece by piece, chunked and not."""

from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh._native import EventStream as CompiledStream
from kvmesh.core.engines.event_stream import (
    DUE,
    MAX_HELD_BYTES,
    TAKEN,
    EventStream,
    new_event_stream,
)
from tests.property.engines.test_sse import streams

CHUNK = b"a\r\ndata: {}\n\n\r\n"
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":3,"completion_tokens":4}}\n\n'
PIECES = [
    USAGE,
    b'data: {"choices":[{"delta":{"content":"a"}}]}\n\n',
    b'data: {"a":1}\n\ndata: {"b":2}\n\n',
    b'data: {"choices":[],"usage":null}\n\n',
    b'data: {"choices":["\\n"],"usage": null}\n\n',
    b'data: {"usage":null,"usage":{"prompt_tokens":3}}\n\n',
    b'data: {"choices":[{"delta":{},"finish_reason":"stop"}],"usage":null}\n\n',
    b'data: {"choices":[{"delta":{"tool_calls":[{"function":{"name":"f"}}]}}]}\n\n',
    b'data: {"choices":[{"finish_reason":null,"stop_reason": "x"}]}\n\n',
    b'data: {"name":1,"_reason":null,"_reason":',
    b'data: {"error":{"message":"m"}}\n\n',
    b'event: error\ndata: {"x":1}\n\n',
    b"data: [DONE]\n\n",
    b'data: {"a":1}\n\ndata: [DONE]\n\n',
    b": comment\n\n",
    b"\n",
    b"\n\n\n",
    b"data: {",
    b'"x":1}\n',
    b'data: {"a":1}\r\n\r\n',
    b"data: \r",
    b"",
    b"\xff\0",
]
pieces = st.sampled_from(PIECES) | st.binary(max_size=6)
sizes = st.sampled_from(
    ["{:x}"] * 8 + ["{:X}", "{:06x}", "{:07x}", "+{:x}", "{:x} ", "{:x};a=b", "{:x}0"]
)
ends = st.sampled_from([b"\r\n"] * 8 + [b"\n", b"", b"\r", b"\r\n\r\n"])


@st.composite
def chunks(draw: st.DrawFn) -> bytes:
    """Chunks of HTTP, most of them plain."""
    data = b""
    for _ in range(draw(st.integers(1, 3))):
        content = b"".join(draw(st.lists(st.sampled_from(PIECES), min_size=1, max_size=2)))
        line = draw(sizes).format(len(content)).encode()
        data += line + draw(ends) + content + draw(ends)
    return data + draw(st.sampled_from([b"", b"", b"0\r\n\r\n", b"0\r\n"]))


def facts(stream: EventStream | CompiledStream) -> tuple[object, ...]:
    return (
        stream.tokens,
        stream.done,
        stream.reasoned,
        stream.errors,
        stream.error,
        stream.usage,
        stream.held,
        stream.torn,
        stream.is_complete(),
    )


def both() -> tuple[EventStream, CompiledStream]:
    return EventStream(), new_event_stream()


@given(st.lists(st.tuples(st.booleans(), pieces, chunks()), max_size=12), st.integers(1, 4))
def test_whatever_comes_is_read_and_held_back_alike(
    script: list[tuple[bool, bytes, bytes]], due: int
) -> None:
    pure, native = both()
    pure.due = native.due = due

    for chunked, piece, data in script:
        if chunked:
            may_end = len(piece) % 2
            assert native.take(data, may_end) == pure.take(data, may_end)
        else:
            assert native.feed(piece) == pure.feed(piece)
        assert facts(native) == facts(pure)

    assert native.flush() == pure.flush()
    assert facts(native) == facts(pure)


@given(streams(), st.lists(st.integers(0, 300), max_size=6))
def test_streams_cut_anywhere_are_read_alike(stream: bytes, cuts: list[int]) -> None:
    pure, native = both()
    edges = sorted({0, len(stream), *(cut for cut in cuts if cut < len(stream))})

    for start, stop in pairwise(edges):
        assert native.feed(stream[start:stop]) == pure.feed(stream[start:stop])
        assert facts(native) == facts(pure)


@pytest.mark.parametrize("over", [0, 1])
def test_an_event_too_long_to_hold_passes_in_parts(over: int) -> None:
    pure, native = both()
    script = [b"data: {", b"x" * (MAX_HELD_BYTES - 7 + over), b"y", b"\n\n", b"data: {}\n\n"]

    for piece in script:
        assert native.feed(piece) == pure.feed(piece)
        assert native.take(CHUNK, 0) == pure.take(CHUNK, 0)
        assert facts(native) == facts(pure)


def test_a_whole_piece_passes_uncopied() -> None:
    for stream in both():
        assert stream.feed(PIECES[0]) is PIECES[0]
        assert stream.take(CHUNK * 2, 0) == TAKEN | DUE
        assert stream.tokens == 3


def test_misuse_is_an_error_and_breaks_nothing() -> None:
    made: Any = new_event_stream()
    kind: Any = CompiledStream

    for call in (kind, lambda: kind(1), lambda: kind(make=1), lambda: made.feed("a")):
        with pytest.raises(TypeError):
            call()
    for wrong in (None, bytearray(b"a"), 1):
        with pytest.raises(TypeError):
            made.take(wrong, 0)
    for few in ((), (b"",), (b"", 0, 0)):
        with pytest.raises(TypeError):
            made.take(*few)
    with pytest.raises(ZeroDivisionError):
        made.take(b"", Untold())
    with pytest.raises(TypeError):
        made.due = "many"
    for make, piece in ((1, b"a\r"), (object, b"a\r"), (object, b"data: x\n\n")):
        with pytest.raises((TypeError, AttributeError)):
            kind(make, None, None).feed(piece)
    unable = kind(EventStream, lambda *_: 1 // 0, None)
    unable.feed(USAGE)
    with pytest.raises(ZeroDivisionError):
        _ = unable.usage
    assert unable.usage is None
    assert (made.tokens, made.feed(PIECES[0])) == (0, PIECES[0])


class Untold:
    """Neither true nor false."""

    def __bool__(self) -> bool:
        return bool(1 // 0)


class _Hostile:
    """A twin that calls back into the stream it stands for."""

    stream: Any = None
    tokens = 5

    def take_event(self, block: bytes, usage: object) -> None:  # noqa: ARG002
        self.stream.feed(b"data: {}\n\nrest")
        self.stream.feed(b"x" * (MAX_HELD_BYTES + 1))

    def resume(self, held: bytes, complete: bool, *_: object) -> None:  # noqa: ARG002  as the pure one
        self.stream.feed(b"a\r")

    def feed(self, data: bytes) -> bytes:  # noqa: ARG002
        return b""


def test_a_twin_that_calls_back_crashes_nothing() -> None:
    hostile = _Hostile()
    kind: Any = CompiledStream

    def find(data: bytes, before: object) -> object:
        del before
        stream.feed(data + b"\n\n")
        return stream.usage

    hostile.stream = stream = kind(lambda: hostile, find, None)

    with pytest.raises(RecursionError):
        stream.feed(USAGE + USAGE)
    with pytest.raises(RecursionError):
        stream.feed(b"event: x\n\n")
