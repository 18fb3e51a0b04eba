"""A transport in memory that may fail, and a loop for machines."""

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


class Turns:
    """An event loop that runs only when told to; `reported` is what its handler was told."""

    def __init__(self) -> None:
        self.reported: list[object] = []
        self.loop = asyncio.new_event_loop()
        self.loop.set_exception_handler(
            lambda _, context: self.reported.append(context.get("exception"))
        )

    def inside(self, call: Callable[..., T], *args: Any) -> T:
        """Return what `call` returns in a callback of the loop, and run what it made due."""

        async def run() -> T:
            return call(*args)

        try:
            return self.loop.run_until_complete(run())
        finally:
            self.turn()

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """Run `work` to its end."""
        return self.loop.run_until_complete(work)

    def turn(self, times: int = 4) -> None:
        """Run what is due."""

        async def run() -> None:
            for _ in range(times):
                await asyncio.sleep(0)

        self.loop.run_until_complete(run())

    def close(self) -> None:
        """End the loop."""
        self.loop.close()


class Pipe(asyncio.Transport):
    """Keeps what is written until `deliver` hands it to the other end."""

    def __init__(self, protocol: asyncio.Protocol) -> None:
        super().__init__()
        self.written = bytearray()
        self.ended = False
        self._protocol = protocol

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not self.ended:
            self.written += data

    def get_write_buffer_size(self) -> int:
        return len(self.written)

    def is_closing(self) -> bool:
        return self.ended

    def abort(self) -> None:
        if not self.ended:
            self.ended = True
            self.written.clear()
            asyncio.get_running_loop().call_soon(self._protocol.connection_lost, None)

    def close(self) -> None:
        self.abort()

    def deliver(self, to: asyncio.Protocol, most: int) -> None:
        """Hand over as many bytes."""
        data = bytes(self.written[:most])
        del self.written[:most]
        if data:
            to.data_received(data)

    def pause_reading(self) -> None:
        pass

    def resume_reading(self) -> None:
        pass
