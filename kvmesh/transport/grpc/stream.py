"""One call of a gRPC client: its messages in, ours out."""

from collections.abc import Callable
from typing import Protocol
from urllib.parse import quote

from kvmesh._native import GrpcSession
from kvmesh.transport.http.wire.headers import Header, Headers

_MAX_TEXT = 1024


def ignore(_: object = None, /) -> None:
    """Do nothing: a callback that nobody set."""


class GrpcStream(Protocol):
    """A bidirectional stream as its handler sees it. Not safe from another thread.

    `headers` are the call's metadata, lower case, without pseudo headers. After `finish`, or once
    `on_reset` was called, nothing else is called and what is sent is dropped.
    """

    path: str
    headers: Headers
    peer: str
    on_message: Callable[[bytes], None]
    """One whole message, without its prefix of 5 bytes."""
    on_half_close: Callable[[], None]
    """The client sends nothing else; it may still be answered."""
    on_reset: Callable[[int], None]
    """The stream is gone, once at most: an HTTP/2 error code, of the client's RST_STREAM (CANCEL,
    mostly), CONNECT_ERROR where the connection was lost or cut."""
    on_resume: Callable[[], None]
    """What was queued has gone out, down to a quarter of the bound."""

    def send(self, *messages: bytes) -> bool:
        """Queue messages; False: so many bytes wait for flow control that reading should pause."""
        ...

    def finish(self, *messages: bytes, status: int = 0, text: str = "") -> None:
        """Queue the last messages and the trailers with the gRPC `status`.

        All that this turn of the event loop sends, trailers included, leaves in one write, as far
        as flow control allows.
        """
        ...

    def pause_reading(self) -> None:
        """Grant no more window: what is on its way, one window at most, is still delivered."""
        ...

    def resume_reading(self) -> None:
        """Grant window again."""
        ...


class Outlet(Protocol):
    """The connection, as a stream needs it."""

    session: GrpcSession
    write_buffer_bytes: int

    def flush_soon(self) -> None:
        """Write what the session has, at the end of this turn of the loop."""
        ...

    def forget(self, stream_id: int) -> None:
        """Deliver nothing more to the stream."""
        ...


class Stream:
    """A `GrpcStream` of a connection."""

    __slots__ = (
        "_id", "_outlet", "headers", "on_half_close", "on_message", "on_reset",
        "on_resume", "over", "path", "peer",
    )  # fmt: skip

    def __init__(
        self, outlet: Outlet, stream_id: int, path: str, headers: list[Header], peer: str
    ) -> None:
        self._outlet = outlet
        self._id = stream_id
        self.path = path
        self.headers: Headers = headers
        self.peer = peer
        self.on_message: Callable[[bytes], None] = ignore
        self.on_half_close: Callable[[], None] = ignore
        self.on_reset: Callable[[int], None] = ignore
        self.on_resume: Callable[[], None] = ignore
        self.over = False

    def send(self, *messages: bytes) -> bool:
        """Queue messages; False: pause."""
        if self.over:
            return True
        outlet = self._outlet
        waiting = outlet.session.send(self._id, messages)
        outlet.flush_soon()
        return waiting <= outlet.write_buffer_bytes

    def finish(self, *messages: bytes, status: int = 0, text: str = "") -> None:
        """Queue the end; does nothing the second time."""
        if self.over:
            return
        self.over = True
        outlet = self._outlet
        outlet.forget(self._id)
        outlet.session.finish(self._id, messages, status, encode_text(text) if text else b"")
        outlet.flush_soon()

    def pause_reading(self) -> None:
        """Grant no more window."""
        if not self.over:
            self._outlet.session.hold(self._id)

    def resume_reading(self) -> None:
        """Grant window again."""
        if not self.over:
            self._outlet.session.grant(self._id)
            self._outlet.flush_soon()


def encode_text(text: str) -> bytes:
    """Return `text` as `grpc-message` carries it: percent-encoded, shortened."""
    return quote(
        text[:_MAX_TEXT], safe=" !\"#$&'()*+,-./:;<=>?@[\\]^_`{|}~", errors="replace"
    ).encode()
