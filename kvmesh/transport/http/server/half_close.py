"""Telling a client that only ended its requests from one that is gone: both send the same FIN.

TCP says which only to who writes: a client that is gone answers bytes with a reset. So the answer's
next bytes are sent before it is there, as far as they are the same whatever it will be
(`Exchange.reach_out`), and the socket is looked at for the reset.
"""

import asyncio
import select
import socket
from collections.abc import Callable
from typing import Final

FIRST_LOOK_S: Final = 0.002
LAST_LOOK_S: Final = 0.25

_OVER: Final = select.POLLERR | select.POLLHUP


class HalfClosed:
    """Calls `gone` once when the peer has reset the connection; looks ever later, for ever."""

    def __init__(self, sock: socket.socket, gone: Callable[[], None]) -> None:
        self._poll = select.poll()
        self._poll.register(sock.fileno(), 0)
        self._gone = gone
        self._loop = asyncio.get_running_loop()
        self._pause_s = FIRST_LOOK_S
        self._timer = self._loop.call_later(self._pause_s, self._check)

    def stop(self) -> None:
        """Look no more; before the socket is closed."""
        self._timer.cancel()
        self._gone = _nothing

    def _check(self) -> None:
        if any(events & _OVER for _, events in self._poll.poll(0)):
            self._gone()
            return
        self._pause_s = min(2 * self._pause_s, LAST_LOOK_S)
        self._timer = self._loop.call_later(self._pause_s, self._check)


def _nothing() -> None:
    """Stand where the connection stood, whose cycle with its watch is broken."""
