"""WebSocket on the wire: whether a request asks for it, where frames end, how one is closed.

Source: RFC 6455, 4.2.1, 5.2, 7.4; the codes above 1011: IANA's registry.
"""

from typing import Final, Literal

from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.problem import Problem

VERSION: Final = (b"sec-websocket-version", b"13")
UPGRADE: Final = ((b"connection", b"Upgrade"), (b"upgrade", b"websocket"))
"""Of both halves of the handshake."""

RESTARTS: Final = 1012
LOST: Final = 1014
IDLE: Final = 1001
CloseCode = Literal[1001, 1012, 1014]

_CLOSE: Final = 0x8
_OPCODE: Final = 0x0F
_MASKED: Final = 0x80
_LENGTH: Final = 0x7F
_WIDTHS: Final = {126: 2, 127: 8}
_LEAST_HEAD: Final = 2
_MASK_BYTES: Final = 4


def asks_for(headers: Headers) -> bool:
    """Return whether Upgrade headers name WebSocket."""
    named = (value for name, value in headers if name == b"upgrade")
    return any(one.strip().lower() == b"websocket" for value in named for one in value.split(b","))


def why_not(method: str, headers: Headers, *, http_1_0: bool) -> Problem | None:
    """Return what is wrong with a request that asks for WebSocket."""
    given = dict(headers)
    options = given.get(b"connection", b"").lower().split(b",")
    why = ""
    if method != "GET" or http_1_0:
        why = f"it opens with GET in HTTP/1.1, not with {method}"
    elif b"upgrade" not in [one.strip() for one in options]:
        why = "send connection: Upgrade beside it"
    elif not given.get(b"sec-websocket-key"):
        why = "send a sec-websocket-key"
    if why:
        return Problem(400, f"upgrade: websocket: {why}", code="bad_websocket")
    if given.get(VERSION[0]) != VERSION[1]:
        text = "upgrade: websocket: version 13 is served"
        return Problem(426, text, code="bad_websocket", also=(*UPGRADE, VERSION))
    return None


def close_frame(code: CloseCode, reason: str) -> bytes:
    """Return a server's close frame; `reason` has at most 123 bytes."""
    text = reason.encode()
    return bytes((_MASKED | _CLOSE, 2 + len(text))) + code.to_bytes(2) + text


class Frames:
    """Where frames end in what one side sends. `closed`: it has sent a close frame."""

    __slots__ = ("_head", "_left", "closed")

    def __init__(self) -> None:
        self._head = bytearray()
        self._left = 0
        self.closed = False

    @property
    def between(self) -> bool:
        """Return whether a frame of another may come here."""
        return not (self._head or self._left)

    def feed(self, data: bytes, *, to_end: bool = False) -> int:
        """Follow `data`, with `to_end` no further than a frame's end; return how many bytes that
        were. O(frames).
        """
        at, size = 0, len(data)
        while at < size:
            if self._left:
                step = min(self._left, size - at)
                self._left -= step
                at += step
            else:
                at += self._read_head(data, at)
            if to_end and self.between:
                break
        return at

    def _read_head(self, data: bytes, at: int) -> int:
        """Take bytes of a frame's head, return how many."""
        head = self._head
        before = len(head)
        head += data[at : at + max(0, _LEAST_HEAD - before)]
        if len(head) < _LEAST_HEAD:
            return len(head) - before
        length = head[1] & _LENGTH
        width = _WIDTHS.get(length, 0)
        whole = _LEAST_HEAD + width + (_MASK_BYTES if head[1] & _MASKED else 0)
        taken = len(head) - before
        head += data[at + taken : at + taken + whole - len(head)]
        taken = len(head) - before
        if len(head) == whole:
            self.closed = self.closed or head[0] & _OPCODE == _CLOSE
            ahead = head[_LEAST_HEAD : _LEAST_HEAD + width]
            self._left = int.from_bytes(ahead) if width else length
            head.clear()
        return taken
