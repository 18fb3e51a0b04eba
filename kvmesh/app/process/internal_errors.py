"""What no part of the process handled: logged, counted, and when it is fatal, the process's end."""

import asyncio
from collections import Counter
from typing import Any, Final

from kvmesh.observe import get_logger
from kvmesh.tasks import FATAL, TASK

QUIET_S: Final = 1.0
"""A fault that comes with each message is logged once in so long."""

UNNAMED: Final = "callback"


class InternalErrors:
    """The event loop's exception handler: `kvmesh_internal_errors_total{task=...}` and a log line.

    Its names are those of `kvmesh.tasks`, a task's function, or "callback".
    """

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._logged_s: dict[str, float] = {}
        self.fatal: Exception | None = None
        self._ends = asyncio.Event()

    def handle(self, loop: asyncio.AbstractEventLoop, context: dict[str, Any]) -> None:
        """Take what asyncio or `kvmesh.tasks` reports."""
        error, name = context.get("exception"), name_of(context)
        said = context.get("message", "")  # uvloop's protocol factories have none
        if isinstance(error, OSError) and name == UNNAMED:
            # Sockets end in many ways: that is the network's fault.
            get_logger().warning("connection failed", error=str(error), where=said)
            return
        self._counts[name] += 1
        if context.get(FATAL) and isinstance(error, Exception) and self.fatal is None:
            self.fatal = error
            self._ends.set()
        now = loop.time()
        if now - self._logged_s.get(name, -QUIET_S) >= QUIET_S:
            self._logged_s[name] = now
            count = self._counts[name]
            get_logger().error("internal error", task=name, what=said, count=count, exc_info=error)

    async def wait_fatal(self) -> None:
        """Return when the process shall end."""
        await self._ends.wait()

    def counts(self) -> dict[str, float]:
        """Return how many there were, by what they are counted under."""
        return {name: float(count) for name, count in sorted(self._counts.items())}


def name_of(context: dict[str, Any]) -> str:
    """Return what an exception handler's context is counted under: one of few words."""
    if TASK in context:
        return str(context[TASK])
    task: asyncio.Future[object] | None = context.get("task") or context.get("future")
    if isinstance(task, asyncio.Task):
        coroutine: object = task.get_coro()
        return str(getattr(coroutine, "__qualname__", UNNAMED))
    return UNNAMED
