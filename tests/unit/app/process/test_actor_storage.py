import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from typing import Protocol

import pytest

from kvmesh.actors.kernel import Effect, Message
from kvmesh.actors.storage import (
    Deleted,
    DeleteKey,
    DeleteObject,
    DeleteOrphans,
    Failed,
    FetchObject,
    KeyRead,
    KeysListed,
    KeyWritten,
    ListKeys,
    ListObjects,
    ObjectFetched,
    ObjectsListed,
    ObjectStored,
    PurgeJournal,
    ReadKey,
    StorageWish,
    StoreObject,
    WriteKey,
)
from kvmesh.app.process.actor_storage import StorageCarrier
from kvmesh.app.process.aio import AioDriver
from kvmesh.tasks import TASK
from tests.conftest import Contexts
from tests.doubles.memory.journal import MemoryJournal
from tests.doubles.memory.kv import MemoryKeyValue
from tests.doubles.memory.objects import MemoryObjects
from tests.doubles.memory.server import MemoryServer


class Eventually(Protocol):
    def __call__(self, condition: Callable[[], object]) -> Awaitable[None]: ...


class Wisher:
    """Wishes what it is asked to, and collects the answers."""

    name = "wisher"

    def __init__(self) -> None:
        self.wishes: list[Effect] = []
        self.answers: list[Message] = []

    def receive(self, message: Message, now: float) -> Iterable[Effect]:  # noqa: ARG002
        self.answers.append(message)
        wishes, self.wishes = self.wishes, []
        return wishes


class World:
    def __init__(self) -> None:
        self.server = MemoryServer()
        self.journal = MemoryJournal(self.server, "s")
        self.driver = AioDriver()
        self.carrier = StorageCarrier(
            self.driver,
            MemoryKeyValue(self.server, "b"),
            MemoryObjects(self.server, "b"),
            self.journal,
        )
        self.wisher = Wisher()
        self.driver.add(self.wisher)
        self.driver.start()

    async def wish(self, wish: StorageWish) -> Message:
        await asyncio.sleep(0)
        self.wisher.answers.clear()
        self.wisher.wishes.append(wish)
        self.driver.post("wisher", Message())
        while len(self.wisher.answers) < 2:  # noqa: ASYNC110 - the answer comes in a later turn
            await asyncio.sleep(0)
        return self.wisher.answers[1]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    made = World()
    await made.journal.open()
    yield made
    made.driver.stop()
    await made.carrier.close()


async def test_keys_are_read_written_listed_and_deleted(world: World) -> None:
    assert await world.wish(ReadKey("k", 1)) == KeyRead(1, None)
    written = await world.wish(WriteKey("k", b"v", None, 2))
    assert isinstance(written, KeyWritten)
    assert await world.wish(ReadKey("k", 3)) == KeyRead(3, b"v", written.revision)
    assert await world.wish(ListKeys("k", 4)) == KeysListed(4, ("k",))
    assert await world.wish(DeleteKey("k", written.revision, 5)) == Deleted(5, 1)


async def test_a_lost_race_is_a_conflict(world: World) -> None:
    await world.wish(WriteKey("k", b"v", None, 1))

    answer = await world.wish(WriteKey("k", b"w", None, 2))

    assert isinstance(answer, Failed)
    assert answer.conflict


async def test_objects_are_stored_fetched_listed_and_deleted(world: World) -> None:
    stored = await world.wish(StoreObject("o", b"data", 1))
    assert isinstance(stored, ObjectStored)
    assert stored.size == 4
    assert await world.wish(FetchObject("o", 2)) == ObjectFetched(2, b"data")
    listed = await world.wish(ListObjects(3))
    assert isinstance(listed, ObjectsListed)
    assert [(one.name, one.sha256) for one in listed.objects] == [("o", stored.sha256)]
    assert await world.wish(DeleteObject("o", 4)) == Deleted(4, 1)
    assert await world.wish(DeleteOrphans(5.0, 5)) == Deleted(5, 0)


async def test_the_journal_is_purged(world: World) -> None:
    for _ in range(3):
        world.journal.append("x", b"", lambda _: None)

    assert await world.wish(PurgeJournal(2, 1)) == Deleted(1, 2)


async def test_a_server_out_of_reach_is_a_failure_of_unknown_outcome(world: World) -> None:
    world.server.set_up(up=False)

    answer = await world.wish(ReadKey("k", 1))

    assert isinstance(answer, Failed)
    assert not answer.conflict


async def test_closing_gives_up_what_is_under_way(world: World) -> None:
    world.wisher.wishes.append(ReadKey("k", 1))
    world.driver.press("wisher", Message())

    await world.carrier.close()

    assert not any(isinstance(one, KeyRead) for one in world.wisher.answers)


async def test_a_bug_in_a_store_is_reported_and_the_actor_learns_that_its_wish_failed(
    world: World, monkeypatch: pytest.MonkeyPatch, reported: Contexts
) -> None:
    async def broken(_: MemoryObjects, name: str) -> bytes:
        raise KeyError(name)

    monkeypatch.setattr(MemoryObjects, "get", broken)

    assert await world.wish(FetchObject("idx-1", 7)) == Failed(7, "KeyError('idx-1')")
    assert await world.wish(ReadKey("k", 8)) == KeyRead(8, None)
    assert [one[TASK] for one in reported] == ["storage"]
