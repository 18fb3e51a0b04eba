import pytest

from kvmesh._native import match_dated
from kvmesh.transport.http.upstream.response_head import (
    MAX_KEPT_BYTES,
    HeldAnswer,
    ResponseHead,
    StreamHead,
)
from tests.reference.transport import heads

DATED = (
    b"HTTP/1.1 200 OK\r\ndate: Sun, 22 Nov 2026 14:20:12 GMT\r\ntransfer-encoding: chunked\r\n\r\n"
)
PLAIN = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


def found(known: StreamHead, data: bytes) -> int:
    """Return where the compiled search and its model say that the body begins."""
    at = heads.match_dated(data, known.before, known.after)
    assert match_dated(data, known.before, known.after) == at
    return at


@pytest.mark.parametrize("learnt", [DATED, PLAIN])
def test_a_head_is_known_again_whatever_follows_it(learnt: bytes) -> None:
    known = StreamHead(learnt, ResponseHead(200, ()))

    assert found(known, learnt) == len(learnt)
    assert found(known, learnt + b"1\r\na\r\n") == len(learnt)
    assert found(known, learnt[:-1]) == 0
    assert found(known, b"") == 0
    assert found(known, learnt.replace(b"chunked", b"gzip")) == 0


def test_the_date_alone_may_differ() -> None:
    known = StreamHead(DATED, ResponseHead(200, ()))

    assert found(known, DATED.replace(b"Sun, 22", b"Mon, 23")) == len(DATED)
    assert found(known, DATED.replace(b"Sun, 22 Nov", b"mON, 23 dec")) == len(DATED)
    for place in range(DATED.index(b"Sun"), DATED.index(b" GMT") + 4):
        for odd in (b"\0", b"\r", b"@", b"[", b"{", b"/", b";", b"x", b"7", b" ", b"\xff"):
            found(known, DATED[:place] + odd + DATED[place + 1 :])
    assert found(known, DATED.replace(b"Sun, 22", b"Mon,\r\n2")) == 0
    assert found(known, DATED.replace(b" GMT", b"  GMT")) == 0


def test_a_whole_answer_is_kept_until_its_end() -> None:
    held = HeldAnswer()

    assert not held.take(b'{"some"')
    assert not held.take(b':"\n\njson"}')

    assert held.body() == b'{"some":"\n\njson"}'
    assert held.body() == b'{"some":"\n\njson"}'


def test_a_long_answer_is_passed_on() -> None:
    held = HeldAnswer()

    assert not held.take(b"x" * MAX_KEPT_BYTES)
    assert len(held.take(b"x")) == MAX_KEPT_BYTES + 1


def test_nothing_came_yet() -> None:
    assert HeldAnswer().body() == b""
