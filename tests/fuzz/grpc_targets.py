"""What clients of the gRPC port send, by both sessions: nothing raises, cuts change nothing."""

from collections.abc import Callable, Iterator, Sequence
from typing import Final

from h2.config import H2Configuration
from h2.connection import H2Connection

from kvmesh.compiled import NATIVE
from kvmesh.transport.grpc.library_session import LibrarySession
from kvmesh.transport.grpc.limits import GrpcLimits
from kvmesh.transport.grpc.session import Session, make_session
from tests.fuzz.http_targets import cut

LIMITS: Final = GrpcLimits(
    max_streams=3,
    max_message_bytes=500,
    max_header_bytes=1000,
    max_idle_frames=20,
    max_early_resets=5,
)
PREFACE: Final = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\4\0\0\0\0\0"
HEAD: Final = (
    (":method", "POST"),
    (":scheme", "http"),
    (":path", "/a/B"),
    (":authority", "x"),
    ("content-type", "application/grpc"),
    ("te", "trailers"),
)


def grpc(data: bytes) -> None:
    """Take frames behind a preface; those of the sessions that are there keep to their bounds."""
    rest, pieces = cut(data)
    makers: list[Callable[[GrpcLimits], Session]] = [LibrarySession]
    if NATIVE is not None:
        makers.append(make_session)
    for make in makers:
        assert _said(make(LIMITS), [PREFACE, rest]) == _said(make(LIMITS), [PREFACE, *pieces])


def _said(session: Session, pieces: Sequence[bytes]) -> object:
    events = [event for piece in pieces for event in session.receive(piece)]
    assert 0 <= session.open_streams <= LIMITS.max_streams
    assert 0 <= session.held_bytes <= LIMITS.max_streams * LIMITS.max_message_bytes
    return events, session.take()


TARGETS: Final[dict[str, Callable[[bytes], None]]] = {"grpc": grpc}


def seeds(target: str) -> Iterator[bytes]:
    """Yield what a client sends: calls, their ends, windows, pings, a head in several frames."""
    del target
    for ended in (False, True):
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
        yield b"\1\2\3" + client.data_to_send()
    yield b"\5\20\30" + bytes.fromhex("000002010000000001 8287 000000090400000001".replace(" ", ""))
    yield b"\0\0\0" + b"\0\0\6\4\0\0\0\0\0\0\4\x7f\xff\xff\xff\0\0\4\x08\0\0\0\0\0\x7f\xff\xff\xff"
