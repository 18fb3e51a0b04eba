"""What clients of the gRPC port send: nothing raises, cuts change nothing."""

import random
from collections.abc import Callable, Iterator, Sequence
from itertools import product
from typing import Final

from h2.config import H2Configuration
from h2.connection import H2Connection

from kvmesh._native import GrpcSession
from kvmesh.transport.grpc.connection import make_session
from kvmesh.transport.grpc.limits import GrpcLimits
from kvmesh.transport.grpc.session_events import ENDED, MESSAGE, OPENED, Event
from tests.fuzz.http_targets import cut
from tests.fuzz.stories.grpc_frames import build_frames

LIMITS: Final = GrpcLimits(
    max_streams=3,
    max_message_bytes=500,
    max_header_bytes=1000,
    max_idle_frames=20,
    max_early_resets=5,
)
WIDE: Final = GrpcLimits(
    max_streams=64,
    max_message_bytes=20_000,
    max_header_bytes=20_000,
    stream_window_bytes=10_000,
    connection_window_bytes=65_535,
    write_buffer_bytes=1000,
)
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
UNGRANTED: Final = 9_000
"""Bytes for which no window is granted anew: that is done once for all received at once."""
BEGINNINGS: Final = (PREFACE, PREFACE[:24], b"GET / HTTP/1.1\r\n", b"")
HEAD: Final = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/a/B"),
    (":authority", "x"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)


def grpc(data: bytes) -> None:
    """Take frames behind a preface; the session keeps to its bounds."""
    rest, pieces = cut(data)
    whole, cut_up = make_session(LIMITS), make_session(LIMITS)
    assert _logged(whole, [PREFACE, rest]) == _logged(cut_up, [PREFACE, *pieces])


def _logged(session: GrpcSession, pieces: Sequence[bytes]) -> object:
    events = [event for piece in pieces for event in session.receive(piece)]
    assert 0 <= session.open_streams <= WIDE.max_streams
    assert 0 <= session.held_bytes <= WIDE.max_streams * WIDE.max_message_bytes
    return events, session.take()


def grpc_answers(data: bytes) -> None:
    """Take frames and answer as the first bytes say: what is held and queued stays bounded."""
    plan, pieces = data[:3] or b"\0", cut(data)[1]
    session = make_session(LIMITS)
    for piece in (PREFACE, *pieces):
        for event in session.receive(piece):
            _answer(session, plan[event[0] % len(plan)], event)
        session.take()
        session.unblock()
    session.reset_idle()
    session.drain()
    session.receive(b"\0\0\x08\6\1\0\0\0\0kvmesh\0\1")
    session.take()
    assert 0 <= session.open_streams <= LIMITS.max_streams


def grpc_calls(data: bytes) -> None:
    """Take frames that the bytes choose, in pieces as they say, and answer some of them."""
    limits = WIDE if data[:1] >= b"\x80" else LIMITS
    plan, cuts, frames = data[:3] or b"\0", data[3:6].ljust(3, b"\0"), build_frames(data[6:])
    sent, whole = b"".join(frames), make_session(limits)
    _, pieces = cut(cuts + sent)
    silent = [make_session(limits) for _ in range(2)]
    preface = BEGINNINGS[max(0, plan[-1] - 0xFC)]
    said = _logged(silent[0], [preface, sent]), _logged(silent[1], [preface, *pieces])
    assert len(sent) > UNGRANTED or said[0] == said[1]
    for piece in [preface, *(frames if plan[0] & 1 else pieces)]:
        for event in whole.receive(piece):
            _answer(whole, plan[event[0] % len(plan)], event)
        if plan[-1] & 1:
            whole.take()
            whole.unblock()
        assert 0 <= whole.open_streams <= limits.max_streams
    whole.reset_idle()
    whole.drain()


def _answer(session: GrpcSession, plan: int, event: Event) -> None:
    stream, kind, _ = event
    if kind == OPENED and plan & 1:
        session.send(stream, [b"x" * (plan * 7)])
    if kind == OPENED and plan & 2:
        session.hold(stream)
    if kind == MESSAGE and plan & 4:
        session.finish(stream, [b"y" * (plan * 300)], plan % 17, b"ok\n")
    if kind == MESSAGE and plan & 8:
        session.reset(stream, 8)
    if kind == MESSAGE and plan & 16:
        session.block()
    if plan & 32:
        session.grant(stream)
    if kind == ENDED:
        session.finish(stream, (), plan % 3, b"\xc3\xa9")
    if plan & 64:
        session.send(stream, [b"late", b""])
    if plan & 128:
        session.drain()


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {
    "grpc": grpc,
    "grpc_answers": grpc_answers,
    "grpc_calls": grpc_calls,
}


def seeds(target: str) -> Iterator[bytes]:
    """Yield what a client sends: calls, their ends, windows, pings, a head in several frames."""
    if target == "grpc_calls":
        rng = random.Random(4)
        for length in range(10, 410, 8):
            yield rng.randbytes(length)
        for last in range(0xFC, 0x100):
            yield bytes([0x90, 1, last]) + rng.randbytes(60)
        return
    plans = (b"\1\2\3",) if target == "grpc" else (b"\1\5\x29", b"\x42\x34\x18", b"\x83\0\x11")
    for plan, ended in product(plans, (False, True)):
        client = H2Connection(H2Configuration(client_side=True))
        client.initiate_connection()
        client.data_to_send()
        client.send_headers(1, HEAD)
        client.send_data(1, b"\0\0\0\0\3abc\0\0\0\0\0", end_stream=ended)
        client.send_headers(3, [*HEAD, ("x-long", "v" * 200)])
        client.send_data(3, b"\0\0\0\1\0part")
        client.ping(b"12345678")
        client.increment_flow_control_window(1000)
        client.reset_stream(3, 8)
        yield plan + client.data_to_send()
    yield b"\5\20\30" + bytes.fromhex("000002010000000001 8287 000000090400000001".replace(" ", ""))
    client = H2Connection(H2Configuration(client_side=True))
    client.initiate_connection()
    client.data_to_send()
    client.send_headers(1, HEAD)
    called = client.data_to_send()
    yield b"\0\0\0" + called + bytes.fromhex("0000040800000000017fffffff")
    yield b"\0\0\0" + bytes.fromhex("000006040000000000000200000002")
    yield b"\0\0\0" + bytes.fromhex("0000010104000000017f")
    yield b"\0\0\0" + b"\0\0\6\4\0\0\0\0\0\0\4\x7f\xff\xff\xff\0\0\4\x08\0\0\0\0\0\x7f\xff\xff\xff"
