"""The failures a memory server can be told to show."""

from typing import Any

import pytest

from kvmesh.errors import TransportError
from kvmesh.ports import Record, StreamState
from tests.doubles.memory.bus import MemoryBus
from tests.doubles.memory.journal import MemoryJournal
from tests.doubles.memory.kv import MemoryKeyValue
from tests.doubles.memory.objects import MemoryObjects
from tests.doubles.memory.server import MemoryServer


class Reader:
    def __init__(self) -> None:
        self.sequences: list[int] = []
        self.caught_up: list[int] = []

    def on_record(self, record: Record) -> None:
        self.sequences.append(record.sequence)

    def on_gap(self, first: int, last: int) -> None:
        pytest.fail(f"gap {first}..{last}")

    def on_recreated(self, state: StreamState) -> None:
        pytest.fail(f"recreated {state}")

    def on_caught_up(self, sequence: int) -> None:
        self.caught_up.append(sequence)


@pytest.fixture
def server() -> MemoryServer:
    return MemoryServer()


@pytest.fixture
async def journal(server: MemoryServer) -> MemoryJournal:
    journal = MemoryJournal(server, "EVENTS")
    await journal.open()
    return journal


async def test_a_dropped_ack_leaves_the_message_stored(
    server: MemoryServer, journal: MemoryJournal
) -> None:
    server.drop_acks = True

    journal.append("ev.w1", b"x", lambda _: pytest.fail("acked"))

    assert (await journal.state()).messages == 1


async def test_a_lost_append_is_not_stored(server: MemoryServer, journal: MemoryJournal) -> None:
    server.lose_appends = True

    journal.append("ev.w1", b"x", lambda _: pytest.fail("acked"))

    assert (await journal.state()).messages == 0
    assert journal.unsent == 1


async def test_nothing_works_while_the_server_is_down(server: MemoryServer) -> None:
    journal, bus = MemoryJournal(server, "EVENTS"), MemoryBus(server)
    await journal.open()
    server.set_up(up=False)

    journal.append("ev.w1", b"x", lambda _: pytest.fail("acked"))
    bus.publish("hb.w1", b"x")

    assert (journal.unsent, bus.dropped) == (1, 1)
    calls: list[Any] = [
        journal.open(),
        journal.state(),
        journal.purge(1),
        MemoryKeyValue(server, "b").get("k"),
        MemoryKeyValue(server, "b").put("k", b"", expected=None),
        MemoryKeyValue(server, "b").keys(""),
        MemoryObjects(server, "b").put("n", b""),
        MemoryObjects(server, "b").get("n"),
        MemoryObjects(server, "b").list(),
        MemoryObjects(server, "b").delete("n"),
        MemoryObjects(server, "b").delete_orphans(0),
    ]
    for call in calls:
        with pytest.raises(TransportError, match="down"):
            await call


async def test_a_tail_goes_on_where_it_was_after_an_outage(
    server: MemoryServer, journal: MemoryJournal, eventually: Any
) -> None:
    reader = Reader()
    acks: list[int] = []
    journal.append("ev.w1", b"1", acks.append)
    tail = await journal.tail(0, "", reader)
    await eventually(lambda: reader.caught_up == [1])

    server.set_up(up=False)
    server.set_up(up=True)
    journal.append("ev.w1", b"2", acks.append)
    await eventually(lambda: reader.sequences == [1, 2])
    await tail.close()

    assert acks == [1, 2]


async def test_a_tail_waits_for_a_stream_that_is_not_there_yet(
    server: MemoryServer, eventually: Any
) -> None:
    journal, reader = MemoryJournal(server, "LATER"), Reader()
    tail = await journal.tail(0, "", reader)
    journal.append("ev.w1", b"lost", lambda _: pytest.fail("acked"))

    await journal.open()
    await eventually(lambda: reader.caught_up == [0])
    await tail.close()

    assert journal.refused == 1
