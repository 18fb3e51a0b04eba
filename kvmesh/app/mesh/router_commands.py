"""Answers the commands to one router, and says what its events could be lost to."""

import asyncio
import contextlib
from collections.abc import Callable, Mapping
from functools import partial

from kvmesh.actors.kernel import Message
from kvmesh.actors.messages import Drain, StateWanted, Status
from kvmesh.app.mesh.router_mesh import MeshPart
from kvmesh.ports import EventPlane, Handler
from kvmesh.tasks import end_tasks, supervise

LATEST_S = 5.0
WARM_POLL_S = 0.02


class RouterCommands:
    """Listens on `subject` for what every router takes, and for what `handlers` do besides; `post`
    takes what a sibling asks for.

    When the router is warm, or after 5 s, it is told to begin, and what could go wrong is said.
    """

    def __init__(
        self,
        plane: EventPlane,
        subject: str,
        mesh: MeshPart,
        post: Callable[[Message], None],
        handlers: Mapping[type[Message], Handler] = {},
    ) -> None:
        self._plane = plane
        self._subject = subject
        self._mesh = mesh
        self._post = post
        self._handlers: dict[type[Message], Handler] = {
            StateWanted: self._on_state_wanted,
            Drain: self._on_drain,
            Status: self._on_status,
            **handlers,
        }
        self._running: asyncio.Task[None] | None = None

    def start(self, is_warm: Callable[[], bool], begin: Callable[[], None]) -> None:
        """Begin to wait for `is_warm`."""
        self._running = supervise("commands", partial(self._answer, is_warm, begin), "end")

    async def failed(self) -> None:
        """Wait until answering fails, and raise what it raised."""
        assert self._running is not None
        await asyncio.shield(self._running)

    async def close(self) -> None:
        """Stop listening; safe to call twice."""
        if self._running is not None:
            await end_tasks(self._running)

    async def _on_state_wanted(self, command: StateWanted) -> None:
        self._post(command)

    async def _on_drain(self, command: Drain) -> None:
        self._mesh.draining = command.draining

    async def _on_status(self, command: Status) -> dict[str, object]:
        del command
        return self._mesh.describe()

    async def _answer(self, is_warm: Callable[[], bool], begin: Callable[[], None]) -> None:
        control = await self._plane.control((self._subject,), self._handlers)
        try:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LATEST_S):
                    while not is_warm():  # noqa: ASYNC110  an event costs each turn
                        await asyncio.sleep(WARM_POLL_S)
            begin()
            await self._plane.warn_of_risks()
            await asyncio.Event().wait()
        finally:
            await control.close()
