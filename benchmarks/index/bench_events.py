"""What the event plane's journal costs: appending, reading, and how late a reader is.

One nats-server with one replica and file storage on loopback. A message is a batch of 16 events of
16 block hashes. nats-py's own ways run in the same table. Processor time is this process's.
"""

import asyncio
import contextlib
import itertools
import os
import tempfile
import time
from collections.abc import AsyncIterator, Callable, Coroutine
from functools import partial
from importlib.metadata import version
from pathlib import Path
from statistics import quantiles
from typing import Any

import nats
import uvloop
from nats.aio.msg import Msg
from nats.js.api import AckPolicy, ConsumerConfig

from benchmarks.measure import Candidate, Sample, compare, parse_options, quiet_collector, report
from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.core.blocks.events import VERSION, Batch, Stored, encode_batch
from kvmesh.observe import configure_logging
from kvmesh.ports import Record, StreamState
from kvmesh.transport.nats.jetstream.api import ApiError, JetStream
from kvmesh.transport.nats.jetstream.journal import JournalOptions, NatsJournal
from kvmesh.transport.nats.link.bus import NatsBus
from kvmesh.transport.nats.link.connection import NatsConnection, NatsOptions

EVENTS, HASHES = 16, 16
WINDOW = 512
LOOP_GRAIN_S = 0.001
SUBJECT = "bench.ev.code.w1"
PEER = f"nats-py {version('nats-py')}"
DATA = encode_batch(
    Batch(VERSION, 1, 0, [Stored(n + 1, os.urandom(8 * HASHES)) for n in range(EVENTS)])
)
_numbers = itertools.count()

Work = Callable[[str, str, int], Coroutine[Any, Any, Sample]]


class Reader:
    """Calls `done` after `count` records; `take` sees each."""

    def __init__(self, count: int, take: Callable[[bytes], None] = lambda _: None) -> None:
        self.done = asyncio.Event()
        self.ready = asyncio.Event()
        self._left = count
        self._take = take

    def on_record(self, record: Record) -> None:
        self.read(record.data)

    def read(self, data: bytes) -> None:
        self._take(data)
        self._left -= 1
        if not self._left:
            self.done.set()

    def on_gap(self, first: int, last: int) -> None:
        raise AssertionError(f"sequences {first}..{last} are gone")

    def on_recreated(self, state: StreamState) -> None:
        raise AssertionError(f"the stream was remade: {state}")

    def on_caught_up(self, sequence: int) -> None:
        assert sequence >= 0
        self.ready.set()


class Clock:
    """Processor and wall time of `count` operations."""

    def __init__(self) -> None:
        self._cpu, self._wall = time.process_time_ns(), time.perf_counter_ns()

    def sample(self, count: int) -> Sample:
        wall_s = (time.perf_counter_ns() - self._wall) / 1e9
        cpu_us = (time.process_time_ns() - self._cpu) / 1e3
        return {"cpu us/message": cpu_us / count, "messages/s": count / wall_s}


@contextlib.asynccontextmanager
async def journal_on(url: str, stream: str) -> AsyncIterator[NatsJournal]:
    connection = NatsConnection(NatsOptions(url=url))
    await connection.connect()
    journal = NatsJournal(connection, JournalOptions(stream=stream, subjects=("bench.ev.>",)))
    await journal.open()
    yield journal
    await journal.close()
    await connection.close()


async def fill(journal: NatsJournal, count: int) -> None:
    """Append `count` messages with a window, return when all are stored."""
    acked = Reader(count)
    for _ in range(count):
        journal.append(SUBJECT, DATA, lambda _: acked.read(b""))
        while journal.statistics().outstanding >= WINDOW:  # noqa: ASYNC110  an event costs more
            await asyncio.sleep(0)
    await acked.done.wait()


async def append(url: str, stream: str, count: int) -> Sample:
    async with journal_on(url, stream) as journal:
        clock = Clock()
        await fill(journal, count)
        return clock.sample(count)


async def append_with_futures(url: str, stream: str, count: int) -> Sample:
    async with journal_on(url, stream), await nats.connect(url) as client:
        jetstream = client.jetstream(publish_async_max_pending=WINDOW)
        clock = Clock()
        for _ in range(count):
            await jetstream.publish_async(SUBJECT, DATA)
        await jetstream.publish_async_completed()
        return clock.sample(count)


async def append_one_by_one(url: str, stream: str, count: int) -> Sample:
    count //= 10
    async with journal_on(url, stream), await nats.connect(url) as client:
        jetstream = client.jetstream()
        clock = Clock()
        for _ in range(count):
            await jetstream.publish(SUBJECT, DATA)
        return clock.sample(count)


async def read_tail(url: str, stream: str, count: int) -> Sample:
    async with journal_on(url, stream) as journal:
        await fill(journal, count)
        reader, clock = Reader(count), Clock()
        tail = await journal.tail(0, "", reader)
        await reader.done.wait()
        sample = clock.sample(count)
        await tail.close()
        return sample


