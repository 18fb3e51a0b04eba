"""What follows something at the memory server: looks again after each change."""

import asyncio
from abc import ABC, abstractmethod

from tests.doubles.memory.server import MemoryServer


class Follower(ABC):
    """Looks in the next turn of the event loop after a change, once for several; until closed."""

    def __init__(self, server: MemoryServer) -> None:
        self._server = server
        self._scheduled = False
        self._closed = False
        server.observe(self)
        self.wake()

    async def close(self) -> None:
        """Stop delivering; safe to call twice."""
        self._closed = True
        self._server.forget(self)

    def wake(self) -> None:
        """Deliver what there is, in the next turn."""
        if not self._scheduled and not self._closed:
            self._scheduled = True
            asyncio.get_running_loop().call_soon(self._turn)

    def _turn(self) -> None:
        self._scheduled = False
        self._pump()

    @abstractmethod
    def _pump(self) -> None:
        """Deliver what there is now."""
