import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import Protocol

import pytest

from kvmesh.actors.kernel import Effect, Message
from kvmesh.actors.messages import (
    CaughtUp,
    JournalGap,
    JournalOpened,
    JournalRecord,
    JournalRecreated,
    Started,
    Tick,
)
from kvmesh.actors.storage import OpenTail
from kvmesh.app.process import journal_feed
from kvmesh.app.process.aio import AioDriver
from kvmesh.app.process.journal_feed import JournalFeed
from kvmesh.core.blocks.events import WorkerId
from kvmesh.errors import TransportError
from kvmesh.ports import Record, Subscription, TailListener
from kvmesh.tasks import TASK
from tests.conftest import Contexts
from tests.doubles.memory.journal import MemoryJournal
from tests.doubles.memory.server import MemoryServer


class Eventually(Protocol):
    def __call__(self, condition: Callable[[], object]) -> Awaitable[None]: ...


class Reader:
    name = "indexer"

    def __init__(self, answers: Callable[[Message], Sequence[Effect]] = lambda _: ()) -> None:
        self.received: list[Message] = []
        self._answers = answers

    def receive(self, message: Message, now: float) -> Iterable[Effect]:  # noqa: ARG002
        if not isinstance(message, Started):
            self.received.append(message)
        return self._answers(message)


class World:
    def __init__(self, records: int = 3) -> None:
        self.server = MemoryServer()
        self.journal = MemoryJournal(self.server, "s")
        self.created = self.server.make_stream("s").created
        for number in range(records):
            self.server.streams["s"].store("kvmesh.ev.code.w", bytes([number]))
        self.reader = Reader(self.answer)
        self.driver = AioDriver()
        self.feed = JournalFeed(self.driver)
        self.driver.add(self.reader)
        self.driver.start()

    def answer(self, message: Message) -> Sequence[Effect]:
        return [OpenTail(message.token, self.created)] if isinstance(message, Tick) else ()

    def record(self, sequence: int) -> JournalRecord:
        return JournalRecord(sequence, WorkerId("w"), bytes([sequence - 1]))

    async def close(self) -> None:
        await self.feed.close()
        self.driver.stop()


async def test_a_tails_history_and_news_reach_the_actor_in_order(eventually: Eventually) -> None:
    world = World()
    await world.feed.open(world.journal)
    await eventually(lambda: CaughtUp(3) in world.reader.received)
    world.journal.append("kvmesh.ev.code.w", b"\x03", lambda _: None)
    await eventually(lambda: world.record(4) in world.reader.received)

    assert world.reader.received == [
        JournalOpened(world.created),
        *map(world.record, (1, 2, 3)),
        CaughtUp(3),
        world.record(4),
    ]
    await world.close()


async def test_the_age_of_a_record_is_told_in_the_drivers_time(eventually: Eventually) -> None:
    world = World(records=0)
    await eventually(lambda: not world.reader.received)
    age_s = 5.0

    now_s = world.driver.now()
    stored_ns = time.time_ns() - int(age_s * 1e9)
    world.feed.on_record(Record(1, "kvmesh.ev.code.w", b"", stored_ns))
    await eventually(lambda: world.reader.received)

    received = world.reader.received[0]
    assert isinstance(received, JournalRecord)
    assert received.stored_s == pytest.approx(now_s - age_s, abs=2.0)
    await world.close()


async def test_gaps_and_remade_streams_reach_the_actor(eventually: Eventually) -> None:
    world = World()
    world.server.streams["s"].purge(2)
    await world.feed.open(world.journal, 0, world.created)
    await eventually(lambda: CaughtUp(3) in world.reader.received)
    created = world.server.make_stream("s").created
    await eventually(lambda: JournalRecreated(created) in world.reader.received)

    assert JournalGap(1, 2) in world.reader.received
    await world.close()


async def test_an_actor_can_reopen_the_tail_behind_a_snapshot(eventually: Eventually) -> None:
    world = World()
    await world.feed.open(world.journal)
    await eventually(lambda: CaughtUp(3) in world.reader.received)
    world.reader.received.clear()

    world.driver.post("indexer", Tick(token=0))
    world.driver.post("indexer", Tick(token=1))

    await eventually(lambda: CaughtUp(3) in world.reader.received)
    assert world.reader.received[-4:] == [
        JournalOpened(world.created),
        *map(world.record, (2, 3)),
        CaughtUp(3),
    ]
    await world.close()


async def test_an_actor_can_open_the_first_tail_of_an_attached_journal(
    eventually: Eventually,
) -> None:
    world = World()
    world.feed.attach(world.journal)

    world.driver.post("indexer", Tick(token=1))

    await eventually(lambda: CaughtUp(3) in world.reader.received)
    assert world.reader.received[1:3] == [JournalOpened(world.created), world.record(2)]
    await world.close()


async def test_a_tail_that_cannot_be_opened_is_tried_again(
    eventually: Eventually, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(journal_feed, "RETRY_S", 0.001)
    world = World()
    await world.feed.open(world.journal)
    tail = world.journal.tail
    refusals = 2

    async def reluctant(after: int, created: str, listener: TailListener) -> Subscription:
        nonlocal refusals
        if refusals:
            refusals -= 1
            raise TransportError("not now")
        return await tail(after, created, listener)

    monkeypatch.setattr(world.journal, "tail", reluctant)
    await eventually(lambda: CaughtUp(3) in world.reader.received)
    world.reader.received.clear()
    world.driver.post("indexer", Tick(token=2))

    await eventually(lambda: CaughtUp(3) in world.reader.received)
    assert refusals == 0
    await world.close()


async def test_closing_gives_up_reopening() -> None:
    world = World()
    await world.feed.open(world.journal)
    world.server.streams.clear()
    world.driver.post("indexer", Tick(token=0))
    await asyncio.sleep(0)
    await asyncio.sleep(0)

    await world.close()
    await world.close()

    assert not [one for one in asyncio.all_tasks() if one is not asyncio.current_task()]


async def test_a_bug_while_a_tail_is_opened_is_reported_and_it_is_tried_again(
    eventually: Eventually, monkeypatch: pytest.MonkeyPatch, reported: Contexts
) -> None:
    monkeypatch.setattr("kvmesh.tasks.PAUSE_S", 0.001)
    world = World()
    world.feed.attach(world.journal)
    tail, bugs = world.journal.tail, [KeyError("odd")]

    async def broken(after: int, created: str, listener: TailListener) -> Subscription:
        if bugs:
            raise bugs.pop()
        return await tail(after, created, listener)

    monkeypatch.setattr(world.journal, "tail", broken)
    world.driver.post("indexer", Tick(token=1))

    await eventually(lambda: CaughtUp(3) in world.reader.received)
    assert [one[TASK] for one in reported] == ["open the journal"]
    await world.close()
