import json

from kvmesh_lab.conformance.bodies import chat_body, cut, noise, sse_body


def test_a_chat_has_exactly_the_bytes_that_are_asked_for() -> None:
    for size in (600, 62_000, 65_537):
        body = chat_body("m", size, seed=size)

        assert len(body) == size
        assert json.loads(body)["messages"][0]["role"] == "user"


def test_a_chat_that_cannot_be_so_small_is_as_small_as_it_can_be() -> None:
    assert json.loads(chat_body("m", 1))["model"] == "m"


def test_no_two_pieces_of_a_chat_are_alike() -> None:
    pieces = cut(chat_body("m", 300_000, seed=1), 1000)

    assert len(set(pieces)) == len(pieces)


def test_the_same_seed_makes_the_same_bytes_and_another_does_not() -> None:
    assert chat_body("m", 5000, seed=1) == chat_body("m", 5000, seed=1)
    assert chat_body("m", 5000, seed=1) != chat_body("m", 5000, seed=2)
    assert sse_body(3, seed=1) != sse_body(3, seed=2)
    assert noise(10, 1) != noise(10, 2)
