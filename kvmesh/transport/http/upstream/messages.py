"""What goes to an upstream, what comes back, and the bounds of both."""

from collections.abc import Callable
from typing import Literal, Protocol

import msgspec

from kvmesh.transport.http.upstream.response_head import ResponseHead
from kvmesh.transport.http.wire.headers import Headers

Stage = Literal["before_send", "after_send", "mid_response"]
Kind = Literal["timeout", "refused", "reset", "truncated", "malformed", "busy", "status", "hung"]


class UpstreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Deadlines (seconds) and bounds towards upstreams.

    `keepalive_s` is under the 5 s after which uvicorn, the usual server, closes idle connections.
    `stale_window_s`: a pooled connection reset this soon after a request was closed while idle,
    so the request is sent once more; later than that the upstream may have died of the request.
    `max_connections` bounds each origin; more requests wait for up to `connect_timeout_s`.
    `authorization`, if not empty, is sent with every request in place of its own.
    `why_not_peer` is told a host, its port and the address found for it, and returns why nothing
    may be sent there, or "".
    """

    connect_timeout_s: float = 2.0
    first_byte_timeout_s: float = 600.0
    idle_timeout_s: float = 120.0
    keepalive_s: float = 4.0
    stale_window_s: float = 1.0
    max_connections: int | None = None
    max_idle: int = 512
    authorization: bytes = b""
    why_not_peer: Callable[[str, int, str], str] | None = None


class Deadlines(msgspec.Struct, frozen=True):
    """Seconds from the request to the response's first byte, and between two reads of it."""

    first_byte_s: float
    idle_s: float


class UpstreamRequest(msgspec.Struct, frozen=True, gc=False):
    """A request; Host and Content-Length are added. `origin` is `http[s]://host[:port]`.

    `block` is header lines already rendered, CRLF behind each; they go before `headers`.
    """

    origin: str
    method: str
    target: bytes
    headers: Headers = ()
    body: bytes = b""
    block: bytes = b""


class UpstreamStatistics(msgspec.Struct, frozen=True):
    """Connections now, and counts since the start."""

    open_connections: int
    idle_connections: int
    connects: int
    reuses: int
    stale_retries: int


class UpstreamFailure(msgspec.Struct, frozen=True):
    """Why a request got no whole response.

    `stage`: before_send, no byte of the request left, so repeating it is always safe; after_send,
    the upstream may have begun to work on it; mid_response, a part of the response arrived.
    `status` is set only for kind "status": the upstream answered, but not with an answer;
    `retry_after_s` is then what it asked for, 0 for nothing. "hung": whoever watches the upstream
    gave it up.
    """

    stage: Literal["before_send", "after_send", "mid_response"]
    kind: Literal["timeout", "refused", "reset", "truncated", "malformed", "busy", "status", "hung"]
    message: str
    origin: str
    status: int = 0
    retry_after_s: float = 0.0


OnChunk = tuple[Callable[[bytes, object], int], Callable[[bytes], None]]
"""`EventStream.take` looks at bytes that begin a chunk; what it takes goes as it is to the other,
or with the last chunk to `UpstreamSink.on_last_chunks`. `on_due` is called when it says so.
"""


class UpstreamSink(Protocol):
    """Where a response goes: `on_head`, `on_body`s, then exactly one of `on_end`, `on_failure`.

    One that came whole may go to `on_whole`, which then is all. While `on_chunk` is set, chunks of
    the body may go there instead of `on_body`, and the last to `on_last_chunks`, which is the end.
    `on_failure` may come at any point; nothing comes after `cancel`. What one of these raises is
    passed to `crash`, which is then the last.
    """

    on_chunk: OnChunk | None

    def on_head(self, head: ResponseHead) -> None:
        """Take status and headers."""
        ...

    def on_body(self, data: bytes) -> None:
        """Take body bytes, chunk framing removed."""
        ...

    def on_due(self) -> None:
        """Learn that `on_chunk` has something to tell."""
        ...

    def on_end(self) -> None:
        """Learn that the response is complete for certain."""
        ...

    def on_last_chunks(self, data: bytes) -> None:
        """Take the last chunks, which may be passed on as they are: the response is complete."""
        ...

    def on_whole(self, head: ResponseHead, body: bytes) -> None:
        """Take a complete response: as `on_head`, `on_body` and `on_end`."""
        ...

    def on_failure(self, failure: UpstreamFailure) -> None:
        """Learn that no more will come, and why."""
        ...

    def crash(self, error: Exception) -> None:
        """Learn of an error of ours, raised by the sink itself or below it; nothing more comes.

        Must not raise.
        """
        ...


class CarriedRequest(Protocol):
    """The request a connection carries.

    `request` and `head` are let go of when a response begins: it will not be sent again, its body
    may be long, and streams are.
    """

    request: UpstreamRequest | None
    head: bytes

    def failed(self, failure: UpstreamFailure) -> None:
        """Learn that there will be no whole response."""
        ...
