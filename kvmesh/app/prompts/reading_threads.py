"""Where bodies are read that would hold the event loop for too long."""

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from kvmesh.transport.http.server.held_body import run_holding
from kvmesh.transport.http.server.request import Request

INLINE_ITEMS: Final = 10_000
"""Values in a body worth about 2 ms: parsed, looked at as messages, rendered."""

INLINE_BYTES: Final = 1 << 18
"""Bytes of a body worth about 2 ms of looking at its prompt."""

HEAVY_BYTES: Final = 1 << 20
HEAVY_ITEMS: Final = 30_000

Result = TypeVar("Result")


class ReadingThreads:
    """Runs what reads a body in a thread, the largest bodies one at a time.

    A single call of a decoder holds the interpreter until it is done: several at once would stop
    the event loop for the sum of them.
    """

    def __init__(self) -> None:
        self._heavy = ThreadPoolExecutor(1, thread_name_prefix="heavy")
        self._others = ThreadPoolExecutor(thread_name_prefix="read")

    async def run(self, request: Request, work: Callable[[], Result]) -> Result:
        """Return what `work` returns of `request`, whose body counts until the thread is done."""
        heavy = len(request.body) > HEAVY_BYTES or request.items > HEAVY_ITEMS
        return await run_holding(self._heavy if heavy else self._others, request, work)
