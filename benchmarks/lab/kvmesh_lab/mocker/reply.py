"""Where the pretend vLLM writes an answer to: an exchange, or one that spoils what passes."""

import asyncio
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final, Protocol

from kvmesh.transport.http.server.exchange import JSON, Exchange
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.wire.headers import Headers

WHOLE_WRITES: Final = 3
"""Writes of a stream that are passed on before the one that is cut, when it has so many."""


class Reply(Protocol):
    """The part of an `Exchange` that answers are written with."""

    on_disconnect: Callable[[], None] | None

    @property
    def request(self) -> Request:
        """Return what is answered."""
        ...

    @property
    def request_id(self) -> bytes:
        """Return the id of request and answer."""
        ...

    @property
    def disconnected(self) -> bool:
        """Return whether nobody is left to answer."""
        ...

    def respond(self, status: int, body: bytes) -> None:
        """Write a whole JSON answer."""
        ...

    def start(self, status: int, headers: Headers) -> None:
        """Begin a stream."""
        ...

    def write(self, data: bytes) -> None:
        """Write a piece of a stream."""
        ...

    def end(self) -> None:
        """Complete a stream."""
        ...


class PassingReply:
    """Passes an answer on; others change what passes."""

    on_disconnect: Callable[[], None] | None

    def __init__(self, exchange: Exchange) -> None:
        self.request = exchange.request
        self.request_id = exchange.request_id
        self.on_disconnect = None
        self._exchange = exchange
        exchange.on_disconnect = self._lose

    @property
    def disconnected(self) -> bool:
        """Return whether the client has left, or has got all it will get."""
        return self._exchange.ended

    def start(self, status: int, headers: Headers) -> None:
        """Begin a stream."""
        self._exchange.start(status, headers)

    def _complete(self) -> None:
        """Have nobody told any more that the client left."""
        self.on_disconnect = None

    def _lose(self) -> None:
        callback, self.on_disconnect = self.on_disconnect, None
        if callback is not None:
            callback()


class SlowReply(PassingReply):
    """Holds everything back so that it takes `factor` times as long since the request came.

    The first token, every further one and the end all come so much later; the engine behind it
    works no slower.
    """

    def __init__(self, exchange: Exchange, factor: float) -> None:
        super().__init__(exchange)
        self._factor = factor
        self._loop = asyncio.get_running_loop()
        self._began_s = self._loop.time()
        self._held: deque[Callable[[], None]] = deque()

    @property
    def disconnected(self) -> bool:
        """Return whether the client has left."""
        return self._exchange.disconnected

    def respond(self, status: int, body: bytes) -> None:
        """Write a whole answer later."""
        self._complete()
        self._later(partial(self._exchange.respond, status, body))

    def start(self, status: int, headers: Headers) -> None:
        """Begin a stream later."""
        self._later(partial(self._exchange.start, status, headers))

    def write(self, data: bytes) -> None:
        """Write a piece later."""
        self._later(partial(self._exchange.write, data))

    def end(self) -> None:
        """Complete the stream later."""
        self._complete()
        self._later(self._exchange.end)

    def _later(self, act: Callable[[], None]) -> None:
        taken_s = self._loop.time() - self._began_s
        self._held.append(act)
        self._loop.call_at(self._began_s + taken_s * self._factor, self._pass_one)

    def _pass_one(self) -> None:
        """Do what was held first: timers of one time fire in any order."""
        if self._held:
            self._held.popleft()()

    def _lose(self) -> None:
        self._held.clear()
        super()._lose()


class CutReply(PassingReply):
    """Passes the beginning of an answer on and closes the connection in its middle.

    A whole answer loses the second half of its body. A stream is cut in the middle of an event
    after some others; of a short one it is the last that is cut, so none ever looks complete.
    """

    def __init__(self, exchange: Exchange) -> None:
        super().__init__(exchange)
        self._held: bytes | None = None
        self._passed = 0

    def respond(self, status: int, body: bytes) -> None:
        """Write the head of a whole answer and half of its body."""
        self._complete()
        headers = ((b"content-type", JSON), (b"x-request-id", self.request_id))
        self._exchange.start(status, headers, len(body))
        self._cut(body)

    def write(self, data: bytes) -> None:
        """Write the piece before, and hold this one back; of one piece too many write half."""
        if self._exchange.ended:
            return
        if self._held is not None:
            self._exchange.write(self._held)
            self._passed += 1
        self._held = data
        if self._passed == WHOLE_WRITES:
            self._cut(data)
            # The engine is told when it has handed out the step's tokens.
            asyncio.get_running_loop().call_soon(self._lose)

    def end(self) -> None:
        """Cut the last piece."""
        self._complete()
        if not self._exchange.ended:
            self._cut(self._held or b"")

    def _cut(self, data: bytes) -> None:
        self._exchange.write(data[: len(data) // 2])
        self._exchange.abort()
