"""The bus in memory."""

import asyncio
from collections.abc import Callable

from tests.doubles.memory.server import MemoryServer


class MemorySubscription:
    """A running bus subscription."""

    def __init__(
        self, server: MemoryServer, pattern: str, deliver: Callable[[str, bytes], None]
    ) -> None:
        self._server = server
        self._pattern = pattern
        self._deliver = deliver
        self._closed = False
        server.join(self)

    def offer(self, subject: str, data: bytes) -> None:
        """Deliver in the next turn, if the pattern matches and the subscription still runs."""
        if subject_matches(self._pattern, subject):
            asyncio.get_running_loop().call_soon(self._hand_over, subject, data)

    async def close(self) -> None:
        """Stop delivering; safe to call twice."""
        self._closed = True
        self._server.leave(self)

    def _hand_over(self, subject: str, data: bytes) -> None:
        if not self._closed:
            self._deliver(subject, data)


class MemoryBus:
    """The `Bus`. Messages published while the server is down are dropped and counted."""

    def __init__(self, server: MemoryServer) -> None:
        self.dropped = 0
        self._server = server

    def publish(self, subject: str, data: bytes) -> None:
        """Send, never waiting; dropped and counted while the server is down."""
        if self._server.up:
            self._server.publish(subject, data)
        else:
            self.dropped += 1

    async def subscribe(
        self, pattern: str, deliver: Callable[[str, bytes], None]
    ) -> MemorySubscription:
        """Deliver `(subject, data)` of every message matching `pattern`."""
        return MemorySubscription(self._server, pattern, deliver)


def subject_matches(pattern: str, subject: str) -> bool:
    """Return whether a NATS pattern (`*` one word, `>` one or more at the end) matches."""
    wanted, words = pattern.split("."), subject.split(".")
    if wanted[-1] == ">":
        if len(words) < len(wanted):
            return False
        wanted, words = wanted[:-1], words[: len(wanted) - 1]
    return len(wanted) == len(words) and all(
        want in ("*", word) for want, word in zip(wanted, words, strict=True)
    )
