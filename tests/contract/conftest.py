import asyncio
import contextlib
import uuid
from collections.abc import AsyncIterator
from typing import Protocol

import pytest

from kvmesh.actors.wire import Subjects
from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.ports import Bus, EventPlane, Journal, KeyValue, ObjectStore, Record, StreamState
from kvmesh.transport.nats.jetstream.api import JetStream
from kvmesh.transport.nats.jetstream.journal import JournalOptions, NatsJournal
from kvmesh.transport.nats.jetstream.kv import KeyValueOptions, NatsKeyValue
from kvmesh.transport.nats.jetstream.objects import NatsObjects, ObjectOptions
from kvmesh.transport.nats.link.bus import NatsBus
from kvmesh.transport.nats.link.connection import NatsConnection, NatsOptions
from kvmesh.transport.nats.plane import NatsPlane, PlaneOptions
from tests.doubles.memory.bus import MemoryBus
from tests.doubles.memory.journal import MemoryJournal
from tests.doubles.memory.kv import MemoryKeyValue
from tests.doubles.memory.objects import MemoryObjects
from tests.doubles.memory.plane import MemoryPlane
from tests.doubles.memory.server import MemoryServer
from tests.nats_container import url_in


class Backend(Protocol):
    """One implementation of every port; two clients of it see the same mesh."""

    prefix: str

    async def plane(self) -> EventPlane: ...

    async def delete_stream(self, bucket: str) -> None: ...

    async def journal(self) -> Journal: ...

    async def bus(self) -> Bus: ...

    async def key_values(self) -> KeyValue: ...

    async def objects(self) -> ObjectStore: ...

    async def remake_stream(self) -> None: ...

    async def lose_tail(self, last: int) -> None: ...

    async def damage_object(self, name: str) -> None: ...

    async def leave_orphan(self) -> None: ...

    async def wait_s(self, seconds: float) -> None:
        """Let `seconds` pass on the clock by which keys expire."""
        ...


class MemoryBackend:
    def __init__(self) -> None:
        self.prefix = "t"
        self.now_s = 1_000_000.0
        self.server = MemoryServer(clock=lambda: self.now_s)

    async def plane(self) -> EventPlane:
        plane = MemoryPlane(self.server, self.prefix)
        await plane.connect()
        return plane

    async def delete_stream(self, bucket: str) -> None:
        self.server.delete_stream(Subjects(self.prefix, bucket).stream())

    async def journal(self) -> Journal:
        journal = MemoryJournal(self.server, "EVENTS")
        await journal.open()
        return journal

    async def bus(self) -> Bus:
        return MemoryBus(self.server)

    async def key_values(self) -> KeyValue:
        return MemoryKeyValue(self.server, "meta")

    async def objects(self) -> ObjectStore:
        return MemoryObjects(self.server, "snapshots")

    async def remake_stream(self) -> None:
        self.server.make_stream("EVENTS")

    async def lose_tail(self, last: int) -> None:
        self.server.truncate("EVENTS", last)

    async def damage_object(self, name: str) -> None:
        MemoryObjects(self.server, "snapshots").damage(name)

    async def leave_orphan(self) -> None:
        MemoryObjects(self.server, "snapshots").leave_orphan()

    async def wait_s(self, seconds: float) -> None:
        self.now_s += seconds


