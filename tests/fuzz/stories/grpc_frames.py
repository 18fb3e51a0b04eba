"""HTTP/2 frames of a client, chosen by bytes: right but for what one of them says wrong.

Random bytes rarely get beyond the first frame, and an input of a few kilobytes cannot send more
than a window holds; a choice of one byte can.
"""

from collections.abc import Callable
from typing import Final

from hpack import Encoder

from tests.fuzz.stories.engine_batches import Chooser

DATA, HEADERS, PRIORITY, RESET, SETTINGS, PUSH, PING, GOAWAY, WINDOW, CONTINUATION = range(10)
ENDS_STREAM, ENDS_HEADERS, PADDED, PRIORITISED = 1, 4, 8, 32
MAX_FRAMES: Final = 160
BURST: Final = 40
DRAIN_PING: Final = b"kvmesh\0\1"
SIZES: Final = (0, 1, 5, 6, 100, 600, 4000, 16_384)
NUMBERS: Final = (0, 1, 2, 4096, 16_383, 16_384, 65_535, 0xFFFFFF, 1 << 24, (1 << 31) - 1, 1 << 31)
NAMES: Final = (
    *(":method", ":scheme", ":path", ":authority", ":odd", "content-type", "te", "grpc-timeout"),
    *("grpc-encoding", "user-agent", "x-bin", "Upper", "connection", "x", "grpc-status", ""),
)
VALUES: Final = (
    *("POST", "GET", "http", "/a/B", "", "x", "application/grpc", "text/html", "trailers", "1S"),
    *("0", "99999999999999H", "gzip", "identity", "\xe9", "v" * 200, "v" * 2000, " a\n"),
)
BROKEN: Final = (b"\x3f\xff\xff\xff\x0f", b"\x40\xff", b"\x0f\xff\xff\xff\xff\xff\xff", b"\x80")
GOOD: Final = (0, 4096, 0, 100, 100, 16_384, 1000, 0)
"""Values of settings that are right, by their number."""
USUAL: Final = (
    *((":method", "POST"), (":scheme", "http"), (":path", "/a/B"), (":authority", "x")),
    *(("content-type", "application/grpc"), ("te", "trailers")),
)


