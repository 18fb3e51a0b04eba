"""Tests of a body that is put together while it arrives."""

from kvmesh.transport.http.server.arriving_body import CROWDED, ArrivingBody


def test_pieces_make_one_body_that_is_counted_once() -> None:
    body = ArrivingBody(b'{"a": [1,')
    assert body.count().values == 3

    body.add(b" 2, ")
    body.add(b"3]}")

    assert (body.count().values, body.count().numbers) == (3, 3)
    assert body.take() == b'{"a": [1, 2, 3]}'


def test_many_pieces_between_two_questions_are_a_crowd() -> None:
    body = ArrivingBody(b"x")
    for _ in range(CROWDED):
        body.add(b"x")

    assert body.crowded()
    assert not body.crowded()
