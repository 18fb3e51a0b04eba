"""A TCP relay between gateway and picker: what a gateway sees when a picker dies, at any moment."""

import asyncio
from typing import Final

from kvmesh_lab.conformance.gateway_endpoints import serving_task

READ: Final = 65_536


class Relay:
    """Passes bytes on to `target`, until it is told to hold the picker's, or to die."""

    def __init__(self, target: str) -> None:
        self._target = target
        self._server: asyncio.Server | None = None
        self._port = 0
        self._writers: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[object]] = set()
        self._answers = asyncio.Event()
        self._answers.set()
        self.passed = asyncio.Event()
        """Set when bytes of a gateway were passed on: cleared by whoever waits for the next."""

    @property
    def address(self) -> str:
        """Return where it listens."""
        return f"127.0.0.1:{self._port}"

    @property
    def runs(self) -> bool:
        """Return whether it listens."""
        return self._server is not None

    async def start(self) -> None:
        """Listen, at the same port as before."""
        self._answers.set()
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", self._port)
        self._port = self._server.sockets[0].getsockname()[1]

    def hold_answers(self) -> None:
        """Keep what the picker says back, as if it still thought."""
        self._answers.clear()

    async def die(self) -> None:
        """Close the port and reset all connections, as the kernel does for a killed process."""
        if self._server is None:
            return
        self._server.close()
        for writer in list(self._writers):
            writer.transport.abort()
        await self._server.wait_closed()
        self._answers.set()  # who held them is to end
        await asyncio.gather(*self._tasks)
        self._server = None

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        host, _, port = self._target.rpartition(":")
        try:
            from_picker, to_picker = await asyncio.open_connection(host.strip("[]"), int(port))
        except OSError:
            writer.transport.abort()
            return
        both = {writer, to_picker}
        self._writers |= both
        task = serving_task()
        self._tasks.add(task)
        try:
            await asyncio.gather(
                self._pass_on(reader, to_picker, asked=True),
                self._pass_on(from_picker, writer, asked=False),
            )
        finally:
            self._tasks.discard(task)
            self._writers -= both
            for one in both:
                one.transport.abort()

    async def _pass_on(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, *, asked: bool
    ) -> None:
        try:
            while data := await reader.read(READ):
                if asked:
                    self.passed.set()
                else:
                    await self._answers.wait()
                if writer.transport.is_closing():
                    return
                writer.write(data)
                await writer.drain()
            writer.close()
        except ConnectionError:
            writer.transport.abort()
