"""The messages of a connection, taken out of its bytes before nats-py reads the rest.

nats-py reads by a task that waits for a stream, and finds each message by six regular expressions:
for a message alone that is a turn of the event loop and most of what it costs. Here messages that
somebody `listen`s to are delivered from the socket's callback; every other byte is nats-py's, in
order.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final, SupportsIndex

MESSAGE: Final = b"MSG "
HEADED: Final = b"HMSG "
END: Final = b"\r\n"
MAX_LINE: Final = 1 << 20
"""A longer line is none of a nats-server; its INFO names the servers of a cluster."""

Take = Callable[[int, bytes, bytes, bytes, bytes | None], bool]
"""Takes (subscription, subject, reply, payload, raw header block or None); False: not its own."""


class FrameReader(asyncio.StreamReader):
    """A stream that is offered each message whole and keeps what `take` does not.

    Lines that are no message's are kept. From one on that cannot be read everything is kept:
    nats-py then says what is wrong, and reconnects.
    """

    def __init__(self, limit: int, take: Take) -> None:
        super().__init__(limit=limit, loop=asyncio.get_running_loop())
        self._take = take
        self._open = bytearray()
        self._needed = 0
        self._readable = True

    def feed_data(self, data: Iterable[SupportsIndex]) -> None:
        """Deliver what is whole."""
        if not self._readable:
            super().feed_data(data)
            return
        if self._open:
            self._open += bytes(data)
            if len(self._open) < self._needed:
                return
            data = bytes(self._open)
            self._open.clear()
        kept = self._split(bytes(data))
        if kept:
            super().feed_data(kept)

    def feed_eof(self) -> None:
        """Keep what never became whole, too."""
        if self._open:
            super().feed_data(bytes(self._open))
            self._open.clear()
        super().feed_eof()

    def _split(self, whole: bytes) -> bytearray:
        """Take messages and lines out of bytes; return what is kept of them, hold what is open."""
        kept, at = bytearray(), 0
        self._needed = 0
        while at < len(whole):
            end = whole.find(END, at)
            if end < 0:
                if len(whole) - at > MAX_LINE:
                    return self._give_up(kept, whole[at:])
                break
            end += len(END)
            is_headed = whole.startswith(HEADED, at)
            if not is_headed and not whole.startswith(MESSAGE, at):
                kept += whole[at:end]
                at = end
                continue
            try:
                subject, number, reply, headers, size = _fields(whole[at:end], headed=is_headed)
            except ValueError:
                return self._give_up(kept, whole[at:])
            behind = end + size + len(END)
            if behind > len(whole):
                self._needed = behind - at
                break
            block = whole[end : end + headers] if is_headed else None
            if not self._take(number, subject, reply, whole[end + headers : end + size], block):
                kept += whole[at:behind]
            at = behind
        self._open += whole[at:]
        return kept

    def _give_up(self, kept: bytearray, rest: bytes) -> bytearray:
        self._readable = False
        return kept + rest


def _fields(line: bytes, *, headed: bool) -> tuple[bytes, int, bytes, int, int]:
    """Return (subject, subscription, reply, bytes of headers, bytes of headers and payload).

    Raises `ValueError` for a line that is none of a message.
    """
    words = line.split()
    headers = int(words.pop(-2)) if headed else 0
    _, subject, number, *reply, size = words
    if len(reply) > 1 or not 0 <= headers <= int(size):
        raise ValueError(line)
    return subject, int(number), reply[0] if reply else b"", headers, int(size)
