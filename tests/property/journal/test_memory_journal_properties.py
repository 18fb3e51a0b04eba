"""Whatever happens to a stream, a tail accounts for every sequence of it."""

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from kvmesh.ports import Record, StreamState
from tests.doubles.memory.journal import MemoryJournal
from tests.doubles.memory.server import MemoryServer

STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("append"), st.integers(1, 5)),
        st.tuples(st.just("purge"), st.integers(0, 30)),
        st.tuples(st.just("remake"), st.just(0)),
        st.tuples(st.just("truncate"), st.integers(0, 10)),
        st.tuples(st.just("down"), st.just(0)),
        st.tuples(st.just("up"), st.just(0)),
        st.tuples(st.just("turn"), st.integers(1, 3)),
    ),
    max_size=40,
)


class Accountant:
    """Checks at every call that nothing is skipped, repeated or invented."""

    def __init__(self, after: int) -> None:
        self.position = after
        self.data: dict[int, bytes] = {}

    def on_record(self, record: Record) -> None:
        assert record.sequence == self.position + 1
        self.position = record.sequence
        self.data[record.sequence] = record.data

    def on_gap(self, first: int, last: int) -> None:
        assert first == self.position + 1
        assert last >= first
        self.position = last

    def on_recreated(self, state: StreamState) -> None:
        assert state.created
        self.position = 0
        self.data.clear()

    def on_caught_up(self, sequence: int) -> None:
        assert self.position >= sequence


async def take_step(server: MemoryServer, journal: MemoryJournal, step: tuple[str, int]) -> None:
    action, count = step
    if action == "append":
        for _ in range(count):
            payload = b"%d" % server.streams["S"].last
            journal.append("ev.w1", payload, lambda _: None)
    elif action == "purge" and server.up:
        await journal.purge(count)
    elif action == "remake":
        server.make_stream("S")
    elif action == "truncate":
        server.truncate("S", max(server.streams["S"].first - 1, server.streams["S"].last - count))
    elif action in ("down", "up"):
        server.set_up(up=action == "up")
    else:
        for _ in range(count):
            await asyncio.sleep(0)


@given(steps=STEPS, after=st.integers(0, 4))
def test_every_sequence_is_accounted_for(steps: list[Any], after: int) -> None:
    async def run() -> None:
        server = MemoryServer()
        journal = MemoryJournal(server, "S")
        await journal.open()
        accountant = Accountant(after)
        tail = await journal.tail(after, "", accountant)

        for step in steps:
            await take_step(server, journal, step)
        server.set_up(up=True)
        for _ in range(5):
            await asyncio.sleep(0)
        await tail.close()

        stream = server.streams["S"]
        assert accountant.position == stream.last
        for record in stream.records:
            assert accountant.data.get(record.sequence, record.data) == record.data

    asyncio.run(run())
