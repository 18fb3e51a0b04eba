"""What a reader learns when the stream itself is purged, remade, or set back."""

import asyncio
import contextlib
import shutil
from pathlib import Path
from typing import Any

import msgspec
import pytest
from structlog.testing import capture_logs

from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.ports import Record
from kvmesh.transport.nats.jetstream.api import Ignored, JetStream
from tests.integration.nats.journal_load import (
    STREAM,
    SUBJECT,
    Reader,
    connect,
    follow,
    open_journal,
)

pytestmark = pytest.mark.integration


class ConsumerNames(msgspec.Struct, frozen=True):
    consumers: list[str]


async def test_a_stream_deleted_and_remade_under_load_is_read_from_its_start(
    own_server: NatsServer, stack: contextlib.AsyncExitStack, eventually: Any
) -> None:
    journal = await open_journal(own_server.url, stack)
    reader, tail = await follow(journal, stack)
    admin = JetStream(await connect(own_server.url, stack))
    acks: list[int] = []
    for number in range(100):
        journal.append(SUBJECT, b"old %d" % number, acks.append)
    await eventually(lambda: reader.position == 100)

    await admin.delete_stream(STREAM)
    await eventually(lambda: tail.statistics().failures > 0)
    await journal.open()
    for number in range(50):
        journal.append(SUBJECT, b"new %d" % number, acks.append)
    await eventually(lambda: len(reader.seen) == 50 and reader.recreated)

    assert [reader.seen[each] for each in range(1, 51)] == [b"new %d" % n for n in range(50)]
    assert len(reader.recreated) == 1
    assert reader.errors == []


async def test_appends_wait_quietly_for_a_stream_to_come(
    own_server: NatsServer, stack: contextlib.AsyncExitStack, eventually: Any
) -> None:
    journal = await open_journal(own_server.url, stack)
    await JetStream(await connect(own_server.url, stack)).delete_stream(STREAM)
    acks: list[int] = []

    with capture_logs() as logs:
        for _ in range(3):
            journal.append(SUBJECT, b"x", acks.append)
        await eventually(lambda: journal.statistics().homeless == 3)
        assert (acks, journal.statistics().outstanding) == ([], 0)
        await journal.open()
        journal.append(SUBJECT, b"x", acks.append)
        await eventually(lambda: acks == [1])

    assert [(one["log_level"], one["event"].split(" ")[0]) for one in logs] == [
        ("info", "waiting"),
        ("info", "stream"),
    ]


async def test_a_purge_that_outruns_a_reader_is_one_exact_gap(
    own_server: NatsServer, stack: contextlib.AsyncExitStack, eventually: Any
) -> None:
    journal = await open_journal(own_server.url, stack)
    acks: list[int] = []
    for number in range(5000):
        journal.append(SUBJECT, b"%d" % number, acks.append)
        if number % 200 == 0:
            await eventually(lambda: journal.statistics().outstanding < 200)
    await eventually(lambda: len(acks) == 5000)
    reader = Reader()
    purges: list[asyncio.Task[int]] = []
    take = reader.on_record

    def purge_while_reading(record: Record) -> None:
        take(record)
        if record.sequence == 100:
            purges.append(asyncio.create_task(journal.purge(4000)))

    reader.on_record = purge_while_reading  # type: ignore[method-assign]  # for this test
    tail = await journal.tail(0, "", reader)
    stack.push_async_callback(tail.close)
    await eventually(lambda: reader.position == 5000)

    assert await purges[0] == 4000
    assert reader.errors == []
    assert all(last <= 4000 for _, last in reader.gaps)
    missed = sum(last - first + 1 for first, last in reader.gaps)
    assert len(reader.seen) + missed == 5000
    assert tail.statistics().missed_records == missed


async def test_everything_purged_before_a_reader_got_it_shows_in_a_heartbeat(
    own_server: NatsServer, stack: contextlib.AsyncExitStack, eventually: Any
) -> None:
    journal = await open_journal(own_server.url, stack)
    acks: list[int] = []
    for number in range(3000):
        journal.append(SUBJECT, b"%d" % number, acks.append)
    await eventually(lambda: len(acks) == 3000)
    reader, _ = await follow(journal, stack)
    await eventually(lambda: reader.position > 0)

    await journal.purge(3000)
    await eventually(lambda: reader.position == 3000)

    assert reader.errors == []
    assert len(reader.seen) + sum(b - a + 1 for a, b in reader.gaps) == 3000


async def test_a_consumer_deleted_before_its_first_message_is_replaced_where_it_stood(
    own_server: NatsServer, stack: contextlib.AsyncExitStack, eventually: Any
) -> None:
    journal = await open_journal(own_server.url, stack)
    acks: list[int] = []
    for number in range(50):
        journal.append(SUBJECT, b"old %d" % number, acks.append)
    await eventually(lambda: len(acks) == 50)
    reader = Reader()
    reader.position = 50
    tail = await journal.tail(50, "", reader)
    stack.push_async_callback(tail.close)
    await eventually(lambda: reader.caught_up == 1)
    admin = JetStream(await connect(own_server.url, stack))

    for name in (await admin.call(f"CONSUMER.NAMES.{STREAM}", None, ConsumerNames)).consumers:
        await admin.call(f"CONSUMER.DELETE.{STREAM}.{name}", None, Ignored)
    await eventually(lambda: tail.statistics().consumers == 2)
    journal.append(SUBJECT, b"new", acks.append)
    await eventually(lambda: reader.position == 51)

    assert reader.seen == {51: b"new"}
    assert (reader.errors, reader.gaps, reader.recreated) == ([], [], [])


async def test_discarded_old_messages_are_a_gap(
    own_server: NatsServer, stack: contextlib.AsyncExitStack, eventually: Any
) -> None:
    journal = await open_journal(own_server.url, stack, max_bytes=1024**2)
    acks: list[int] = []
    for _ in range(300):
        journal.append(SUBJECT, bytes(10_000), acks.append)
    await eventually(lambda: len(acks) == 300)

    reader, _ = await follow(journal, stack)
    await eventually(lambda: reader.position == 300)

    assert len(reader.gaps) == 1
    assert reader.gaps[0][0] == 1
    assert len(reader.seen) == 300 - reader.gaps[0][1]


async def test_a_server_restored_from_an_older_copy_is_noticed(
    own_server: NatsServer, tmp_path: Path, stack: contextlib.AsyncExitStack, eventually: Any
) -> None:
    journal = await open_journal(own_server.url, stack)
    reader, _ = await follow(journal, stack)
    acks: list[int] = []
    for number in range(10):
        journal.append(SUBJECT, b"%d" % number, acks.append)
    await eventually(lambda: reader.position == 10)
    await own_server.stop()
    shutil.copytree(tmp_path / "store", tmp_path / "copy")
    await own_server.start()
    await eventually(lambda: reader.caught_up > 1)
    journal.append(SUBJECT, b"x", acks.append)
    await eventually(lambda: reader.position > 10)

    await own_server.stop()
    shutil.rmtree(tmp_path / "store")
    shutil.copytree(tmp_path / "copy", tmp_path / "store")
    await own_server.start()
    await eventually(lambda: reader.recreated)
    await eventually(lambda: reader.position == 10)

    assert reader.recreated[0].last_sequence == 10
    assert reader.errors == []
