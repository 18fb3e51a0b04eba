"""The journal through the failures of its server: no acked message lost, none repeated."""

import asyncio
import contextlib
import time
from pathlib import Path
from typing import Any

import pytest

from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.ports import Record
from kvmesh.transport.nats.jetstream.journal import NatsJournal
from kvmesh.transport.nats.link.bus import NatsBus
from tests.integration.nats.journal_load import (
    SUBJECT,
    Reader,
    Writer,
    connect,
    finish,
    follow,
    open_journal,
)

pytestmark = pytest.mark.integration


async def test_a_killed_server_costs_no_acked_message(
    own_server: NatsServer, stack: contextlib.AsyncExitStack, eventually: Any
) -> None:
    writer = Writer(await open_journal(own_server.url, stack))
    reader, tail = await follow(await open_journal(own_server.url, stack), stack)
    await eventually(lambda: len(writer.acked) > 500)
    await eventually(lambda: tail.statistics().consumers, what="a consumer to be killed")
    killed = tail.statistics().consumers

    for _ in range(2):
        own_server.kill()
        await eventually(lambda: writer.journal.statistics().unsent > 0)
        before = len(writer.acked)
        await own_server.start()
        await eventually(lambda since=before: len(writer.acked) > since + 500)

    await finish(writer, reader, eventually)
    # One may have to do for both: the answer to a tail's wish can die with the server.
    await eventually(lambda: tail.statistics().consumers > killed, what="a consumer takes over")
    assert not reader.gaps
    assert not reader.recreated


async def test_a_frozen_server_is_left_and_found_again(
    own_server: NatsServer, stack: contextlib.AsyncExitStack, eventually: Any
) -> None:
    writing = await connect(own_server.url, stack)
    writer = Writer(await open_journal(own_server.url, stack))
    reader, _ = await follow(await open_journal(own_server.url, stack), stack)
    await eventually(lambda: len(writer.acked) > 500)

    own_server.freeze()
    started = time.monotonic()
    await eventually(lambda: not writing.connected, what="the idle connection notices")
    noticed_s = time.monotonic() - started
    own_server.thaw()
    before = len(writer.acked)
    await eventually(lambda: len(writer.acked) > before + 500)

    await finish(writer, reader, eventually)
    assert noticed_s < 30
    assert not reader.gaps


async def test_a_frozen_server_with_unsent_bytes_does_not_hold_the_client(
    own_server: NatsServer, stack: contextlib.AsyncExitStack, eventually: Any
) -> None:
    connection = await connect(own_server.url, stack)
    bus = NatsBus(connection)
    own_server.freeze()

    started = time.monotonic()
    for _ in range(150):
        bus.publish("kvmesh.hb.code.w1", bytes(500_000))
        await asyncio.sleep(0)
    await eventually(lambda: not connection.connected, what="the full connection is dropped")
    dropped_s = time.monotonic() - started
    own_server.thaw()
    await eventually(lambda: connection.connected, what="the client is back")

    assert dropped_s < 30
    assert bus.statistics().dropped > 0


async def test_close_does_not_wait_for_a_frozen_server(
    own_server: NatsServer, stack: contextlib.AsyncExitStack
) -> None:
    connection = await connect(own_server.url, stack)
    bus = NatsBus(connection)
    own_server.freeze()
    for _ in range(20):
        bus.publish("kvmesh.hb.code.w1", bytes(500_000))
    await asyncio.sleep(0)

    started = time.monotonic()
    await connection.close()
    took_s = time.monotonic() - started
    own_server.thaw()

    assert took_s < 30


async def test_a_reader_cut_off_again_and_again_misses_nothing(
    own_server: NatsServer, stack: contextlib.AsyncExitStack, eventually: Any
) -> None:
    journal = await open_journal(own_server.url, stack)
    acks: list[int] = []
    for number in range(10_000):
        journal.append(SUBJECT, b"%d" % number, acks.append)
        if number % 500 == 0:
            await eventually(lambda: journal.statistics().outstanding < 500)
    await eventually(lambda: len(acks) == 10_000)
    reading = await connect(own_server.url, stack)
    reader = Reader()
    take = reader.on_record

    def cut_sometimes(record: Record) -> None:
        take(record)
        if record.sequence % 1000 == 7:
            reading.client.abort()

    reader.on_record = cut_sometimes  # type: ignore[method-assign]  # for this test
    tail = await NatsJournal(reading, journal.options).tail(0, "", reader)
    stack.push_async_callback(tail.close)
    await eventually(lambda: reader.position == 10_000, timeout_s=60)

    assert reader.errors == []
    assert reader.gaps == []
    assert [reader.seen[each] for each in (1, 10_000)] == [b"0", b"9999"]
    assert tail.statistics().consumers >= 10


async def test_a_reader_that_blocks_its_loop_stays_connected(
    tmp_path: Path, stack: contextlib.AsyncExitStack, eventually: Any
) -> None:
    # The server drops a client that leaves 12 MiB unread; a window of 512 such messages is 50 MiB.
    server = NatsServer(tmp_path / "store", config="max_pending: 12MB\n")
    await server.start()
    stack.push_async_callback(server.stop)
    journal = await open_journal(server.url, stack, max_bytes=256 * 1024**2)
    acks: list[int] = []
    for number in range(1000):
        journal.append(SUBJECT, b"%d " % number + bytes(100_000), acks.append)
        if number % 50 == 0:
            await eventually(lambda: journal.statistics().outstanding < 50)
    await eventually(lambda: len(acks) == 1000)
    reader = Reader()
    take = reader.on_record

    def sleep_sometimes(record: Record) -> None:
        take(record)
        if record.sequence in (5, 500):
            time.sleep(1.0)

    reader.on_record = sleep_sometimes  # type: ignore[method-assign]  # for this test
    reading = await connect(server.url, stack)
    tail = await NatsJournal(reading, journal.options).tail(0, "", reader)
    stack.push_async_callback(tail.close)
    await eventually(lambda: reader.position == 1000)

    assert reader.errors == []
    assert len(reader.seen) == 1000
    assert reading.statistics().reconnects == 0
    assert tail.statistics().consumers == 1
