"""Answers the commands to one router, once what matters more is done."""

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Mapping, Sequence
from importlib import import_module
from typing import Any, Protocol, cast

from kvmesh.actors.kernel import Message
from kvmesh.app.mesh.nats_link import warn_of_risks
from kvmesh.settings.roles import NatsSettings
from kvmesh.transport.nats.link.connection import NatsConnection

LATEST_S = 5.0
WARM_POLL_S = 0.02

Handler = Callable[[Any], Awaitable[object]]


class Commands(Protocol):
    """What answers commands: a `ControlPlane`."""

    async def start(self) -> None:
        """Listen."""
        ...

    async def close(self) -> None:
        """Stop listening."""
        ...


MakeCommands = Callable[
    [NatsConnection, Sequence[str], Mapping[type[Message], Handler]],
    Commands,
]


class RouterCommands:
    """Listens on `subject` from when the router is warm, 5 s after its start at the latest.

    FastStream takes a third of all processor time until then, were it loaded before.
    """

    def __init__(
        self,
        settings: NatsSettings,
        connection: NatsConnection,
        subject: str,
        handlers: Mapping[type[Message], Handler],
    ) -> None:
        self._settings = settings
        self._connection = connection
        self._subject = subject
        self._handlers = handlers
        self._running: asyncio.Task[None] | None = None

    def start(self, is_warm: Callable[[], bool]) -> None:
        """Begin to wait for `is_warm`."""
        self._running = asyncio.create_task(self._answer(is_warm), name="commands")

    async def failed(self) -> None:
        """Wait until answering fails, and raise what it raised."""
        assert self._running is not None
        await asyncio.shield(self._running)

    async def close(self) -> None:
        """Stop listening; safe to call twice."""
        if self._running is not None:
            self._running.cancel()
            await asyncio.gather(self._running, return_exceptions=True)

    async def _answer(self, is_warm: Callable[[], bool]) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LATEST_S):
                while not is_warm():  # noqa: ASYNC110  an event costs each turn
                    await asyncio.sleep(WARM_POLL_S)
        await warn_of_risks(self._settings, self._connection)
        module = await asyncio.to_thread(import_module, "kvmesh.transport.nats.link.control")
        control = cast("MakeCommands", module.ControlPlane)(
            self._connection, (self._subject,), self._handlers
        )
        try:
            await control.start()
            await asyncio.Event().wait()
        finally:
            await control.close()
