"""What a session tells of its peer, and the numbers of HTTP/2 and gRPC it is told with."""

from typing import Any, Final

Event = tuple[int, int, Any]
"""Stream, kind, value. The stream is 0 where the whole connection is meant."""

OPENED: Final = 0
"""Value: the head as a tuple of (name, value), pseudo headers first."""
MESSAGE: Final = 1
"""Value: one whole message, bytes."""
ENDED: Final = 2
"""The peer sends no more on this stream. Value: None."""
RESET: Final = 3
"""The peer gave the stream up. Value: its HTTP/2 error code."""
RESUMED: Final = 4
"""What waited has gone out, down to the low-water mark. Value: None."""
BROKEN: Final = 5
"""The stream's bytes are no gRPC, or too many. Value: (gRPC status, text) to finish it with."""
FAILED: Final = 6
"""The connection is over: take the output, close. Value: (HTTP/2 error code, text)."""

NO_ERROR: Final = 0x0
PROTOCOL_ERROR: Final = 0x1
INTERNAL_ERROR: Final = 0x2
FLOW_CONTROL_ERROR: Final = 0x3
STREAM_CLOSED: Final = 0x5
FRAME_SIZE_ERROR: Final = 0x6
REFUSED_STREAM: Final = 0x7
CANCEL: Final = 0x8
COMPRESSION_ERROR: Final = 0x9
CONNECT_ERROR: Final = 0xA
ENHANCE_YOUR_CALM: Final = 0xB
"""HTTP/2 error codes. Source: RFC 9113, 7."""

OK: Final = 0
INVALID_ARGUMENT: Final = 3
NOT_FOUND: Final = 5
UNIMPLEMENTED: Final = 12
INTERNAL: Final = 13
UNAVAILABLE: Final = 14
"""gRPC status codes. Source: the gRPC documentation, "Status codes and their use in gRPC"."""
