"""The engine's side of one WebSocket: the handshake, then its bytes."""

import asyncio
import re
from typing import Final, Protocol, cast

from kvmesh.transport.http.forward.plan import Target
from kvmesh.transport.http.server.scope import Scope
from kvmesh.transport.http.upstream.messages import UpstreamFailure
from kvmesh.transport.http.upstream.response_head import MAX_KEPT_BYTES, ResponseHead
from kvmesh.transport.http.upstream.response_reader import COMPLETE, ResponseReader
from kvmesh.transport.http.wire.headers import Header
from kvmesh.transport.http.wire.sockets import tune
from kvmesh.transport.http.wire.websocket import asks_for

_SWITCHED: Final = b"HTTP/1.1 101"
_HEAD_END: Final = b"\r\n\r\n"
_MOST_HEAD: Final = 16 * 1024
_BUFFER_BYTES: Final = 64 * 1024
_SWITCHING: Final = 101
_BARE: Final = re.compile(rb"[\r\n\0]")
"""What would be a header of its own to some clients."""


class SocketOwner(Protocol):
    """Whose engine it is."""

    scope: Scope

    def opened(self, head: ResponseHead, rest: bytes) -> None:
        """Take the 101, and what came behind it."""
        ...

    def refused(self, head: ResponseHead, body: bytes) -> None:
        """Take another answer."""
        ...

    def fail(self, failure: UpstreamFailure) -> None:
        """Learn that it sent what is no answer."""
        ...

    def from_engine(self, data: bytes) -> None:
        """Take bytes of an open WebSocket."""
        ...

    def hold_client(self, *, full: bool) -> None:
        """Learn that it takes no more for now, or takes more again."""
        ...

    def engine_gone(self, why: str) -> None:
        """Learn that it has closed the connection."""
        ...


class EngineSocket(asyncio.Protocol):
    """Asks one engine for a WebSocket by the target `path` and header `lines`, and tells `owner`
    what comes of it, nothing more behind `close`.
    """

    def __init__(self, owner: SocketOwner, target: Target, path: bytes, lines: bytes) -> None:
        self._owner: SocketOwner | None = owner
        self._origin = target.origin
        host = target.origin.partition("://")[2].encode()
        self._head = b"GET %b HTTP/1.1\r\nhost: %b\r\n%b\r\n" % (path, host, lines)
        self._transport: asyncio.Transport | None = None
        self._open = False
        self._answer = b""
        self._reader: ResponseReader | None = None
        self._body = b""

    def ask(self) -> None:
        """Send the handshake."""
        assert self._transport is not None, "it is connected"
        self._transport.write(self._head)

    def write(self, data: bytes) -> None:
        """Send bytes of the client's."""
        if self._transport is not None:
            self._transport.write(data)

    def pause(self) -> None:
        """Read nothing: the client takes no more."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.pause_reading()

    def resume(self) -> None:
        """Read on."""
        if self._transport is not None and not self._transport.is_closing():
            self._transport.resume_reading()

    def close(self) -> None:
        """Close behind what was written; what comes is nobody's any more."""
        self._owner = None
        if self._transport is not None:
            self._transport.close()

    # asyncio's callbacks

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Take the transport."""
        self._transport = cast("asyncio.Transport", transport)
        self._transport.set_write_buffer_limits(high=_BUFFER_BYTES)
        tune(transport.get_extra_info("socket"))
        if self._owner is None:
            self._transport.abort()

    def data_received(self, data: bytes) -> None:
        """Pass on what comes."""
        owner = self._owner
        if owner is None:
            return
        if self._open:
            owner.scope.enter(owner.from_engine, data)
        elif self._reader is not None:
            owner.scope.enter(self._read_refusal, owner, data)
        else:
            owner.scope.enter(self._read_answer, owner, data)

    def pause_writing(self) -> None:
        """Hold the client back."""
        if self._owner is not None:
            self._owner.scope.enter(self._owner.hold_client, full=True)

    def resume_writing(self) -> None:
        """Let it go on."""
        if self._owner is not None:
            self._owner.scope.enter(self._owner.hold_client, full=False)

    def connection_lost(self, exc: Exception | None) -> None:
        """Tell whose it was."""
        self._transport = None
        owner, reader = self._owner, self._reader
        if owner is None:
            return
        if reader is not None and reader.until_close and exc is None:
            owner.scope.enter(self._refuse, owner, reader)
        else:
            owner.scope.enter(owner.engine_gone, f"connection closed: {exc or 'by the engine'}")

    # the handshake

    def _read_answer(self, owner: SocketOwner, data: bytes) -> None:
        self._answer += data
        end = self._answer.find(_HEAD_END)
        if end < 0 and len(self._answer) <= _MOST_HEAD:
            return
        answer, self._answer = self._answer, b""
        switched = answer.startswith(_SWITCHED) and end >= 0
        headers = _headers(answer[:end]) if switched else []
        if not switched:
            self._read_refusal(owner, answer)
        elif any(_BARE.search(value) for _, value in headers):
            self._malformed(owner, "a header with a bare line end")
        elif asks_for(headers):
            self._open = True
            owner.opened(ResponseHead(_SWITCHING, headers), answer[end + len(_HEAD_END) :])
        else:
            self._malformed(owner, "switched to another protocol than WebSocket")

    def _read_refusal(self, owner: SocketOwner, data: bytes) -> None:
        reader = self._reader = self._reader or ResponseReader()
        try:
            self._body += reader.feed(data)
        except ValueError as error:
            self._malformed(owner, str(error))
            return
        if reader.stage is COMPLETE or len(self._body) > MAX_KEPT_BYTES:
            self._refuse(owner, reader)

    def _refuse(self, owner: SocketOwner, reader: ResponseReader) -> None:
        head = ResponseHead(reader.status, reader.headers)
        reader.close()
        owner.refused(head, self._body[:MAX_KEPT_BYTES])

    def _malformed(self, owner: SocketOwner, why: str) -> None:
        origin = self._origin
        owner.fail(UpstreamFailure("after_send", "malformed", f"{origin}: {why}", origin))


def _headers(head: bytes) -> list[Header]:
    """Return the headers below a status line, names in lower case."""
    lines = (line.partition(b":") for line in head.split(b"\r\n")[1:])
    return [(name.strip().lower(), value.strip()) for name, _, value in lines]
