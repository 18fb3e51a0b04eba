"""HTTP/2 of gateways in the smallest pieces that the protocol has."""

from collections.abc import Callable

import pytest
from hpack import Encoder

from kvmesh.transport.grpc.connection import make_session
from kvmesh.transport.grpc.limits import GrpcLimits
from kvmesh.transport.grpc.session_events import FAILED
from tests.fuzz.grpc_targets import HEAD, PREFACE
from tests.property.bounds.work import assert_linear

LIMITS = GrpcLimits(max_header_bytes=1 << 16)
BLOCK = bytes(Encoder().encode(HEAD))


def frame(kind: int, flags: int, stream: int, payload: bytes) -> bytes:
    head = len(payload).to_bytes(3, "big") + bytes([kind, flags])
    return head + stream.to_bytes(4, "big") + payload


OPEN = PREFACE + frame(1, 4, 1, BLOCK)
SMALL: dict[str, Callable[[int], bytes]] = {
    "a message of one byte a DATA frame": lambda size: (
        frame(0, 0, 1, b"\0" + size.to_bytes(4, "big")) + frame(0, 0, 1, b"x") * (size - 1)
    ),
    "messages without content": lambda size: frame(0, 0, 1, bytes(5 * 100)) * (size // 100),
    "calls": lambda size: b"".join(
        frame(1, 5, 3 + 2 * number, BLOCK) for number in range(size // 10)
    ),
    "a head in CONTINUATION frames of one byte": lambda size: (
        frame(1, 0, 3, b"\0\x01x\x7f" + b"\x80\x7e") + frame(9, 0, 3, b"v") * (size // 10)
    ),
}


@pytest.mark.parametrize("kind", SMALL)
def test_small_frames_cost_as_their_bytes(kind: str) -> None:
    def prepared(size: int) -> Callable[[], object]:
        session = make_session(LIMITS)
        session.receive(OPEN)
        data = SMALL[kind](size)
        return lambda: session.receive(data)

    assert_linear(prepared, 600)


def test_frames_that_come_byte_by_byte_cost_as_their_bytes() -> None:
    def prepared(size: int) -> Callable[[], object]:
        session = make_session(LIMITS)
        session.receive(OPEN)
        data = frame(0, 0, 1, b"\0" + (1 << 14).to_bytes(4, "big") + b"x" * (1 << 13))
        pieces = [data[at : at + 1] for at in range(len(data))][:size]
        return lambda: [session.receive(piece) for piece in pieces]

    assert_linear(prepared, 800)


def test_an_answer_into_a_window_of_one_byte_costs_as_the_bytes_that_ask_for_it() -> None:
    limits = GrpcLimits(max_idle_frames=500)
    session = make_session(limits)
    session.receive(PREFACE.replace(b"\0\0\0\4\0\0\0\0\0", frame(4, 0, 0, b"\0\4\0\0\0\1")))
    session.receive(frame(1, 4, 1, BLOCK))
    session.take()
    session.send(1, [b"y" * 1_000])
    update = frame(8, 0, 1, b"\0\0\0\1")
    asked = sent = 0

    while not any(kind == FAILED for _, kind, _ in session.receive(update)):
        asked += len(update)
        sent += len(session.take())

    assert sent <= asked + 100
    assert asked <= 10 * len(update) * (1_000 + limits.max_idle_frames)
