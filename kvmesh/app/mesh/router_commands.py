"""Answers the commands to one router, and says what its events could be lost to."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from functools import partial

from kvmesh.actors.kernel import Message
from kvmesh.ports import EventPlane, Handler
from kvmesh.tasks import end_tasks, supervise

LATEST_S = 5.0
WARM_POLL_S = 0.02


class RouterCommands:
    """Listens on `subject`; what could go wrong is said when the router is warm, or after 5 s."""

    def __init__(
        self, plane: EventPlane, subject: str, handlers: Mapping[type[Message], Handler]
    ) -> None:
        self._plane = plane
        self._subject = subject
        self._handlers = handlers
        self._running: asyncio.Task[None] | None = None

    def start(self, is_warm: Callable[[], bool]) -> None:
        """Begin to wait for `is_warm`."""
        self._running = supervise("commands", partial(self._answer, is_warm), "end")

    async def failed(self) -> None:
        """Wait until answering fails, and raise what it raised."""
        assert self._running is not None
        await asyncio.shield(self._running)

    async def close(self) -> None:
        """Stop listening; safe to call twice."""
        if self._running is not None:
            await end_tasks(self._running)

    async def _answer(self, is_warm: Callable[[], bool]) -> None:
        control = await self._plane.control((self._subject,), self._handlers)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LATEST_S):
                    while not is_warm():  # noqa: ASYNC110  an event costs each turn
                        await asyncio.sleep(WARM_POLL_S)
            await self._plane.warn_of_risks()
            await asyncio.Event().wait()
        finally:
            await control.close()
