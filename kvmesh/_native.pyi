"""What the compiled core has: `kvmesh/native/*.c`, in the same order of rooms.

Shapes, units and errors stand here, how it is done in the C. `tests/unit/test_native_stub.py`
holds this file to the module.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Final, Self, final

from kvmesh.transport.extproc.messages import (
    Heard,
    Modes,
    RequestBody,
    RequestHeaders,
    RequestTrailers,
    ResponseBody,
    ResponseHeaders,
    ResponseTrailers,
)
from kvmesh.transport.grpc.session_events import Event

VERSION: Final[int]
"""The interface that this code was written for, `NATIVE_VERSION` in kvmesh/native/core.h."""

# ---- transport: heads, HTTP/1 requests, HTTP/2, ext_proc, ends of requests ----

@final
class Names:
    """Names of headers, in lower case, that somebody asks for: these, and all that begin with
    `prefix`, if that is not empty.

    At most 4096: else `ValueError`.
    """

    def __new__(cls, names: Iterable[bytes], prefix: bytes, /) -> Self: ...

@final
class Head:
    """The headers of one request, in the order sent, names in lower case. O(headers) each.

    They stay the bytes that came: what nobody asks for is never made an object. Raises
    `OverflowError` for headers of 2 GiB.
    """

    def __new__(cls, headers: Iterable[tuple[bytes, bytes]], /) -> Self: ...
    def headers(self) -> list[tuple[bytes, bytes]]:
        """Return all, made anew with each call."""

    def get(self, name: bytes, /) -> bytes | None:
        """Return the first value of a name, None without one."""

    def select(self, names: Names, /) -> Sequence[tuple[bytes, bytes]]:
        """Return those that `names` ask for."""

    def has(self, names: Names, /) -> bool:
        """Return whether `names` ask for any."""

    def replaced(self, names: Names, added: Iterable[tuple[bytes, bytes]], /) -> Head:
        """Return the head without those that `names` ask for, and with `added` behind the rest."""

    def render(self, names: Names, /) -> bytes:
        """Return the lines of those that `names` do not ask for, each with its CRLF.

        Raises `ValueError` when a name or value would start a new line (header injection).
        """

def render(headers: Iterable[tuple[bytes, bytes]], /) -> bytes:
    """Return the header lines, each with its CRLF.

    Raises `ValueError` when a name or value would start a new line (header injection).
    """

def match_head(data: bytes, before: bytes, behind: bytes | None, most: int, /) -> bytes | None:
    """Return the body if `data` is one whole message with this head, else None.

    The head is `before`, the body's length, at most `most`, and `behind`; with `behind` None it is
    `before` alone, without a body.
    """

def match_dated(data: bytes, before: bytes, after: bytes, /) -> int:
    """Return where the body begins if `data` begins with this head, else 0.

    The head is `before` alone, or, with `after`, both with a date between them.
    """

def take_request(
    data: bytes, most_head: int, most_target: int, most_headers: int, most_body: int, /
) -> tuple[str, bytes, bytes, str, str, Head] | None:
    """Return method, target, body, path, query and `Head` of the one whole request that `data` is;
    None where llhttp has to look.

    At most so many bytes of head, target and body, and so many headers.
    """

def read_extproc(
    types: tuple[
        type[RequestHeaders],
        type[ResponseHeaders],
        type[RequestBody],
        type[ResponseBody],
        type[RequestTrailers],
        type[ResponseTrailers],
        type[Modes],
        type[Exception],
    ],
    data: bytes,
    /,
) -> Heard:
    """Return what a gateway's message says, in one of these types.

    Of a field that may stand once the last counts. Fields and metadata that a picker has no use for
    are skipped. Raises the last of the types for what is no `ProcessingRequest`, or an empty one.
    """

def write_extproc(
    field: int,
    headers: Iterable[tuple[bytes, bytes]],
    removed: Iterable[bytes],
    endpoint: bytes | None,
    body: bytes | None,
    /,
) -> bytes:
    """Return the answer with that number, 1 to 15, to headers or a buffered body, which `body`
    replaces.

    With an endpoint it is a pick: named in a header and in dynamic metadata, and the route is
    chosen anew.
    """

def write_extproc_piece(field: int, data: bytes, end: object, /) -> bytes:
    """Return the answer that streams a piece of a body on, in the field with that number."""

@final
class GrpcSession:
    """The server's side of one connection. Nothing here raises for what the peer sends.

    A finished stream is open until its answer has gone out and the peer has ended its side.
    Limits: open streams, bytes of a message, of a head, windows of a stream (1 to 2^31-1 bytes) and
    of the connection (at least 65,535), bytes of a stream that wait before its sender should pause,
    idle frames, early resets. Raises `ValueError` for limits out of range, `RuntimeError` where it
    is entered from within.
    """

    def __new__(
        cls,
        max_streams: int,
        max_message_bytes: int,
        max_header_bytes: int,
        stream_window_bytes: int,
        connection_window_bytes: int,
        write_buffer_bytes: int,
        max_idle_frames: int,
        max_early_resets: int,
        /,
    ) -> Self: ...
    @property
    def greeted(self) -> bool:
        """Return whether the peer has spoken HTTP/2."""

    @property
    def drained(self) -> bool:
        """Return whether, behind `drain`, no new stream of the peer is on its way."""

    @property
    def open_streams(self) -> int:
        """Return how many streams are not over."""

    @property
    def held_bytes(self) -> int:
        """Return the bytes of messages that are not whole, and of those that wait to go out."""

    def receive(self, data: bytes | bytearray | memoryview, /) -> Sequence[Event]:
        """Take bytes of the peer, return what they say. After FAILED nothing more is taken."""

    def send(self, stream_id: int, messages: Sequence[bytes], /) -> int:
        """Queue messages, return the bytes of the stream that wait for flow control."""

    def finish(
        self, stream_id: int, messages: Sequence[bytes], status: int, text: bytes, /
    ) -> None:
        """Queue the last messages and the trailers; no events of the stream follow."""

    def reset(self, stream_id: int, code: int, /) -> None:
        """Give the stream up at once; no events of it follow."""

    def hold(self, stream_id: int, /) -> None:
        """Grant the stream no more window."""

    def grant(self, stream_id: int, /) -> None:
        """Grant the stream its window again."""

    def block(self) -> None:
        """Keep data of streams here until `unblock`: the socket takes no more."""

    def unblock(self) -> Sequence[Event]:
        """Let data of streams go out again; returns RESUMED events."""

    def drain(self) -> None:
        """Ask the peer to open no more streams; those on their way are still taken."""

    def calm(self) -> None:
        """Count idle frames and early resets from 0 again; give up what the peer left half closed
        since the last call.
        """

    def take(self) -> bytes:
        """Return the bytes to send, b"" for none."""

# ---- index: table, beliefs, hash chains ----

# ---- engines and prompts: engines' caches, event streams, bodies, texts ----

# ---- workers and routing: loads, bookings, speeds, lengths, replicas' bookings ----

# ---- insight: records, totals, histograms ----

# ---- decision: formulas, courses, the decider ----

def __getattr__(name: str) -> Any: ...  # noqa: ANN401  until all of them stand above
