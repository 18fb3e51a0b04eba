"""The naive model of how kvmesh/native/http2/h2_calls.c reads and frames gRPC messages.

Source: "gRPC over HTTP2", the framing.
"""

from collections.abc import Iterator, Sequence
from typing import Final

from kvmesh.transport.grpc.session_events import UNIMPLEMENTED

RESOURCE_EXHAUSTED: Final = 8

FRAME_BYTES: Final = 16_384
"""The largest frame that every peer takes, and the largest taken here."""
PREFIX_BYTES: Final = 5
"""Of each message: whether it is compressed, and its length."""
DRAIN_PING: Final = b"kvmesh\0\1"
LAST_STREAM: Final = 2**31 - 1
"""Named in the first GOAWAY of a drain: whatever is on its way is still taken."""


class Unreadable(Exception):  # noqa: N818  says what the bytes are
    """A stream's bytes are no messages that may be taken; `status` is the gRPC status for it."""

    def __init__(self, status: int, text: str) -> None:
        super().__init__(text)
        self.status = status
        self.text = text


class MessageReader:
    """Whole messages out of pieces of any size."""

    __slots__ = ("_held", "_most", "_needed")

    def __init__(self, most: int) -> None:
        self._most = most
        self._held = bytearray()
        self._needed = PREFIX_BYTES

    @property
    def within(self) -> bool:
        """Return whether a message has begun and is not whole."""
        return bool(self._held)

    @property
    def held_bytes(self) -> int:
        """Return the bytes of the message that is not whole, without its prefix."""
        return max(0, len(self._held) - PREFIX_BYTES)

    def feed(self, data: bytes) -> Iterator[bytes]:
        """Take bytes, yield the messages that became whole.

        Raises `Unreadable` for one that is compressed or longer than it may be.
        """
        held = self._held
        held += data
        while len(held) >= self._needed:
            if self._needed == PREFIX_BYTES:
                self._needed += self._read_length()
                if len(held) < self._needed:
                    return
            message = bytes(held[PREFIX_BYTES : self._needed])
            del held[: self._needed]
            self._needed = PREFIX_BYTES
            yield message

    def _read_length(self) -> int:
        length = int.from_bytes(self._held[1:PREFIX_BYTES], "big")
        if self._held[0]:
            raise Unreadable(UNIMPLEMENTED, "compressed messages are not read: send identity")
        if length > self._most:
            raise Unreadable(
                RESOURCE_EXHAUSTED, f"a message of {length} bytes; {self._most} are taken at most"
            )
        return length


def frame_messages(messages: Sequence[bytes]) -> bytes:
    """Return the messages, each behind its prefix."""
    return b"".join(
        [
            part
            for message in messages
            for part in (b"\0%b" % len(message).to_bytes(4, "big"), message)
        ]
    )
