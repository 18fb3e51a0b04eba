"""The beginning of an upstream's answer, kept back while another upstream could still be asked."""

import re
from typing import Final

from kvmesh.transport.http.upstream.response_head import ResponseHead

MAX_KEPT_BYTES: Final = 64 * 1024
"""Of a whole answer; a longer one is passed on from there."""


_EVENT_END: Final = re.compile(rb"\n\n|\r\n\r\n|\r\r")


class HeldAnswer:
    """A head, and what came of its body.

    An event stream is kept back until its first event is whole, any other answer until its end: no
    client can use less. So an upstream that dies before is one more that can be replaced.
    """

    __slots__ = ("_pieces", "_size", "head")

    def __init__(self, head: ResponseHead) -> None:
        self.head = head
        self._pieces: list[bytes] = []
        self._size = 0

    def take(self, data: bytes) -> bytes:
        """Keep a piece; return all that was kept when it must be passed on now, else nothing."""
        self._pieces.append(data)
        self._size += len(data)
        if self._size > MAX_KEPT_BYTES:
            return self.body()
        if not self.head.events:
            return b""
        body = data if len(self._pieces) == 1 else self.body()
        return body if _EVENT_END.search(body) else b""

    def body(self) -> bytes:
        """Return what came of the body."""
        if len(self._pieces) > 1:
            self._pieces = [b"".join(self._pieces)]
        return self._pieces[0] if self._pieces else b""
