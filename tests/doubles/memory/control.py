"""Commands in memory."""

import asyncio
from collections.abc import Mapping, Sequence

from kvmesh.actors.kernel import Message
from kvmesh.errors import TransportError
from kvmesh.ports import ASK_TIMEOUT_S, Handler, T
from kvmesh.transport.commands import CommandDesk, decode_reply, encode_command
from tests.doubles.memory.server import MemoryServer


class MemoryControl:
    """The `Control` of one process. Commands to one subject run one after another."""

    def __init__(
        self,
        server: MemoryServer,
        subjects: Sequence[str],
        handlers: Mapping[type[Message], Handler],
    ) -> None:
        self._server = server
        self._desk = CommandDesk(handlers)
        self._turns = {subject: asyncio.Lock() for subject in subjects}
        self._under_way: set[asyncio.Task[bytes]] = set()
        for subject in subjects:
            server.listen(subject, self)

    async def close(self) -> None:
        """Stop listening, after the commands under way; safe to call twice."""
        for subject in self._turns:
            self._server.unlisten(subject, self)
        await asyncio.gather(*self._under_way)

    def command(self, subject: str, body: bytes) -> "asyncio.Task[bytes]":
        """Carry out a command, in its turn; the result is the answer's bytes."""
        task = asyncio.get_running_loop().create_task(self._answer(subject, body))
        self._under_way.add(task)
        task.add_done_callback(self._under_way.discard)
        return task

    async def ask(
        self, subject: str, command: Message, result: type[T], *, timeout_s: float = ASK_TIMEOUT_S
    ) -> T:
        """Return the result of `command` at whoever listens on `subject`."""
        what = f"{type(command).__name__} to {subject}"
        self._server.require_up(what)
        listener = self._server.listener(subject)
        if listener is None:
            raise TransportError(f"{what}: no responders, is it running?")
        answer = listener.command(subject, encode_command(command))
        try:
            body = await asyncio.wait_for(asyncio.shield(answer), timeout_s)
        except TimeoutError as error:
            raise TransportError(f"{what}: no answer in {timeout_s:g} s") from error
        return decode_reply(what, body, result)

    async def _answer(self, subject: str, body: bytes) -> bytes:
        async with self._turns[subject]:
            return await self._desk.handle(body)
