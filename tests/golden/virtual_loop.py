"""An event loop in virtual time, with a network in memory: the same run each time, to the byte."""

import asyncio
import concurrent.futures
import contextlib
import selectors
import time
from collections.abc import Callable, Iterator
from typing import Any, Final
from unittest import mock

from kvmesh.app.prompts.reading import Reader
from kvmesh.app.views.spare_time import SpareTime

EPOCH_S: Final = 1_800_000_000.0
"""What `time.time` shows when a run begins."""

Factory = Callable[[], asyncio.BaseProtocol]


class VirtualSelector(selectors.DefaultSelector):
    """Lets time pass at once where the loop would wait for it."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s = 100.0

    def select(self, timeout: float | None = None) -> Any:
        found = super().select(0)
        if found:
            return found
        if timeout is None:
            raise RuntimeError("nothing is due and nothing can come: the run stands still")
        self.now_s += max(0.0, timeout)
        return found


class VirtualLoop(asyncio.SelectorEventLoop):
    """Connects and listens in memory alone: by port, whatever the host."""

    def __init__(self) -> None:
        self.virtual = VirtualSelector()
        self.listeners: dict[int, Factory] = {}
        super().__init__(self.virtual)

    def time(self) -> float:
        return self.virtual.now_s

    def wall_time(self) -> float:
        return EPOCH_S + self.virtual.now_s

    async def create_connection(  # type: ignore[override]
        self, factory: Factory, host: str, port: int, **_: object
    ) -> tuple["Wire", asyncio.BaseProtocol]:
        await asyncio.sleep(0)
        server = self.listeners.get(port)
        if server is None:
            raise ConnectionRefusedError(111, f"Connect call failed ('{host}', {port})")
        near, far = factory(), server()
        one, other = Wire(self, near), Wire(self, far)
        one.peer, other.peer = other, one
        far.connection_made(other)
        near.connection_made(one)
        return one, near

    async def create_server(  # type: ignore[override]
        self, factory: Factory, *, sock: "Listening", **_: object
    ) -> "Listening":
        self.listeners[sock.port] = factory
        sock.loop = self
        return sock


class Listening:
    """In place of a listening socket, and of the server that accepts on it."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.loop: VirtualLoop | None = None

    def getsockname(self) -> tuple[str, int]:
        return "127.0.0.1", self.port

    def accept(self) -> None:
        """Say as a socket does that nothing waits: a connection is taken as it is made."""
        raise BlockingIOError

    def close(self) -> None:
        if self.loop is not None:
            self.loop.listeners.pop(self.port, None)


class Wire(asyncio.Transport):
    """One end of a connection: what is written comes to the other end in the loop's next turn."""

    def __init__(self, loop: VirtualLoop, protocol: asyncio.BaseProtocol) -> None:
        super().__init__()
        self.peer: Wire
        self._loop = loop
        self._protocol: Any = protocol
        self._closing = False
        self._gone = False
        self._paused = False
        self._kept: list[bytes] = []

    def write(self, data: Any) -> None:
        if data and not self._closing:
            self._loop.call_soon(self.peer.take, bytes(data))

    def writelines(self, list_of_data: Any) -> None:
        self.write(b"".join(list_of_data))

    def take(self, data: bytes) -> None:
        if self._gone:
            return
        if self._paused:
            self._kept.append(data)
        else:
            self._protocol.data_received(data)

    def pause_reading(self) -> None:
        self._paused = True

    def resume_reading(self) -> None:
        self._paused = False
        kept, self._kept = self._kept, []
        for data in kept:
            self._loop.call_soon(self.take, data)

    def is_reading(self) -> bool:
        return not self._paused

    def close(self) -> None:
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self._end, None)
            self._loop.call_soon(self.peer.hear_end, None)

    def abort(self) -> None:
        if not self._closing:
            self._closing = True
            self._loop.call_soon(self._end, None)
            self._loop.call_soon(self.peer.hear_end, ConnectionResetError("reset by peer"))

    def hear_end(self, error: Exception | None) -> None:
        """The other end is gone: by a FIN first where it closed well."""
        if self._gone:
            return
        if error is None and not self._closing and self._protocol.eof_received():
            return
        self._closing = True
        self._end(error)

    def _end(self, error: Exception | None) -> None:
        if not self._gone:
            self._gone = True
            self._protocol.connection_lost(error)

    def is_closing(self) -> bool:
        return self._closing

    def get_write_buffer_size(self) -> int:
        return 0

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        del high, low

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        known = {"peername": ("127.0.0.1", 50_000), "socket": _Socket()}
        return known.get(name, default)


class _Socket:
    def setsockopt(self, *_: object) -> None:
        pass


class _InOrder(dict[Any, None]):
    """A set that is walked through in the order of its items' arrival, not of their addresses."""

    def add(self, item: object) -> None:
        self[item] = None

    def discard(self, item: object) -> None:
        self.pop(item, None)


def _at_once(_: object, work: Callable[..., Any], /, *given: Any, **named: Any) -> Any:
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    try:
        future.set_result(work(*given, **named))
    except BaseException as error:  # noqa: BLE001  as an executor does
        future.set_exception(error)
    return future


def _own_name(_: Reader, request_id: bytes) -> str:
    """Return a name without a number: how often a router makes one up is nobody's affair."""
    return f"{request_id.decode()}#golden"


def _listen(host: str, port: int, **_: object) -> list[Listening]:
    del host
    return [Listening(port)]


@contextlib.contextmanager
def virtual_world() -> Iterator[VirtualLoop]:
    """Have clocks, sockets, threads and random ids of this process be those of one loop."""
    loop = VirtualLoop()
    clock = loop.time
    with (
        mock.patch.object(time, "monotonic", clock),
        mock.patch.object(time, "perf_counter", clock),
        mock.patch.object(time, "time", loop.wall_time),
        mock.patch.object(concurrent.futures.ThreadPoolExecutor, "submit", _at_once),
        mock.patch("kvmesh.transport.http.server.server.listen", _listen),
        mock.patch("kvmesh.transport.http.server.scope.urandom", bytes),
        mock.patch.object(Reader, "own_name", _own_name),
        mock.patch("kvmesh.transport.http.wire.deadlines.set", _InOrder, create=True),
        mock.patch.object(SpareTime.__init__, "__defaults__", (clock,)),
        mock.patch("secrets.randbits", lambda bits: bits),
    ):
        try:
            yield loop
        finally:
            loop.close()
