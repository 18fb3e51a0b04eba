"""What a gateway's way of ending a stream means for the request on it."""

import asyncio
from collections.abc import Callable
from enum import Enum
from typing import Final

from kvmesh.tasks import guarded
from kvmesh.transport.grpc.session_events import CONNECT_ERROR

SETTLE_S: Final = 0.02
"""A reset that belongs to the end of a stream comes in the same packet, or the next."""

SOON_S: Final = 0.25
"""So soon after an answer a gateway closes that needs no more."""


class Left(Enum):
    """What is known of a request whose stream ended before its response did.

    GONE: its client, or the gateway, left. RUNNING: the gateway needs nothing else of us. OVER: it
    is no longer there; whether its client has all of its answer is not known.
    """

    GONE = 0
    RUNNING = 1
    OVER = 2


class Leaving:
    """Of one stream; `quiet`: the gateway sends no body of its response.

    Envoy resets a stream that it has not closed before when it needs nothing else of us. One that
    it has closed it resets at once where the request is over; closed alone it means, if it is soon
    after an answer, that it needs no more.
    """

    __slots__ = ("_answered_s", "_closed", "quiet")

    def __init__(self) -> None:
        self.quiet = self._closed = False
        self._answered_s = 0.0

    def note_answer(self) -> None:
        """Take that the gateway gets an answer now."""
        if self.quiet:
            self._answered_s = asyncio.get_running_loop().time()

    def half_close(self, leave: Callable[[Left], None]) -> None:
        """Take that the gateway closed its side; `leave` is called once no reset belongs to it."""
        self._closed = True
        loop = asyncio.get_running_loop()
        quick = loop.time() - self._answered_s < SOON_S
        left = Left.RUNNING if quick else Left.OVER
        loop.call_later(SETTLE_S, guarded("half-closed streams", leave), left)

    def reset(self, code: int) -> Left:
        """Return what a reset with that code means."""
        return Left.OVER if self._closed or code == CONNECT_ERROR else Left.RUNNING
