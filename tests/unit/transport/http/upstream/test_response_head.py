from kvmesh.transport.http.upstream.response_head import (
    MAX_KEPT_BYTES,
    HeldAnswer,
)


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
