"""One client's connection: its socket, its session, its streams and its deadlines."""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final, Protocol, cast

from kvmesh._native import GrpcSession
from kvmesh.observe import get_logger
from kvmesh.transport.grpc.limits import GrpcLimits
from kvmesh.transport.grpc.session_events import (
    BROKEN,
    CONNECT_ERROR,
    ENDED,
    FAILED,
    INTERNAL,
    MESSAGE,
    OPENED,
    PROTOCOL_ERROR,
    RESET,
    RESUMED,
    UNIMPLEMENTED,
    Event,
)
from kvmesh.transport.grpc.stream import GrpcStream, Stream, encode_text
from kvmesh.transport.http.wire.deadlines import NEVER, DeadlineWheel
from kvmesh.transport.http.wire.headers import Header


def make_session(limits: GrpcLimits) -> GrpcSession:
    """Return a session that keeps to these limits."""
    return GrpcSession(
        limits.max_streams,
        limits.max_message_bytes,
        limits.max_header_bytes,
        limits.stream_window_bytes,
        limits.connection_window_bytes,
        limits.write_buffer_bytes,
        limits.max_idle_frames,
        limits.max_early_resets,
    )


Routes = Mapping[str, Callable[[GrpcStream], None]]
_CALM_S: Final = 10.0
_GRPC: Final = b"application/grpc"
_WRITE_BYTES: Final = 1 << 20
"""What waits in the socket's buffer before all streams of the connection are held back."""


class Shared(Protocol):
    """What the connections of one server share."""

    routes: Routes
    limits: GrpcLimits
    wheel: DeadlineWheel
    connections: "set[Connection]"
    draining: bool
    accepted: int
    refused: int
    streams: int
    messages: int
    resets: int
    protocol_errors: int
    held_bytes: int

    def relieve(self) -> None:
        """Cut the connection that holds most of messages that are not whole."""
        ...

    def report(self, error: Exception, path: str) -> None:
        """Log and count an error of ours."""
        ...

    def gone(self) -> None:
        """A connection has been lost."""
        ...


