"""An event stream on its way to a client: what may pass, and what it says, in one call a piece."""

import re
from functools import partial
from typing import Final

from kvmesh._native import DUE as _DUE
from kvmesh._native import ENDED as _ENDED
from kvmesh._native import TAKEN as _TAKEN
from kvmesh._native import EventStream as CompiledStream
from kvmesh.core.chat.kept import Kept
from kvmesh.core.engines.sse import MAX_HELD_BYTES, EventGate, SseScanner, Usage, find_usage

TAKEN: Final = _TAKEN
DUE: Final = _DUE
ENDED: Final = _ENDED
LAST_CHUNK: Final = b"0\r\n\r\n"
_SIZE_LINE: Final = re.compile(rb"([0-9a-fA-F]{1,6})\r\n")


class EventStream:
    """An `EventGate` and an `SseScanner` over the same bytes; both say what their attributes mean.

    `due`: the tokens at which `take` says so. The compiled stream (kvmesh/native/wire/sse.c) does
    the same, and keeps ids; it makes one of these for what engines seldom send.
    """

    __slots__ = ("_gate", "_scanner", "due")

    def __init__(self) -> None:
        self.due = 1
        self._gate = EventGate()
        self._scanner = SseScanner()

    @property
    def tokens(self) -> int:
        """Return how many events that carry output have ended."""
        return self._scanner.tokens

    @property
    def done(self) -> bool:
        """Return whether `[DONE]` was seen as an event of its own."""
        return self._scanner.done

    @property
    def reasoned(self) -> bool:
        """Return whether an event said why the answer ended."""
        return self._scanner.reasoned

    @property
    def errors(self) -> int:
        """Return the number of error events."""
        return self._scanner.errors

    @property
    def error(self) -> bytes:
        """Return the last error event's data."""
        return self._scanner.error

    @property
    def usage(self) -> Usage | None:
        """Return what was reported last."""
        return self._scanner.usage

    @property
    def held(self) -> bytes:
        """Return what has not passed yet."""
        return self._gate.held

    @property
    def torn(self) -> bool:
        """Return whether a part of an overlong event has passed."""
        return self._gate.torn

    def feed(self, data: bytes) -> bytes:
        """Return what may pass now, `data` itself when that is all; count the events that ended."""
        self._scanner.feed(data)
        return self._gate.feed(data)

    def take(self, data: bytes, may_end: object) -> int:
        """Count `data`, which stands between two chunks of HTTP, if it may be passed on as it is.

        That is when it is nothing but whole chunks with plain size lines, each of whole ordinary
        events or `[DONE]`, and, if it `may_end`, the last chunk. Returns `TAKEN`, with `DUE` if
        `tokens` are, and with `ENDED` at the end; else 0, and nothing has changed.
        """
        ended = bool(may_end) and data.endswith(LAST_CHUNK)
        events = _ordinary_chunks(data[: -len(LAST_CHUNK)] if ended else data)
        if not data or events is None or self._gate.held or self._scanner.is_inside:
            return 0
        if events:
            self.feed(events)
        return TAKEN | (DUE if self.tokens >= self.due else 0) | (ENDED if ended else 0)

    def take_event(self, block: bytes, usage: Usage | None) -> Usage | None:
        """Count one event that has passed, without the blank line behind it, over the `usage`
        reported before; return what is now.
        """
        self._scanner.usage = usage
        self._scanner.take_event(block)
        return self._scanner.usage

    def resume(
        self,
        held: bytes,
        complete: bool,
        usage: Usage | None,
        most_held: int = MAX_HELD_BYTES,
    ) -> None:
        """Go on with what `held` begins, behind events that were counted elsewhere; hold at most so
        many bytes of an event.
        """
        self._scanner.resume(held)
        self._scanner.usage = usage
        self._gate.resume(held, complete=complete, most_held=most_held)

    def is_complete(self) -> bool:
        """Return whether the last event that passed was `[DONE]`: nothing is missing behind it."""
        return self._gate.is_complete()

    def flush(self) -> bytes:
        """Return what is held: the stream ended without a last blank line."""
        return self._gate.flush()


def _ordinary_chunks(data: bytes) -> bytes | None:
    """Return what is in whole plain chunks of whole ordinary events, None for anything else."""
    contents: list[bytes] = []
    at = 0
    while at < len(data):
        line = _SIZE_LINE.match(data, at)
        size = int(line[1], 16) if line is not None else 0
        if line is None or not size:
            return None
        end = line.end() + size
        content = data[line.end() : end]
        if data[end : end + 2] != b"\r\n" or not _is_ordinary(content):
            return None
        contents.append(content)
        at = end + 2
    return b"".join(contents)


def _is_ordinary(content: bytes) -> bool:
    """Return whether a chunk is whole events of one line each, no error, or `[DONE]`."""
    if b"\r" in content or b'"error"' in content:
        return False
    *events, rest = content.split(b"\n\n")
    return not rest and all(
        event == b"data: [DONE]" or (event.startswith(b"data: {") and b"\n" not in event)
        for event in events
    )


new_event_stream: Final = partial(CompiledStream, EventStream, find_usage, Kept)
"""Returns a compiled stream of which nothing has come yet."""