class Frames:
    """Builds frames one by one; `encoder` has the client's table of headers."""

    def __init__(self, data: bytes) -> None:
        self._chooser = Chooser(data)
        self._encoder = Encoder()
        self._frames: list[bytes] = []
        self._next = 1
        self._kinds: tuple[Callable[[], None], ...] = (
            *(self._call, self._call, self._call, self._head, self._data, self._data),
            *(self._settings, self._window, self._window, self._reset, self._opened_and_reset),
            *(self._ping, self._odd, self._burst),
        )

    def build(self) -> list[bytes]:
        """Return the frames, a list item each."""
        chooser = self._chooser
        if not self._is_odd():
            self._call()
        while not chooser.is_empty and len(self._frames) < MAX_FRAMES:
            self._kinds[chooser.below(len(self._kinds))]()
        return self._frames

    def _add(self, kind: int, flags: int, stream: int, content: bytes) -> None:
        head = len(content).to_bytes(3, "big") + bytes([kind, flags])
        self._frames.append(head + stream.to_bytes(4, "big") + content)

    def _is_odd(self) -> bool:
        """Return whether the next frame is wrong: seldom, as that ends most sessions."""
        return self._chooser.below(24) == 23

    def _stream(self) -> int:
        if self._next == 1 or self._is_odd():
            return self._chooser.below(self._next + 3)
        return 1 + 2 * self._chooser.below(self._next // 2)

    def _call(self) -> None:
        """Open a call as clients do, and send it a message, perhaps its last."""
        block = self._encoder.encode(USUAL, huffman=self._chooser.below(2) == 1)
        stream, self._next = self._next, self._next + 2
        self._add(HEADERS, ENDS_HEADERS, stream, block)
        size = SIZES[self._chooser.below(6)]
        message = b"\0" + size.to_bytes(4, "big") + bytes(size)
        self._add(DATA, self._chooser.below(2), stream, message)

    def _head(self) -> None:
        """Open a call, or end one, with headers of any names, in one frame or several."""
        chooser = self._chooser
        named = [*USUAL][: chooser.below(7)] + [
            (NAMES[chooser.below(len(NAMES))], VALUES[chooser.below(len(VALUES))])
            for _ in range(chooser.below(4))
        ]
        if chooser.below(4) == 0:
            self._encoder.header_table_size = NUMBERS[chooser.below(5)]
        block = self._encoder.encode(
            [(name.encode(), value.encode("latin-1")) for name, value in named],
            huffman=chooser.below(2) == 1,
        )
        if self._is_odd():
            block = BROKEN[chooser.below(len(BROKEN))] + block
        flags = chooser.below(2) * ENDS_STREAM
        stream = self._stream() if chooser.below(4) == 0 else self._next
        self._next = max(self._next, stream + 2)
        parts = chooser.below(3)
        cut = len(block) // 2 if parts else len(block)
        first = block[:cut]
        if chooser.below(3) == 0:
            first, flags = bytes(5) + first, flags | PRIORITISED
        if chooser.below(3) == 0:
            padding = 255 if self._is_odd() else 3 * chooser.below(2)
            first, flags = bytes([padding]) + first + bytes(min(padding, 3)), flags | PADDED
        self._add(HEADERS, flags | (0 if parts else ENDS_HEADERS), stream, first)
        if parts:
            if parts == 2:
                self._add(CONTINUATION, 0, stream, b"")
            self._add(CONTINUATION, ENDS_HEADERS, stream, block[cut:])

    def _data(self) -> None:
        chooser = self._chooser
        content, flags = bytes(SIZES[chooser.below(len(SIZES))]), chooser.below(2)
        if chooser.below(4) == 0:
            padded = b"\x05" if self._is_odd() else b"\2\0\0"
            content, flags = padded + content[3:], flags | PADDED
        self._add(DATA, flags, self._stream(), content)

    def _settings(self) -> None:
        chooser = self._chooser
        content = b""
        for _ in range(chooser.below(3)):
            number = chooser.below(8)
            value = NUMBERS[chooser.below(len(NUMBERS))] if self._is_odd() else GOOD[number]
            content += number.to_bytes(2, "big") + value.to_bytes(4, "big")
        self._add(SETTINGS, self._is_odd(), self._is_odd(), content)

    def _window(self) -> None:
        number = NUMBERS[self._chooser.below(len(NUMBERS))] if self._is_odd() else 1000
        stream = self._stream() if self._chooser.below(2) else 0
        self._add(WINDOW, 0, stream, number.to_bytes(4, "big"))

    def _reset(self) -> None:
        self._add(RESET, 0, self._stream(), b"\0\0\0\x08")

    def _opened_and_reset(self) -> None:
        self._call()
        self._add(RESET, 0, self._next - 2, b"\0\0\0\x08")

    def _ping(self) -> None:
        content = DRAIN_PING if self._chooser.below(2) else b"12345678"
        self._add(PING, self._chooser.below(2), 0, content)

    def _odd(self) -> None:
        chooser = self._chooser
        if not self._is_odd():
            self._add(0xFB, 0, 0, b"of an extension")
            return
        content = bytes((0, 4, 5, 6, 8, 9, 16_384, 16_385)[chooser.below(8)])
        self._add(chooser.below(12), (0, 1, 4, 8, 37)[chooser.below(5)], self._stream(), content)

    def _burst(self) -> None:
        """Do one thing so often that a bound is met."""
        kind, before = self._kinds[self._chooser.below(len(self._kinds) - 1)], len(self._frames)
        kind()
        made = self._frames[before:]
        if self._chooser.below(2):
            self._frames += made * BURST
            return
        for _ in range(BURST):
            kind()


def build_frames(data: bytes) -> list[bytes]:
    """Return frames of a client as `data` chooses them, behind its first SETTINGS."""
    return Frames(data).build()
