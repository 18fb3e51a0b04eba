import pytest

from kvmesh.transport.http.forward.plan import QUIET, WAIT, Wait
from kvmesh.transport.http.forward.signs import (
    early_head,
    is_sign_of_life,
    late_headers,
    sign_of_life,
)

CHAT, MESSAGES = "/v1/chat/completions", "/v1/messages"


@pytest.mark.parametrize(
    ("told", "words", "most"),
    [
        ((12.2, 118.0), b", about 13 s, at most 118 s", b"118"),
        ((118.5, 118.1), b", at most 119 s", b"119"),
        ((0.0, 0.1), b", about 0 s, at most 1 s", b"1"),
    ],
)
def test_who_is_held_is_told_how_long_never_less_than_it_may_be(
    told: tuple[float, float], words: bytes, most: bytes
) -> None:
    wait = Wait(lambda: told, ((b"x-kvmesh-router", b"r1"),))
    ping = b'event: ping\ndata: {"type":"ping"}\n'

    assert sign_of_life(wait, CHAT) == b": waiting%b\n\n" % words
    assert sign_of_life(wait, MESSAGES) == b": waiting%b\n%b\n" % (words, ping)
    assert early_head(wait) == (
        (b"content-type", b"text/event-stream"),
        (b"x-accel-buffering", b"no"),
        (b"x-kvmesh-router", b"r1"),
        (b"x-kvmesh-wait-s", most),
    )


@pytest.mark.parametrize("wait", [WAIT, QUIET])
def test_of_a_wait_that_nobody_can_foretell_nothing_is_told(wait: Wait) -> None:
    assert sign_of_life(wait, CHAT) == b": waiting\n\n"
    assert [name for name, _ in early_head(wait)] == [b"content-type", b"x-accel-buffering"]


@pytest.mark.parametrize("path", [CHAT, MESSAGES])
def test_signs_of_life_are_told_from_events(path: str) -> None:
    signs = sign_of_life(WAIT, path) + late_headers(((b"x-kvmesh-worker", b"w"), (b"a", b"b")))

    assert signs.endswith(b": x-kvmesh-worker: w\n\n")
    assert is_sign_of_life(signs)
    assert not is_sign_of_life(signs + b'data: {"a":1}\n\n')
    assert not is_sign_of_life(b"event: pong\n\n")
    assert not is_sign_of_life(b": cut")
    assert late_headers(((b"a", b"b"), (b"x-kvmesh-wait-s", b"5"))) == b""