class NatsBackend:
    def __init__(self, url: str, stack: contextlib.AsyncExitStack) -> None:
        self.unique = uuid.uuid4().hex[:12]
        self.prefix = f"t{self.unique}"
        self.url = url
        self._stack = stack
        self._admin: NatsConnection | None = None

    async def connect(self) -> NatsConnection:
        connection = NatsConnection(NatsOptions(url=self.url, name="contract test"))
        await connection.connect()
        self._stack.push_async_callback(connection.close)
        return connection

    async def plane(self) -> EventPlane:
        connection = NatsOptions(url=self.url, name="contract test")
        options = PlaneOptions(
            namespace=self.prefix, connection=connection, max_bytes=16 * 1024**2, max_age_s=3600
        )
        plane = NatsPlane(options)
        await plane.connect()
        self._stack.push_async_callback(plane.close)
        return plane

    async def delete_stream(self, bucket: str) -> None:
        await (await self.admin()).delete_stream(Subjects(self.prefix, bucket).stream())

    async def journal(self) -> Journal:
        options = JournalOptions(
            stream=f"EVENTS_{self.unique}",
            subjects=(f"{self.prefix}.ev.>",),
            storage="memory",
            max_bytes=16 * 1024**2,
        )
        journal = NatsJournal(await self.connect(), options)
        await journal.open()
        self._stack.push_async_callback(journal.close)
        return journal

    async def bus(self) -> Bus:
        return NatsBus(await self.connect())

    async def key_values(self) -> KeyValue:
        options = KeyValueOptions(bucket=f"meta_{self.unique}", storage="memory")
        store = NatsKeyValue(await self.connect(), options)
        await store.open()
        return store

    async def objects(self) -> ObjectStore:
        options = ObjectOptions(bucket=f"snap_{self.unique}", storage="memory")
        store = NatsObjects(await self.connect(), options)
        await store.open()
        return store

    async def admin(self) -> JetStream:
        if self._admin is None:
            self._admin = await self.connect()
        return JetStream(self._admin)

    async def remake_stream(self) -> None:
        admin = await self.admin()
        config = (await admin.stream_info(f"EVENTS_{self.unique}")).config
        await admin.delete_stream(config["name"])
        await admin.ensure_stream(config)

    async def lose_tail(self, last: int) -> None:
        pytest.skip(f"a real server cannot be told to forget what follows {last}")

    async def damage_object(self, name: str) -> None:
        admin = await self.admin()
        stream = f"OBJ_snap_{self.unique}"
        info = await admin.stream_info(stream, subjects_filter=f"$O.snap_{self.unique}.C.>")
        (subject,) = info.state.subjects or {}
        assert name
        await admin.purge(stream, {"filter": subject, "keep": 1})

    async def leave_orphan(self) -> None:
        admin = await self.admin()
        for _ in range(2):
            await admin.publish(f"$O.snap_{self.unique}.C.orphan", b"chunk")

    async def wait_s(self, seconds: float) -> None:
        await asyncio.sleep(seconds)


@pytest.fixture(
    params=[
        "memory",
        pytest.param("nats", marks=pytest.mark.integration),
        pytest.param("container", marks=[pytest.mark.integration, pytest.mark.docker]),
    ]
)
def server_url(request: pytest.FixtureRequest) -> str | None:
    """The real server's URL, or None for memory; started only for tests that need it."""
    if request.param == "memory":
        return None
    if request.param == "container":
        return url_in(request.getfixturevalue("nats_container"))
    server: NatsServer = request.getfixturevalue("nats_server")
    return server.url


@pytest.fixture
async def backend(server_url: str | None) -> AsyncIterator[Backend]:
    if server_url is None:
        yield MemoryBackend()
        return
    async with contextlib.AsyncExitStack() as stack:
        yield NatsBackend(server_url, stack)


class Recorder:
    """A TailListener that writes down every call, and fails on a sequence that goes back."""

    def __init__(self) -> None:
        self.calls: list[Record | tuple[str, int, int]] = []
        self.records: list[Record] = []
        self.gaps: list[tuple[int, int]] = []
        self.recreated: list[StreamState] = []
        self.caught_up: list[int] = []
        self._last = 0

    def on_record(self, record: Record) -> None:
        assert record.sequence == self._last + 1, f"{record.sequence} after {self._last}"
        self._last = record.sequence
        self.records.append(record)

    def on_gap(self, first: int, last: int) -> None:
        assert first == self._last + 1, f"gap at {first} after {self._last}"
        assert last >= first
        self._last = last
        self.gaps.append((first, last))

    def on_recreated(self, state: StreamState) -> None:
        self._last = 0
        self.recreated.append(state)

    def on_caught_up(self, sequence: int) -> None:
        assert self._last >= sequence
        self.caught_up.append(sequence)

    def start_at(self, sequence: int) -> "Recorder":
        self._last = sequence
        return self

    @property
    def payloads(self) -> list[bytes]:
        return [record.data for record in self.records]


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def make_recorder() -> type[Recorder]:
    return Recorder
