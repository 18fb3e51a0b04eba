import pytest

from kvmesh.transport.http.forward.held_answer import MAX_KEPT_BYTES, HeldAnswer
from kvmesh.transport.http.upstream.response_head import ResponseHead

EVENTS = ((b"content-type", b"text/event-stream"),)


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
