"""The event plane in memory."""

import asyncio
from collections.abc import Callable, Mapping, Sequence

from kvmesh.actors.kernel import Message
from kvmesh.actors.wire import Subjects
from kvmesh.core.programs.shared import MAX_PROGRAMS, PROGRAM_TTL_S
from kvmesh.core.routing.kept_ids import KeptIdOptions
from kvmesh.errors import TransportError
from kvmesh.ports import Bus, Control, Handler, Refusals
from kvmesh.tasks import guarded
from tests.doubles.memory.bus import MemoryBus
from tests.doubles.memory.control import MemoryControl
from tests.doubles.memory.journal import MemoryJournal
from tests.doubles.memory.kv import MemoryKeyValue
from tests.doubles.memory.objects import MemoryObjects
from tests.doubles.memory.server import MemoryServer
from tests.doubles.memory.table import MemoryTable


class MemoryPlane:
    """The `EventPlane` of one process on a `server` that others share."""

    def __init__(self, server: MemoryServer, namespace: str = "kvmesh") -> None:
        self.bus: Bus = MemoryBus(server)
        self._server = server
        self._namespace = namespace
        self._open = self._reported = False
        self._waiting = ""
        self._kept: set[str] = set()
        self._listeners: list[Callable[[bool], None]] = []
        self._changed = asyncio.Event()

    @property
    def connected(self) -> bool:
        """Return whether messages can be sent now."""
        return self._open and self._server.up

    async def connect(self, *, patient: bool = False) -> None:
        """Connect; `patient`: when the server is up. Raises `TransportError` when it is not."""
        self._server.observe(self)
        while not self._server.up:
            if not patient:
                self._server.forget(self)
                raise TransportError("cannot connect: the memory server is down")
            self._waiting = "waiting for the memory server"
            self._changed.clear()
            await self._changed.wait()
        self._waiting = ""
        self._open = True
        self._deliver()

    async def close(self) -> None:
        """Disconnect for good; safe to call twice."""
        self._open = False
        self._deliver()
        self._server.forget(self)

    def wake(self) -> None:
        """Notice what changed at the server."""
        self._changed.set()
        self._deliver()

    def on_change(self, listener: Callable[[bool], None]) -> Callable[[], None]:
        """Call `listener(up)` after each disconnect and reconnect; the result undoes it."""
        guarded_listener = guarded("connection listener", listener)
        self._listeners.append(guarded_listener)

        def forget() -> None:
            if guarded_listener in self._listeners:
                self._listeners.remove(guarded_listener)

        return forget

    def waiting(self) -> str:
        """Return what a patient start waits for; "" for nothing."""
        return self._waiting

    def warnings(self) -> tuple[str, ...]:
        """Return nothing: memory refuses nothing."""
        return ()

    def unverified(self) -> Refusals:
        """Return nothing: in memory nobody signs."""
        return Refusals()

    async def journal(self, bucket: str, *, ensure: bool = True) -> MemoryJournal:
        """Return the bucket's event stream. Raises `TransportError`."""
        stream = Subjects(self._namespace, bucket).stream()
        journal = MemoryJournal(self._server, stream)
        await journal.open(ensure=ensure)
        if ensure:
            self._kept.add(stream)
        return journal

    async def usage(self, bucket: str) -> MemoryJournal:
        """Return the bucket's record of usage. Raises `TransportError`."""
        stream = f"{self._namespace}_usage_{bucket}"
        journal = MemoryJournal(self._server, stream)
        await journal.open()
        self._kept.add(stream)
        return journal

    async def stores(self, bucket: str) -> tuple[MemoryKeyValue, MemoryObjects]:
        """Return the mesh's keys and the bucket's snapshots. Raises `TransportError`."""
        self._server.require_up(bucket)
        keys = MemoryKeyValue(self._server, f"{self._namespace}_meta")
        return keys, MemoryObjects(self._server, f"{self._namespace}_snapshots_{bucket}")

    async def sessions(self, bucket: str, ttl_s: int) -> MemoryTable:
        """Return the bucket's table of sessions. Raises `TransportError`."""
        self._server.require_up(bucket)
        return MemoryTable(self._server, f"{self._namespace}_sessions_{bucket}", ttl_s)

    async def programs(self, bucket: str, ttl_s: int, max_keys: int) -> MemoryTable:
        """Return the bucket's table of agents. Raises `TransportError`."""
        self._server.require_up(bucket)
        name = f"{self._namespace}_programs_{bucket}"
        return MemoryTable(self._server, name, ttl_s, max_keys)

    async def ids(self, bucket: str, ttl_s: int, max_keys: int) -> MemoryTable:
        """Return the bucket's table of whose ids are. Raises `TransportError`."""
        self._server.require_up(bucket)
        name = f"{self._namespace}_ids_{bucket}"
        return MemoryTable(self._server, name, ttl_s, max_keys)

    async def homes(self, ttl_s: int, max_keys: int) -> MemoryTable:
        """Return the table of where conversations are. Raises `TransportError`."""
        self._server.require_up("homes")
        return MemoryTable(self._server, f"{self._namespace}_homes", ttl_s, max_keys)

    async def control(
        self,
        subjects: Sequence[str] = (),
        handlers: Mapping[type[Message], Handler] = {},
    ) -> Control:
        """Answer commands on `subjects` from now on. Raises `TransportError`."""
        self._server.require_up("control")
        return MemoryControl(self._server, subjects, handlers)

    async def declare(self, bucket: str, session_ttl_s: int) -> None:
        """Make the bucket's stream; stores need no making. Raises `TransportError`."""
        await self.journal(bucket)
        await self.sessions(bucket, session_ttl_s)
        await self.programs(bucket, PROGRAM_TTL_S, MAX_PROGRAMS)
        ids = KeptIdOptions()
        await self.ids(bucket, int(ids.ttl_s), ids.max_ids)
        await self.usage(bucket)

    async def keep(self) -> None:
        """Make anew, for ever, the streams of this plane that are deleted."""
        while True:
            self._changed.clear()
            for stream in self._kept - set(self._server.streams):
                self._server.make_stream(stream)
            await self._changed.wait()

    async def warn_of_risks(self) -> None:
        """Say nothing: memory promises nothing."""

    def _deliver(self) -> None:
        if self.connected != self._reported:
            self._reported = self.connected
            for listener in list(self._listeners):
                listener(self._reported)
