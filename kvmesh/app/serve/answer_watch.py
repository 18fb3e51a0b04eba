"""An answer seen in passing: its tokens while it streams, its usage at the end."""

from kvmesh.core.engines.sse import SseScanner, Usage, find_usage
from kvmesh.transport.http.wire.headers import Headers

MAX_SCANNED_BYTES = 1 << 20
GROW_TOKENS = 16
SCAN_PIECES = 8
"""Half the time per piece; a stream holds 2 KB for it."""


class AnswerWatch:
    """Counts the tokens of one streamed answer, or keeps a short whole one for its usage.

    A booking needs to know of the first token, and then of each `GROW_TOKENS` more; so behind the
    first token `SCAN_PIECES` pieces are looked at together.
    """

    __slots__ = ("_body", "_due_tokens", "_held", "_scanner")

    def __init__(self, headers: Headers) -> None:
        self._scanner: SseScanner | None = None
        self._body: bytes | None = b""
        self._due_tokens = 1
        self._held: list[bytes] = []
        for name, value in headers:
            if name == b"content-type" and value.startswith(b"text/event-stream"):
                self._scanner = SseScanner()
                self._body = None

    def feed(self, data: bytes) -> int:
        """Take a piece of the body; return the tokens so far when they are due, else 0."""
        scanner = self._scanner
        if scanner is not None:
            held = self._held
            held.append(data)
            if len(held) < SCAN_PIECES and self._due_tokens > 1:
                return 0
            scanner.feed(b"".join(held))
            held.clear()
            tokens = scanner.tokens
            if tokens < self._due_tokens:
                return 0
            self._due_tokens = tokens + GROW_TOKENS
            return tokens
        if self._body is not None:
            whole = len(self._body) + len(data)
            self._body = self._body + data if whole <= MAX_SCANNED_BYTES else None
        return 0

    def usage(self) -> Usage | None:
        """Return what the engine reported, if it did."""
        if self._scanner is not None:
            self._scanner.feed(b"".join(self._held))
            self._held.clear()
            return self._scanner.usage
        return find_usage(self._body) if self._body else None
