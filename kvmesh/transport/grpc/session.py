"""One HTTP/2 connection without its socket: bytes in, events out; messages in, bytes out."""

from collections.abc import Sequence
from typing import Protocol

from kvmesh.compiled import NATIVE
from kvmesh.transport.grpc.library_session import LibrarySession
from kvmesh.transport.grpc.limits import GrpcLimits
from kvmesh.transport.grpc.session_events import Event


class Session(Protocol):
    """The server's side of one connection. Nothing here raises for what the peer sends.

    A finished stream is open until its answer has gone out and the peer has ended its side.
    `greeted`: the peer has spoken HTTP/2. `drained`: behind
    `drain`, no new stream of the peer is on its way.
    """

    greeted: bool
    drained: bool

    @property
    def open_streams(self) -> int:
        """Return how many streams are not over."""
        ...

    @property
    def held_bytes(self) -> int:
        """Return the bytes of messages that are not whole, and of those that wait to go out."""
        ...

    def receive(self, data: bytes, /) -> Sequence[Event]:
        """Take bytes of the peer, return what they say. After FAILED nothing more is taken."""
        ...

    def send(self, stream_id: int, messages: Sequence[bytes], /) -> int:
        """Queue messages, return the bytes of the stream that wait for flow control."""
        ...

    def finish(
        self, stream_id: int, messages: Sequence[bytes], status: int, text: bytes, /
    ) -> None:
        """Queue the last messages and the trailers; no events of the stream follow."""
        ...

    def reset(self, stream_id: int, code: int, /) -> None:
        """Give the stream up at once; no events of it follow."""
        ...

    def hold(self, stream_id: int, /) -> None:
        """Grant the stream no more window."""
        ...

    def grant(self, stream_id: int, /) -> None:
        """Grant the stream its window again."""
        ...

    def block(self) -> None:
        """Keep data of streams here until `unblock`: the socket takes no more."""
        ...

    def unblock(self) -> Sequence[Event]:
        """Let data of streams go out again; returns RESUMED events."""
        ...

    def drain(self) -> None:
        """Ask the peer to open no more streams; those on their way are still taken."""
        ...

    def calm(self) -> None:
        """Count idle frames and early resets from 0 again; give up what the peer left half closed
        since the last call.
        """
        ...

    def take(self) -> bytes:
        """Return the bytes to send, b"" for none."""
        ...


def make_session(limits: GrpcLimits) -> Session:
    """Return a compiled session where there is a compiled core."""
    if NATIVE is None:
        return LibrarySession(limits)
    session: Session = NATIVE.GrpcSession(
        limits.max_streams,
        limits.max_message_bytes,
        limits.max_header_bytes,
        limits.stream_window_bytes,
        limits.connection_window_bytes,
        limits.write_buffer_bytes,
        limits.max_idle_frames,
        limits.max_early_resets,
    )
    return session
