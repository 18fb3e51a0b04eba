"""What one gRPC server takes from its clients at most."""

from typing import Final

import msgspec

_LARGEST_WINDOW: Final = 2**31 - 1
_DEFAULT_WINDOW: Final = 65_535


class GrpcLimits(msgspec.Struct, frozen=True, kw_only=True):
    """Bounds of a gRPC server. Timeouts are exact to about half a second.

    `max_streams`: open streams of one connection; one more is answered REFUSED_STREAM.
    `max_message_bytes`: a longer message ends its stream with RESOURCE_EXHAUSTED.
    `max_held_bytes`: of messages that are not whole, and of those that wait for a peer's window,
    over all connections; beyond it a connection of the peer that holds most is cut, since they are
    charged to nobody.
    `max_header_bytes`: a head, as HPACK counts it (names, values, 32 for each); more ends the
    connection, since what it did to the table of the decoder is then unknown.
    `stream_window_bytes`: what a client may send on a stream whose reading is paused.
    `connection_window_bytes`: the same for a connection; it is granted anew as bytes arrive, so no
    stream that is paused holds up the others.
    `write_buffer_bytes`: a stream with more than this waiting for flow control has `send` return
    False; `on_resume` is called at a quarter of it.
    `max_idle_frames`, `max_early_resets`: in 10 s, frames that move nothing (PING, SETTINGS, empty
    DATA, unknown ones), and streams reset before they were answered; more ends the connection.
    `preface_timeout_s`: a connection must have spoken HTTP/2 after this time.
    `idle_timeout_s`: a connection without streams is closed after this time.
    `write_stall_s`: a client that takes nothing from its socket for so long is cut off.

    Raises `ValueError` for windows that HTTP/2 does not have.
    """

    max_connections: int = 4096
    max_streams: int = 4096
    max_message_bytes: int = 4 * 1024**2
    max_held_bytes: int = 256 * 1024**2
    max_header_bytes: int = 64 * 1024
    stream_window_bytes: int = 256 * 1024
    connection_window_bytes: int = 8 * 1024**2
    write_buffer_bytes: int = 64 * 1024
    max_idle_frames: int = 20_000
    max_early_resets: int = 4_000
    preface_timeout_s: float = 10.0
    idle_timeout_s: float = 3600.0
    write_stall_s: float = 120.0

    def __post_init__(self) -> None:
        """Check the windows."""
        if not 1 <= self.stream_window_bytes <= _LARGEST_WINDOW:
            raise ValueError(f"stream_window_bytes {self.stream_window_bytes}: from 1 to 2^31-1")
        if not _DEFAULT_WINDOW <= self.connection_window_bytes <= _LARGEST_WINDOW:
            raise ValueError(
                f"connection_window_bytes {self.connection_window_bytes}: from 65,535 to 2^31-1"
            )


class GrpcStatistics(msgspec.Struct, frozen=True):
    """Counters since the start; `open_connections` and `open_streams` are of now.

    `resets`: streams that clients gave up, or that were no gRPC. `protocol_errors`: connections
    closed for what they sent.
    """

    open_connections: int
    open_streams: int
    accepted_connections: int
    refused_connections: int
    streams: int
    messages: int
    resets: int
    protocol_errors: int
    handler_failures: int
