"""A request's trace: what it leaves for its span, and the context that goes on to the next hop."""

import re
import time
from collections.abc import Callable
from typing import Final

import msgspec

from kvmesh.transport.http.wire.headers import Headers

SAMPLED: Final = 1
LINE: Final = b"traceparent: "
_TRACEPARENT: Final = re.compile(
    rb"([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-[ -~]*)?"
)
_NO_VERSION: Final = b"ff"
_NONE: Final = b"0" * 16

MOST_EVENTS: Final = 64
"""Attempts and failures of one request that are kept."""


class Parent(msgspec.Struct, frozen=True, gc=False):
    """The span that a client's `traceparent` names; both ids in hexadecimal."""

    trace_id: bytes
    span_id: bytes
    sampled: bool


def read_traceparent(value: bytes) -> Parent | None:
    """Return what a `traceparent` header says, None for one that says nothing.

    Source: https://www.w3.org/TR/trace-context/, 3.2 and, of versions to come, 4.
    """
    found = _TRACEPARENT.fullmatch(value)
    if found is None:
        return None
    version, trace_id, span_id, flags, more = found.groups()
    if version == _NO_VERSION or (version == b"00" and more):
        return None
    if span_id == _NONE or trace_id == _NONE * 2:
        return None
    return Parent(trace_id, span_id, bool(int(flags, 16) & SAMPLED))


class Trace(msgspec.Struct, eq=False):
    """Written while a request runs, read when it is over. Times are of `time.monotonic`, seconds.

    `line` is the header line that the next hop gets, in place of what `left_out` names of the
    client's. `events` are (time, name, text); `first_s` is when the answer began, 0.0 before.
    `added` are the headers that were added to the answer, `record` and `model` what a router knows
    of the request, `failure` the last attempt's, `conversation` the client's name of its session.
    `keep` takes it at its end; None: it is not sampled, and nobody does.
    """

    trace_id: bytes
    span_id: bytes
    line: bytes
    keep: "Callable[[Trace], None] | None" = None
    left_out: Headers = ()
    parent_id: bytes = b""
    started_s: float = 0.0
    ended_s: float = 0.0
    first_s: float = 0.0
    method: str = ""
    path: str = ""
    client: str = ""
    request_id: str = ""
    stream: bool = False
    kind: str = "refused"
    status: int = 0
    attempts: int = 0
    failure: str = ""
    added: Headers = ()
    record: object = None
    model: str = ""
    conversation: str = ""
    events: list[tuple[float, str, str]] = []

    def context(self) -> bytes:
        """Return what the next hop's `traceparent` says."""
        return self.line.removeprefix(LINE).removesuffix(b"\r\n")

    def sent(self, origin: str) -> None:
        """Note an attempt."""
        self.attempts += 1
        self._note("attempt", origin)

    def failed(self, why: str) -> None:
        """Note that an attempt failed."""
        self._note("attempt failed", why)

    def answered(self, added: Headers) -> None:
        """Note that the answer begins, and what was added to its head."""
        if self.keep is not None:
            self.first_s = time.monotonic()
            self.added = added

    def end(self, kind: str, status: int) -> None:
        """Take how the request ended (`server.scope`), after all it held was released; once."""
        if self.keep is not None:
            self.kind, self.status = kind, status
            self.ended_s = time.monotonic()
            self.keep(self)

    def _note(self, name: str, text: str) -> None:
        if self.keep is not None and len(self.events) < MOST_EVENTS:
            self.events.append((time.monotonic(), name, text))