async def read_ordered(url: str, stream: str, count: int) -> Sample:
    async with journal_on(url, stream) as journal, await nats.connect(url) as client:
        await fill(journal, count)
        reader, clock = Reader(count), Clock()

        async def take(message: Msg) -> None:
            reader.read(message.data)

        await client.jetstream().subscribe("bench.ev.>", cb=take, ordered_consumer=True)
        await reader.done.wait()
        return clock.sample(count)


async def read_fetched(url: str, stream: str, count: int) -> Sample:
    async with journal_on(url, stream) as journal, await nats.connect(url) as client:
        await fill(journal, count)
        config = ConsumerConfig(ack_policy=AckPolicy.NONE)
        clock, got = Clock(), 0
        puller = await client.jetstream().pull_subscribe("bench.ev.>", stream=stream, config=config)
        while got < count:
            got += len(await puller.fetch(WINDOW // 2))
        return clock.sample(count)


async def send_steadily(send: Callable[[bytes], None], count: int, per_second: int) -> None:
    """Send `count` messages that begin with their time, on time or as late as this loop is."""
    start = time.perf_counter()
    for number in range(count):
        due_s = start + number / per_second
        while (early_s := due_s - time.perf_counter()) > 0:  # noqa: ASYNC110  this is a clock
            await asyncio.sleep(early_s if early_s > LOOP_GRAIN_S else 0)
        send(b"%020d" % time.perf_counter_ns() + DATA)


def percentiles(delays: list[int]) -> Sample:
    cuts = [each / 1e6 for each in quantiles(delays, n=100)]
    return {"p50 ms": cuts[49], "p99 ms": cuts[98], "max ms": max(delays) / 1e6}


async def lateness(url: str, stream: str, count: int, *, per_second: int) -> Sample:
    """How old is an event when a replica applies it?"""
    delays: list[int] = []
    reader = Reader(count, lambda data: delays.append(time.perf_counter_ns() - int(data[:20])))
    async with journal_on(url, stream) as writing, journal_on(url, stream) as reading:
        tail = await reading.tail(0, "", reader)
        await reader.ready.wait()
        send = partial(writing.append, SUBJECT, acked=lambda _: None)
        await send_steadily(send, count, per_second)
        await reader.done.wait()
        await tail.close()
    return percentiles(delays)


async def lateness_unstored(url: str, stream: str, count: int, *, per_second: int) -> Sample:
    """The same through core NATS, which stores nothing: what the journal can at best be."""
    delays: list[int] = []
    reader = Reader(count, lambda data: delays.append(time.perf_counter_ns() - int(data[:20])))
    connections = [NatsConnection(NatsOptions(url=url)) for _ in range(2)]
    for connection in connections:
        await connection.connect()
    writing, reading = map(NatsBus, connections)
    subject = f"bench.core.{stream}"
    await reading.subscribe(subject, lambda _, data: reader.read(data))
    await send_steadily(partial(writing.publish, subject), count, per_second)
    await reader.done.wait()
    for connection in connections:
        await connection.close()
    return percentiles(delays)


def main() -> None:
    configure_logging("warning", "console")
    options = parse_options("The journal: appending, reading, and how late a reader is.")
    count = options.size(full=50_000, quick=8_000)
    events = f"{EVENTS} events of {HASHES} blocks, {len(DATA):,} bytes a message"
    with tempfile.TemporaryDirectory(prefix="kvmesh-bench-") as folder:
        server = NatsServer(Path(folder))
        url = asyncio.run(server.start())
        try:
            ways: dict[str, Work] = {
                "kvmesh journal": append,
                f"{PEER} publish_async": append_with_futures,
                f"{PEER} publish": append_one_by_one,
            }
            title = f"Append {count:,} messages, {events}"
            report(compare(title, candidates(ways, url, count), options.rounds), options)
            ways = {
                "kvmesh tail": read_tail,
                f"{PEER} ordered consumer": read_ordered,
                f"{PEER} fetch": read_fetched,
            }
            title = f"Read {count:,} messages, {events}"
            report(compare(title, candidates(ways, url, count), options.rounds), options)
            for per_second in (200, 5_000):
                ways = {
                    "kvmesh journal to tail": partial(lateness, per_second=per_second),
                    "core NATS, not stored": partial(lateness_unstored, per_second=per_second),
                }
                title = f"From append to applied, {per_second:,} messages/s"
                number = per_second * options.size(full=5, quick=2)
                report(compare(title, candidates(ways, url, number), options.rounds), options)
        finally:
            asyncio.run(server.stop())


def candidates(ways: dict[str, Work], url: str, count: int) -> dict[str, Candidate]:
    return {name: partial(run_once, work, url, count) for name, work in ways.items()}


def run_once(work: Work, url: str, count: int) -> Sample:
    """Run one round on a stream of its own, gone afterwards."""
    stream = f"BENCH_{next(_numbers)}"

    async def run() -> Sample:
        sample = await work(url, stream, count)
        connection = NatsConnection(NatsOptions(url=url))
        await connection.connect()
        with contextlib.suppress(ApiError):
            await JetStream(connection).delete_stream(stream)
        await connection.close()
        return sample

    with quiet_collector():
        return uvloop.run(run())


if __name__ == "__main__":
    main()
