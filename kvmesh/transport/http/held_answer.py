"""The beginning of an upstream's answer, kept back while another upstream could still be asked."""

from typing import Final

from kvmesh.transport.http.response_head import ResponseHead

MAX_HELD_BYTES: Final = 64 * 1024
"""Of a whole answer; a longer one is passed on from there."""


class HeldAnswer:
    """A head, and what came of its body.

    An event stream is kept back until its first byte, any other answer until its end: no client
    can use less. So an upstream that dies before is one more that can be replaced.
    """

    __slots__ = ("_pieces", "_size", "head")

    def __init__(self, head: ResponseHead) -> None:
        self.head = head
        self._pieces: list[bytes] = []
        self._size = 0

    def take(self, data: bytes) -> bool:
        """Keep a piece; return whether all that was kept must be passed on now."""
        if not data:
            return False
        self._pieces.append(data)
        self._size += len(data)
        return self.head.events or self._size > MAX_HELD_BYTES

    def body(self) -> bytes:
        """Return what came of the body."""
        return self._pieces[0] if len(self._pieces) == 1 else b"".join(self._pieces)
