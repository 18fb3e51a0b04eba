"""A writer and a reader of one journal that notice every lost, repeated or reordered message."""

import asyncio
import contextlib
import itertools
import time
import uuid
from typing import Any

from kvmesh.ports import Record, StreamState
from kvmesh.transport.nats.jetstream.journal import JournalOptions, NatsJournal
from kvmesh.transport.nats.link.connection import NatsConnection, NatsOptions

SUBJECT = "kvmesh.ev.code.w1"
STREAM = "KVMESH_EVENTS_code"


class Reader:
    """Folds a tail; a repeated, lost or reordered sequence fails at once."""

    def __init__(self) -> None:
        self.position = 0
        self.seen: dict[int, bytes] = {}
        self.gaps: list[tuple[int, int]] = []
        self.recreated: list[StreamState] = []
        self.caught_up = 0
        self.errors: list[str] = []
        self.last_record_s = 0.0

    def on_record(self, record: Record) -> None:
        if record.sequence != self.position + 1:
            self.errors.append(f"{record.sequence} after {self.position}")
        self.position = record.sequence
        self.seen[record.sequence] = record.data
        self.last_record_s = time.monotonic()

    def on_gap(self, first: int, last: int) -> None:
        if first != self.position + 1:
            self.errors.append(f"gap {first}..{last} after {self.position}")
        self.position = last
        self.gaps.append((first, last))

    def on_recreated(self, state: StreamState) -> None:
        self.position = 0
        self.seen.clear()
        self.recreated.append(state)

    def on_caught_up(self, sequence: int) -> None:
        if sequence > self.position:
            self.errors.append(f"caught up with {sequence} at {self.position}")
        self.caught_up += 1


class Writer:
    """Appends numbered messages without pause; each has 1 s for its ack, then it is sent again."""

    def __init__(self, journal: NatsJournal) -> None:
        self.journal = journal
        self.acked: dict[int, bytes] = {}
        self.sent = 0
        self.pauses: list[float] = []
        self._last_ack_s = time.monotonic()
        self._stop = False
        self._task = asyncio.create_task(self._run())

    def _send(self, payload: bytes, waiting: dict[bytes, float]) -> None:
        def acked(sequence: int) -> None:
            now = time.monotonic()
            self.pauses.append(now - self._last_ack_s)
            self._last_ack_s = now
            self.acked[sequence] = payload
            waiting.pop(payload, None)

        waiting[payload] = time.monotonic() + 1.0
        self.journal.append(SUBJECT, payload, acked)

    async def _run(self) -> None:
        waiting: dict[bytes, float] = {}
        numbers = itertools.count()
        while not self._stop or waiting:
            while not self._stop and len(waiting) < 64:
                self._send(b"%d" % next(numbers), waiting)
                self.sent += 1
            now = time.monotonic()
            for payload in [each for each, due_s in waiting.items() if due_s < now]:
                self._send(payload, waiting)
            await asyncio.sleep(0.002)

    async def finish(self) -> None:
        self._stop = True
        async with asyncio.timeout(60):
            await self._task


async def connect(url: str, stack: contextlib.AsyncExitStack) -> NatsConnection:
    connection = NatsConnection(
        NatsOptions(url=url, name=uuid.uuid4().hex[:6], first_connect_s=60.0)
    )
    await connection.connect()
    stack.push_async_callback(connection.close)
    return connection


async def open_journal(url: str, stack: contextlib.AsyncExitStack, **changes: Any) -> NatsJournal:
    defaults: dict[str, Any] = {"max_bytes": 64 * 1024**2}
    options = JournalOptions(stream=STREAM, subjects=("kvmesh.ev.code.*",), **defaults | changes)
    journal = NatsJournal(await connect(url, stack), options)
    await journal.open()
    stack.push_async_callback(journal.close)
    return journal


async def follow(
    journal: NatsJournal, stack: contextlib.AsyncExitStack, after: int = 0
) -> tuple[Reader, Any]:
    reader = Reader()
    tail = await journal.tail(after, "", reader)
    stack.push_async_callback(tail.close)
    return reader, tail


async def finish(writer: Writer, reader: Reader, eventually: Any) -> None:
    """Check that everything acked was read, once and in order."""
    await writer.finish()
    await eventually(lambda: reader.position >= max(writer.acked), what="the reader catches up")
    assert reader.errors == []
    assert {each: reader.seen.get(each) for each in writer.acked} == writer.acked
    assert set(writer.acked.values()) == {b"%d" % number for number in range(writer.sent)}
