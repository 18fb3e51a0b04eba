from collections.abc import Callable

import pytest

from kvmesh.transport.grpc.connection import make_session
from kvmesh.transport.grpc.limits import GrpcLimits
from kvmesh.transport.grpc.stream import Stream, encode_text
from tests.unit.transport.grpc.client import Client


class Outlet:
    """A connection without a socket."""

    def __init__(self) -> None:
        self.session = make_session(GrpcLimits())
        self.write_buffer_bytes = 1000
        self.flushes = 0
        self.forgotten: list[int] = []

    def flush_soon(self) -> None:
        self.flushes += 1

    def forget(self, stream_id: int) -> None:
        self.forgotten.append(stream_id)


@pytest.fixture
def outlet() -> Outlet:
    return Outlet()


@pytest.fixture
def client(outlet: Outlet) -> Client:
    return Client(outlet.session, window=5_000)


@pytest.fixture
def stream(outlet: Outlet, client: Client) -> Stream:
    stream_id = client.call(b"x")
    client.exchange()
    return Stream(outlet, stream_id, "/p", [], "127.0.0.1")


def test_a_sender_is_told_to_pause_when_much_waits(stream: Stream) -> None:
    assert stream.send(b"a" * 4_000) is True
    assert stream.send(b"b" * 1_500) is True
    assert stream.send(b"c" * 1_500) is False


def test_after_its_end_a_stream_sends_nothing(
    stream: Stream, outlet: Outlet, client: Client
) -> None:
    stream.finish(b"last", status=5, text="nothing at 100 % of the places")
    client.exchange()
    flushes = outlet.flushes

    ends: list[Callable[[], object]] = [
        lambda: stream.send(b"late"),
        lambda: stream.finish(b"again"),
        stream.pause_reading,
        stream.resume_reading,
    ]
    for end in ends:
        end()

    assert outlet.flushes == flushes
    assert outlet.forgotten == [1]
    assert outlet.session.take() == b""
    assert client.messages == {1: [b"last"]}
    assert client.heads[1]["grpc-message"] == "nothing at 100 %25 of the places"


def test_texts_are_encoded_and_shortened() -> None:
    assert encode_text("grüße\n\U0001f600") == b"gr%C3%BC%C3%9Fe%0A%F0%9F%98%80"
    assert len(encode_text("x" * 10_000)) == 1024
    assert encode_text("\ud800") == b"?"
