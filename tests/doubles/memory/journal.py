"""The journal in memory, with the same notices as the real one."""

import asyncio
from collections.abc import Callable

from kvmesh.ports import StreamState, TailListener
from kvmesh.tasks import guarded
from tests.doubles.memory.server import MemoryServer, MemoryStream
from tests.doubles.memory.tail import Follower

WINDOW = 512
MAX_MESSAGE_BYTES = 512 * 1024


class MemoryTail(Follower):
    """A running tail: delivers at most 512 records a turn of the event loop."""

    def __init__(
        self, server: MemoryServer, stream: str, after: int, created: str, listener: TailListener
    ) -> None:
        self._stream = stream
        self._position = after
        self._created = created
        self._listener = listener
        self._target: int | None = None
        self._asked = False
        super().__init__(server)

    def _pump(self) -> None:
        stream = self._server.streams.get(self._stream)
        if self._closed or stream is None or not self._server.up:
            self._asked = False
            return
        self._check_incarnation(stream)
        if self._position + 1 < stream.first:
            first, self._position = self._position + 1, stream.first - 1
            guarded("tail", self._listener.on_gap)(first, self._position)
        if not self._asked:
            self._asked, self._target = True, stream.last
        self._deliver(stream)

    def _deliver(self, stream: MemoryStream) -> None:
        begin = self._position + 1 - stream.first
        for record in stream.records[begin : begin + WINDOW]:
            if self._closed:
                return
            self._position = record.sequence
            guarded("tail", self._listener.on_record)(record)
        if self._target is not None and self._position >= self._target and not self._closed:
            target, self._target = self._target, None
            guarded("tail", self._listener.on_caught_up)(target)
        if self._position < stream.last:
            self.wake()

    def _check_incarnation(self, stream: MemoryStream) -> None:
        if self._created in ("", stream.created) and self._position <= stream.last:
            self._created = stream.created
            return
        self._created = stream.created
        self._position = 0
        self._asked = False
        guarded("tail", self._listener.on_recreated)(stream.state())


class MemoryJournal:
    """The `Journal` of one bucket."""

    def __init__(self, server: MemoryServer, stream: str) -> None:
        self.refused = 0
        self.unsent = 0
        self._server = server
        self._stream = stream

    async def open(self, *, ensure: bool = True) -> None:
        """Make the stream when there is none. Raises `TransportError` when the server is down."""
        self._server.require_up(self._stream)
        if ensure and self._stream not in self._server.streams:
            self._server.make_stream(self._stream)

    async def close(self) -> None:
        """Do nothing; tails are closed by who opened them."""

    async def state(self) -> StreamState:
        """Return the stream's state. Raises `TransportError`."""
        return self._server.stream(self._stream).state()

    def append(
        self, subject: str, data: bytes, acked: Callable[[int], None], message_id: str = ""
    ) -> None:
        """Store `data`; `acked(sequence)` follows in a later turn, unless acks are dropped."""
        if not self._server.up or self._server.lose_appends:
            self.unsent += 1
            return
        stream = self._server.streams.get(self._stream)
        if stream is None or len(data) > MAX_MESSAGE_BYTES:
            self.refused += 1
            return
        sequence = stream.ids.get(message_id, 0) or stream.store(subject, data)
        if message_id:
            stream.ids[message_id] = sequence
        self._server.wake()
        if not self._server.drop_acks:
            asyncio.get_running_loop().call_soon(acked, sequence)

    async def tail(self, after: int, created: str, listener: TailListener) -> MemoryTail:
        """Deliver everything behind sequence `after`, for ever; `created` "" is any stream."""
        return MemoryTail(self._server, self._stream, after, created, listener)

    async def purge(self, up_to: int) -> int:
        """Delete sequences <= `up_to`, return how many. Raises `TransportError`."""
        count = self._server.stream(self._stream).purge(up_to)
        self._server.wake()
        return count
