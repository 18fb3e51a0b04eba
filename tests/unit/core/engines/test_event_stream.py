from collections.abc import Callable

import pytest

from kvmesh._native import EventStream as CompiledStream
from kvmesh.core.engines.event_stream import DUE, ENDED, TAKEN, EventStream, new_event_stream
from kvmesh.core.engines.sse import Usage

TOKEN = b'data: {"choices":[{"index":0,"delta":{"content":" a"}}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":4}}\n\n'
NO_USAGE = b'data: {"choices":[],"usage":null}\n\n'
DONE = b"data: [DONE]\n\n"

Make = Callable[[], EventStream | CompiledStream]
pytestmark = pytest.mark.parametrize("make", [EventStream, new_event_stream])


def chunk(content: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(content), content)


@pytest.mark.parametrize(
    "data",
    [
        b"",
        TOKEN,
        chunk(TOKEN[:-1]),
        chunk(TOKEN)[:-1],
        chunk(TOKEN) + b"0\r\n\r\n",
        chunk(TOKEN) + b"3a",
        b"%07x\r\n%b\r\n" % (len(TOKEN), TOKEN),
        b"%x;x=y\r\n%b\r\n" % (len(TOKEN), TOKEN),
        b"%x\n%b\r\n" % (len(TOKEN), TOKEN),
        b"%x\r\n%bxx" % (len(TOKEN), TOKEN),
        chunk(b'data: {"error":{}}\n\n'),
        chunk(b"event: x\n" + TOKEN),
        chunk(b": comment\n\n"),
        chunk(b"data: {}\r\n\r\n"),
        chunk(b"data: {}\n\n\n"),
    ],
)
def test_anything_else_has_to_be_fed(data: bytes, make: Make) -> None:
    stream = make()

    assert (stream.take(data, b""), stream.tokens, stream.held) == (0, 0, b"")


def test_nothing_is_taken_behind_a_part_of_an_event(make: Make) -> None:
    stream = make()
    stream.feed(TOKEN[:9])

    taken = stream.take(chunk(TOKEN), b"")
    passed = stream.feed(TOKEN[9:])

    assert (taken, passed, stream.take(chunk(TOKEN), b"")) == (0, TOKEN, TAKEN | DUE)
    assert stream.tokens == 2


def test_usage_is_folded_however_it_comes(make: Make) -> None:
    stream = make()
    more = USAGE.replace(b"9", b"8").replace(b"4", b"7")
    cached = b"""event: x
data: {"usage":{"prompt_tokens_details":{"cached_tokens":3}}}

"""

    seen = []
    for piece in (USAGE, more, cached, USAGE.replace(b"9", b"12"), TOKEN[:-2] + b"\r\n\r\n"):
        if piece == more:
            assert stream.take(chunk(more) + chunk(NO_USAGE + more), b"") == TAKEN | DUE
        else:
            stream.feed(piece)
        seen.append(stream.usage)

    assert seen == [Usage(9, 4), Usage(9, 7), Usage(9, 7, 3), Usage(12, 7, 3), Usage(12, 7, 3)]


@pytest.mark.parametrize("content", [b"", chunk(TOKEN), chunk(DONE), chunk(TOKEN) + chunk(DONE)])
def test_the_last_chunk_is_taken_where_it_may_be(content: bytes, make: Make) -> None:
    stream = make()
    stream.due = 100
    data = content + b"0\r\n\r\n"

    before = stream.take(data, b""), stream.tokens
    assert (before, stream.take(data, b"head")) == ((0, 0), TAKEN | ENDED)
    assert (stream.done, stream.is_complete()) == (DONE in content, DONE in content)


def test_a_stream_says_what_gate_and_scanner_say(make: Make) -> None:
    stream = make()
    error = b'{"error":{"message":"m"}}'

    passed = stream.feed(TOKEN + USAGE + b"data: %b\n\n" % error + b"data: {")

    assert passed.endswith(error + b"\n\n")
    assert (stream.tokens, stream.usage, stream.held) == (2, Usage(9, 4), b"data: {")
    assert (stream.errors, stream.error, stream.done, stream.torn) == (1, error, False, False)
    assert (stream.flush(), stream.flush()) == (b"data: {", b"")