class Connection(asyncio.Protocol):
    """Feeds a session, hands its events to streams, writes what they answer: once a turn."""

    __slots__ = (
        "_busy",
        "_flushing",
        "_idle_since_s",
        "_leaving",
        "_paused",
        "_peer",
        "_reset_idle_at_s",
        "_shared",
        "_streams",
        "_transport",
        "deadline_s",
        "held_bytes",
        "peer",
        "session",
        "spoke",
        "write_buffer_bytes",
    )  # fmt: skip

    def __init__(self, shared: Shared) -> None:
        self._shared = shared
        self.session = make_session(shared.limits)
        self.write_buffer_bytes = shared.limits.write_buffer_bytes
        self._streams: dict[int, Stream] = {}
        self.held_bytes = 0
        self._busy = False
        self._flushing = False
        self._paused = False
        self.peer: str = ""
        self._leaving = False
        self._reset_idle_at_s = self._idle_since_s = 0.0
        self.deadline_s = NEVER
        self.spoke = -1

    @property
    def open_streams(self) -> int:
        """Return how many streams are open, those included whose answer is on its way."""
        return self.session.open_streams

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the connection, or refuse it when there are too many."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_WRITE_BYTES)
        shared = self._shared
        shared.accepted += 1
        peer = transport.get_extra_info("peername")
        self.peer = str(cast("tuple[object, ...]", peer)[0]) if isinstance(peer, tuple) else ""
        refused = shared.draining or len(shared.connections) >= shared.limits.max_connections
        shared.connections.add(self)
        shared.wheel.add(self)
        now_s = shared.wheel.now_s
        self.deadline_s = now_s + shared.limits.preface_timeout_s
        self._idle_since_s = now_s
        self._reset_idle_at_s = now_s + _CALM_S
        if refused:
            shared.refused += 1
            self._transport.abort()
            return
        self._flush()

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell the streams, and let go of everything."""
        del exc
        shared = self._shared
        shared.wheel.discard(self)
        shared.connections.discard(self)
        self._lose_streams(CONNECT_ERROR)
        self._hold(0)
        shared.gone()

    def data_received(self, data: bytes) -> None:
        """Feed the session; what its events cause leaves in one write."""
        self._busy = True
        try:
            self._dispatch(self.session.receive(data))
        except Exception as error:  # noqa: BLE001  the connection's edge: the others go on
            self.crash(error)
        finally:
            self._busy = False
        self._flush()
        self._hold(self.session.held_bytes)

    def eof_received(self) -> bool:
        """Take the client's FIN: it reads nothing any more either."""
        return False

    def pause_writing(self) -> None:
        """Keep data back, and read nothing: what is answered at once could have no end."""
        self._paused = True
        self.session.block()
        self._transport.pause_reading()
        self.deadline_s = self._shared.wheel.now_s + self._shared.limits.write_stall_s

    def resume_writing(self) -> None:
        """Go on."""
        self._paused = False
        self.deadline_s = self._reset_idle_at_s
        if not self._transport.is_closing():
            self._transport.resume_reading()
        self._dispatch(self.session.unblock())
        self.flush_soon()

    def is_idle(self) -> bool:
        """Return False: gateways keep few connections, with a stream on each."""
        return False

    def on_deadline(self, now: float) -> None:
        """Cut what stalls, close what is idle, forgive what was spent."""
        session = self.session
        idle = not session.open_streams
        if (
            self._paused
            or not session.greeted
            or (idle and self._leaving)
            or self._transport.is_closing()
        ):
            self._transport.abort()
            return
        if not idle:
            self._idle_since_s = now
        elif now - self._idle_since_s >= self._shared.limits.idle_timeout_s:
            self.drain()
        session.reset_idle()
        self.deadline_s = self._reset_idle_at_s = now + _CALM_S
        self._flush()

    def crash(self, error: Exception) -> None:
        """Give the connection up for an error of ours."""
        self._shared.report(error, "")
        self._transport.abort()

    # the streams' side

    def flush_soon(self) -> None:
        """Write at the end of this turn of the loop."""
        if not self._busy and not self._flushing:
            self._flushing = True
            asyncio.get_running_loop().call_soon(self._flush)

    def forget(self, stream_id: int) -> None:
        """Deliver nothing more to the stream."""
        self._streams.pop(stream_id, None)

    # the server's side

    def drain(self) -> None:
        """Take no new streams but those on their way; close when the last has ended."""
        self._leaving = True
        self.session.drain()
        self._flush()

    def cut(self) -> None:
        """Close at once."""
        self._transport.abort()
        self._hold(0)

    # inside

    def _hold(self, held: int) -> None:
        """Count the bytes that are held for this peer."""
        shared, before = self._shared, self.held_bytes
        self.held_bytes = held
        shared.held_bytes += held - before
        if held > before and shared.held_bytes > shared.limits.max_held_bytes:
            shared.relieve()

    def _dispatch(self, events: Iterable[Event]) -> None:
        streams = self._streams
        shared = self._shared
        for stream_id, kind, value in events:
            stream = streams.get(stream_id)
            if stream is not None:
                try:
                    if kind == MESSAGE:
                        shared.messages += 1
                        stream.on_message(value)
                    else:
                        self._deliver(stream_id, stream, kind, value)
                except Exception as error:  # noqa: BLE001  one stream's bug: the others go on
                    shared.report(error, stream.path)
                    stream.finish(status=INTERNAL, text="internal error")
            elif kind == OPENED:
                self._open(stream_id, value)
            elif kind == FAILED:
                self._fail(value)

    def _deliver(self, stream_id: int, stream: Stream, kind: int, value: object) -> None:
        if kind == ENDED:
            stream.on_half_close()
        elif kind == RESUMED:
            stream.on_resume()
        elif kind in {RESET, BROKEN}:
            self._shared.resets += 1
            del self._streams[stream_id]
            stream.over = True
            stream.on_reset(cast("int", value) if kind == RESET else PROTOCOL_ERROR)

    def _open(self, stream_id: int, head: tuple[Header, ...]) -> None:
        shared = self._shared
        shared.streams += 1
        path, kind, headers = "", b"", list[Header]()
        for header in head:
            name, value = header
            if name[:1] != b":":
                headers.append(header)
                if name == b"content-type":
                    kind = value
            elif name == b":path":
                path = value.decode("latin-1")
        handler = shared.routes.get(path)
        if handler is None or not kind.startswith(_GRPC):
            text = f"unknown method {path[:200]}" if handler is None else "not application/grpc"
            self.session.finish(stream_id, (), UNIMPLEMENTED, encode_text(text))
            return
        stream = self._streams[stream_id] = Stream(self, stream_id, path, headers, self.peer)
        try:
            # pyright takes callbacks that are attributes for methods.
            handler(stream)  # pyright: ignore[reportArgumentType]
        except Exception as error:  # noqa: BLE001  one stream's bug: the others go on
            shared.report(error, path)
            stream.finish(status=INTERNAL, text="internal error")

    def _fail(self, why: tuple[int, str]) -> None:
        code, text = why
        get_logger().debug("gRPC connection closed", peer=self.peer, http2_error=code, why=text)
        self._shared.protocol_errors += 1
        self._lose_streams(CONNECT_ERROR)
        self._flush()
        self._transport.close()

    def _lose_streams(self, code: int) -> None:
        streams, self._streams = self._streams, {}
        for stream in streams.values():
            stream.over = True
            try:
                stream.on_reset(code)
            except Exception as error:  # noqa: BLE001  the other streams must be told
                self._shared.report(error, stream.path)

    def _flush(self) -> None:
        self._flushing = False
        session = self.session
        data = session.take()
        if data and not self._transport.is_closing():
            self._transport.write(data)
        if self._leaving and not session.open_streams and (session.drained or not session.greeted):
            self._transport.close()
