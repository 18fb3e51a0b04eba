"""An event stream on its way to a client: what may pass, and what it says, in one call a piece."""

import re
from functools import partial
from typing import Final

from kvmesh._native import DUE as _DUE
from kvmesh._native import ENDED as _ENDED
from kvmesh._native import TAKEN as _TAKEN
from kvmesh._native import EventStream as CompiledStream
from kvmesh.core.chat.kept import Kept
from kvmesh.core.engines.sse import Usage, find_usage, is_error

TAKEN: Final = _TAKEN
DUE: Final = _DUE
ENDED: Final = _ENDED
LAST_CHUNK: Final = b"0\r\n\r\n"
_SIZE_LINE: Final = re.compile(rb"([0-9a-fA-F]{1,6})\r\n")


MAX_EVENT_BYTES: Final = 1 << 20
"""An event longer than this is counted, but not looked into."""

MAX_HELD_BYTES: Final = 1 << 16
"""An event longer than this is passed on in parts."""

_BLANK: Final = b"\n\n"
_DONE: Final = b"data: [DONE]"
_LONGEST_BLANK: Final = 3
"""Bytes of a blank line, the end of the line before it included: LF CR LF."""

_CARRIAGE_RETURN: Final = 13


class EventStream:
    """Counts the events of a stream, however its bytes are cut, and lets only whole ones pass, so
    that it can be broken off with an event of ours. It is scanned, never re-encoded.

    `tokens`: events that carry output, about one per token: every data event, except that of named
    events (Anthropic, responses) only the `…delta` ones count. `[DONE]`, errors and comments do
    not. `done`: `[DONE]` was seen as an event of its own. `errors`: error events; `error` is the
    last one's data. `usage`: what was reported last. `reasoned`: one said why the answer ended.
    `torn`: a part of an overlong event has passed; a blank line must come before anything else.
    `due`: the tokens at which `take` says so.

    The compiled stream (kvmesh/native/wire/sse.c) does the same, and keeps ids; it makes one of
    these for what engines seldom send. Source: WHATWG HTML, 9.2.6 "Interpreting an event stream".
    """

    __slots__ = (
        "_after_cr", "_held", "_last", "_most_held", "_skipping", "_tail", "done", "due", "error",
        "errors", "reasoned", "tokens", "torn", "usage",
    )  # fmt: skip

    def __init__(self) -> None:
        self.due = 1
        self.tokens = self.errors = 0
        self.done = self.reasoned = self.torn = False
        self.error = b""
        self.usage: Usage | None = None
        self._tail = bytearray()
        self._after_cr = self._skipping = False
        self._held = bytearray()
        self._last = b""
        self._most_held = MAX_HELD_BYTES

    @property
    def held(self) -> bytes:
        """Return what has not passed yet."""
        return bytes(self._held)

    def feed(self, data: bytes) -> bytes:
        """Return what may pass now, all up to the last blank line, `data` itself when that is all;
        count the events that ended.
        """
        self._count(data)
        held = self._held
        if not held and data.endswith(_BLANK):
            self.torn, self._last = False, data
            return data
        searched = max(0, len(held) - _LONGEST_BLANK + 1)
        held += data
        end = _behind(held, b"\n\n", searched)
        if held.find(_CARRIAGE_RETURN, searched) >= 0:
            end = max(end, _behind(held, b"\n\r\n", searched), _behind(held, b"\r\r", searched))
        if len(held) - end > self._most_held:
            self.torn = True
            return self.flush()
        passed = bytes(held[:end])
        del held[:end]
        if end:
            self.torn, self._last = False, passed
        return passed

    def take(self, data: bytes, may_end: object) -> int:
        """Count `data`, which stands between two chunks of HTTP, if it may be passed on as it is.

        That is when it is nothing but whole chunks with plain size lines, each of whole ordinary
        events or `[DONE]`, and, if it `may_end`, the last chunk. Returns `TAKEN`, with `DUE` if
        `tokens` are, and with `ENDED` at the end; else 0, and nothing has changed.
        """
        ended = bool(may_end) and data.endswith(LAST_CHUNK)
        events = _ordinary_chunks(data[: -len(LAST_CHUNK)] if ended else data)
        inside = self._held or self._tail or self._after_cr or self._skipping
        if not data or events is None or inside:
            return 0
        if events:
            self.feed(events)
        return TAKEN | (DUE if self.tokens >= self.due else 0) | (ENDED if ended else 0)

    def resume(
        self,
        held: bytes,
        complete: bool,
        usage: Usage | None,
        most_held: int = MAX_HELD_BYTES,
    ) -> None:
        """Go on with what `held` begins, behind events that were counted elsewhere, the last of
        them `[DONE]` if they were `complete`; hold at most so many bytes of an event.
        """
        self._tail[:] = self._held[:] = held
        self._most_held = most_held
        self._last = _DONE if complete else b""
        self.usage = usage

    def is_complete(self) -> bool:
        """Return whether the last event that passed was `[DONE]`: nothing is missing behind it."""
        return not self.torn and self._last.rstrip().endswith(_DONE)

    def flush(self) -> bytes:
        """Return what is held: the stream ended without a last blank line."""
        held = bytes(self._held)
        self._held.clear()
        return held

    def _count(self, data: bytes) -> None:
        """Count the events that end in `data`."""
        if self._after_cr and data:
            data = data.removeprefix(b"\n")
            self._after_cr = False
        if b"\r" in data:
            self._after_cr = data.endswith(b"\r")
            data = data.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
        tail = self._tail
        searched = max(0, len(tail) - 1)  # bytes that come one by one cost as much as at once
        tail += data
        end = tail.rfind(_BLANK, searched)
        if end >= 0:
            whole = bytes(tail[:end])
            del tail[: end + len(_BLANK)]
            for block in whole.split(_BLANK):
                self.take_event(block, self.usage)
        if len(tail) > MAX_EVENT_BYTES:
            self._skipping = True
            del tail[:-1]

    def take_event(self, block: bytes, usage: Usage | None) -> Usage | None:
        """Count one event, without the blank line behind it, over the `usage` reported before;
        return what is now.
        """
        self.usage = usage
        if self._skipping:
            self._skipping = False
            self.tokens += 1
            return usage
        name = b""
        values: list[bytes] = []
        for line in block.split(b"\n"):
            if line.startswith(b"data:"):
                values.append(line[6:] if line.startswith(b"data: ") else line[5:])
            elif line.startswith(b"event:"):
                name = line[6:].strip()
        data = b"\n".join(values)
        if data.strip() == b"[DONE]":
            self.done = True
        elif name == b"error" or (b'"error"' in data and is_error(data)):
            self.errors += bool(data)
            self.error = data or self.error
        elif data:
            self.tokens += not name or name.endswith(b"delta")
            reasoned = b'_reason":"' in data or b'_reason": "' in data
            if b'"usage"' in data or b'"name":' in data or reasoned:
                self.usage = find_usage(data, usage)
            self.reasoned = self.reasoned or reasoned
        return self.usage


def _behind(data: bytearray, blank: bytes, start: int) -> int:
    """Return the position behind the last `blank` from `start` on, 0 when there is none."""
    at = data.rfind(blank, start)
    return 0 if at < 0 else at + len(blank)


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
