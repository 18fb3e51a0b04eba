"""What goes to an upstream, what comes back, and the bounds of both."""

from collections.abc import Callable
from typing import Final, Literal, Protocol

import msgspec

from kvmesh.core.engines.sse import error_status
from kvmesh.core.members.answer_check import SICK_WORDS, Sickness, error_words
from kvmesh.core.members.outcomes import Verdict, judge_status
from kvmesh.transport.http.upstream.response_head import ResponseHead
from kvmesh.transport.http.wire.headers import Headers

Stage = Literal["before_send", "after_send", "mid_response"]
Kind = Literal[
    "timeout",
    "refused",
    "reset",
    "truncated",
    "malformed",
    "busy",
    "status",
    "no_worker",
    "hung",
    "bad_answer",
    "left",
]


class UpstreamOptions(msgspec.Struct, frozen=True, kw_only=True):
    """Deadlines (seconds) and bounds towards upstreams.

    `keepalive_s` is under the 5 s after which uvicorn, the usual server, closes idle connections.
    `stale_window_s`: a pooled connection reset this soon after a request was closed while idle,
    so the request is sent once more; later than that the upstream may have died of the request.
    `max_connections` bounds each origin; more requests wait for up to `connect_timeout_s`.
    `authorization`, if not empty, and `also` are sent with every request in place of its own.
    `why_not_peer` is told a host, its port and the address found for it, and returns why nothing
    may be sent there, or "".
    """

    connect_timeout_s: float = 2.0
    first_byte_timeout_s: float = 1800.0
    idle_timeout_s: float = 120.0
    keepalive_s: float = 4.0
    stale_window_s: float = 1.0
    max_connections: int | None = None
    max_idle: int = 512
    authorization: bytes = b""
    also: Headers = ()
    why_not_peer: Callable[[str, int, str], str] | None = None

    def own_headers(self) -> Headers:
        """Return what is sent with every request."""
        key = ((b"authorization", self.authorization),) if self.authorization else ()
        return (*key, *self.also)


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


_TOLD: Final[dict[Kind, str]] = {
    "timeout": "did not answer in time",
    "refused": "cannot be reached",
    "reset": "closed the connection before it answered",
    "truncated": "closed the connection in the middle of its answer",
    "malformed": "sent what is no HTTP answer",
    "busy": "has no free connection",
    "status": "answered {status}",
    "hung": "stopped answering",
    "no_worker": "has no worker that can take the request",
    "bad_answer": "gave a bad answer",
    "left": "leaves",
}


_GONE: Final[frozenset[Kind]] = frozenset({"refused", "reset", "truncated", "no_worker"})


class UpstreamFailure(msgspec.Struct, frozen=True):
    """Why a request got no whole response.

    `message` is for logs: it may name addresses. Clients are shown what `describe` returns.

    `stage`: before_send, no byte of the request left, so repeating it is always safe; after_send,
    the upstream may have begun to work on it; mid_response, a part of the response arrived.
    `status` is set only for kind "status": the upstream answered, but not with an answer;
    `retry_after_s` is then what it asked for, 0 for nothing. "no_worker" is the same of a router
    that says why: it did not begin. "hung": whoever watches the upstream gave it up. "bad_answer":
    it answered 200, and `sickness` is what is wrong with that. "left": it is being drained.
    """

    stage: Literal["before_send", "after_send", "mid_response"]
    kind: Kind
    message: str
    origin: str
    status: int = 0
    retry_after_s: float = 0.0
    sickness: Sickness = ""

    @property
    def name(self) -> str:
        """Return what it is counted as: its kind, of a bad answer with what is wrong."""
        return f"{self.kind}:{self.sickness}" if self.sickness else self.kind

    @property
    def lost(self) -> bool:
        """Return whether the upstream is gone, or has nobody: another one may be waited for."""
        return self.stage == "before_send" or self.kind in _GONE

    def describe(self, worker: str) -> str:
        """Return what a client is told of it: no address, no text of the operating system."""
        if self.sickness:
            return f"{worker or 'upstream'} answered 200 {SICK_WORDS[self.sickness]}"
        return f"{worker or 'upstream'} {_TOLD[self.kind].format(status=self.status)}"


def bad_answer(sickness: Sickness, error: bytes, origin: str) -> UpstreamFailure | None:
    """Return how the upstream failed whose answer of status 200 is so, or holds that error; None
    for an error that is the client's own doing.
    """
    words = SICK_WORDS[sickness]
    if sickness == "error":
        status = error_status(error)
        verdict = judge_status(status) if status else Verdict.WORKER
        if verdict is Verdict.CLIENT:
            return None
        words = f"{words}: {error_words(error)}"
        if verdict is Verdict.OVERLOAD:
            text = f"{origin}: answered 200 {words}"
            return UpstreamFailure("mid_response", "status", text, origin, status)
    text = f"{origin}: answered 200 {words}"
    return UpstreamFailure("mid_response", "bad_answer", text, origin, sickness=sickness)


OnChunk = tuple[Callable[[bytes, object], int | bytes | tuple[int, bytes]], Callable[[bytes], None]]
"""`EventStream.take` looks at bytes that begin a chunk; what it takes goes to the other, as it is
or as it returns it, or with the last chunk to `UpstreamSink.on_last_chunks`. `on_due` is called
when it says so.
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

    def on_end(self, data: bytes = b"") -> None:
        """Learn that the response is complete for certain with the `data` that came last."""
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
