import pytest

from kvmesh.transport.http.upstream.response_head import (
    MAX_KEPT_BYTES,
    HeldAnswer,
    ResponseHead,
    StreamHead,
)

EVENTS = ((b"content-type", b"text/event-stream"),)

DATED = (
    b"HTTP/1.1 200 OK\r\ndate: Sun, 22 Nov 2026 14:20:12 GMT\r\ntransfer-encoding: chunked\r\n\r\n"
)
PLAIN = b"HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n"


@pytest.mark.parametrize("learnt", [DATED, PLAIN])
def test_a_head_is_known_again_whatever_follows_it(learnt: bytes) -> None:
    known = StreamHead(learnt, ResponseHead(200, ()))

    assert known.match(learnt) == len(learnt)
    assert known.match(learnt + b"1\r\na\r\n") == len(learnt)
    assert known.match(learnt[:-1]) == 0
    assert known.match(learnt.replace(b"chunked", b"gzip")) == 0


def test_the_date_alone_may_differ() -> None:
    known = StreamHead(DATED, ResponseHead(200, ()))

    assert known.match(DATED.replace(b"Sun, 22", b"Mon, 23")) == len(DATED)
    assert known.match(DATED.replace(b"Sun, 22", b"Mon,\r\n2")) == 0
    assert known.match(DATED.replace(b" GMT", b"  GMT")) == 0


def test_a_whole_answer_is_kept_until_its_end() -> None:
    held = HeldAnswer(ResponseHead(200, ()))

    assert not held.take(b'{"some"')
    assert not held.take(b':"\n\njson"}')

    assert held.body() == b'{"some":"\n\njson"}'
    assert held.body() == b'{"some":"\n\njson"}'


def test_a_long_answer_is_passed_on() -> None:
    held = HeldAnswer(ResponseHead(200, ()))

    assert not held.take(b"x" * MAX_KEPT_BYTES)
    assert len(held.take(b"x")) == MAX_KEPT_BYTES + 1


@pytest.mark.parametrize("end", [b"\n\n", b"\r\n\r\n", b"\r\r"])
def test_a_stream_is_kept_until_its_first_event_is_whole(end: bytes) -> None:
    event = b"data: {}" + end
    held = HeldAnswer(ResponseHead(200, EVENTS))

    taken = [held.take(event[place : place + 1]) for place in range(len(event))]

    assert taken == [b""] * (len(event) - 1) + [event]
    assert held.body() == event


def test_nothing_came_yet() -> None:
    assert HeldAnswer(ResponseHead(200, EVENTS)).body() == b""
