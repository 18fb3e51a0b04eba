"""What an engine's events cost a sidecar: decoding, following the cache, the whole process.

Batches are one store of 64 blocks of 16 tokens, evicted 16 batches later by one removal. The peers
are msgspec's own decoders, which only make objects of the bytes.
"""

import asyncio
import itertools
import random
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

import msgspec

from benchmarks.measure import (
    Sample,
    compare,
    cpu_ns,
    parse_options,
    quiet_collector,
    report,
    time_work,
)
from kvmesh.actors.messages import WorkerHeartbeat
from kvmesh.actors.wire import Subjects, decode
from kvmesh.app.nats.server import NatsServer
from kvmesh.core.engines.kv_events.cache import EngineCache
from kvmesh.core.engines.kv_events.dialect import decode_engine_batch
from kvmesh.observe import configure_logging
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.server import HttpServer
from kvmesh.transport.nats.journal.log import JournalOptions, NatsJournal
from kvmesh.transport.nats.link.bus import NatsBus
from kvmesh.transport.nats.link.connection import NatsConnection, NatsOptions
from kvmesh.transport.zmq.publisher import EventPublisher, ZmqPublisherOptions

BLOCKS, BLOCK_SIZE, HELD = 64, 16, 16
FIELDS = ("block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium")
DEADLINE_S = 120.0
_names = itertools.count()


class Stored(msgspec.Struct, tag="BlockStored"):
    block_hashes: list[int]
    parent_block_hash: int | None
    token_ids: list[int]
    block_size: int
    lora_id: int | None = None
    medium: str | None = None


class Removed(msgspec.Struct, tag="BlockRemoved"):
    block_hashes: list[int]
    medium: str | None = None


class Batch(msgspec.Struct, array_like=True):
    timestamp: float
    events: list[Stored | Removed]
    rank: int | None = None


def make_batches(count: int, *, maps: bool) -> list[bytes]:
    """Return batches in the form of vLLM 0.24 and later (maps), or of those before (arrays)."""
    rng = random.Random(1)
    batches: list[bytes] = []
    for number in range(count):
        first = number * BLOCKS
        tokens = [rng.randrange(150_000) for _ in range(BLOCKS * BLOCK_SIZE)]
        values = (list(range(first, first + BLOCKS)), None, tokens, BLOCK_SIZE, None, "GPU")
        events: list[object] = []
        if number >= HELD:
            gone = list(range(first - HELD * BLOCKS, first - (HELD - 1) * BLOCKS))
            removed = {"type": "BlockRemoved", "block_hashes": gone, "medium": "GPU"}
            events.append(removed if maps else ["BlockRemoved", gone, "GPU"])
        stored = {"type": "BlockStored", **dict(zip(FIELDS, values, strict=True))}
        events.append(stored if maps else ["BlockStored", *values])
        batches.append(msgspec.msgpack.encode([1.5, events, 0]))
    return batches


def each(take: Callable[[bytes], object], batches: Sequence[bytes]) -> Sample:
    """Return the time per block stored (and, later, removed)."""

    def work() -> None:
        for batch in batches:
            take(batch)

    return time_work(work, len(batches) * BLOCKS)


def follow(batches: Sequence[bytes]) -> Sample:
    """The same through references, content hashes and prefix closure."""
    return each(EngineCache(BLOCK_SIZE).take, batches)


class Engine:
    """What a sidecar needs of an engine, in this process."""

    def __init__(self) -> None:
        self.events = EventPublisher(
            ZmqPublisherOptions(endpoint="tcp://127.0.0.1:*", replay_endpoint="tcp://127.0.0.1:*")
        )
        self.server = HttpServer(self._answer)

    def _answer(self, exchange: Exchange) -> None:
        sources = {
            "0": {
                "endpoint": self.events.endpoint,
                "replay_endpoint": self.events.replay_endpoint,
            }
        }
        pages: dict[str, object] = {
            "/v1/models": {"data": [{"id": "m"}]},
            "/kv_event_sources": sources,
            "/health": {},
        }
        page = pages.get(exchange.request.path)
        status = 404 if page is None else 200
        exchange.respond(status, b"" if page is None else msgspec.json.encode(page))


async def sidecar_cpu(url: str, batches: Sequence[bytes]) -> Sample:
    """Return what a `kvmesh worker` process takes, from ZMQ to the journal's acknowledgement."""
    subjects = Subjects(f"bench{next(_names)}", "b")
    connection = NatsConnection(NatsOptions(url=url))
    await connection.connect()
    options = JournalOptions(stream=subjects.stream(), subjects=(subjects.events(">"),))
    journal = NatsJournal(connection, options)
    await journal.open()
    confirmed = [-1]

    def hear(_: str, data: bytes) -> None:
        confirmed[0] = decode(data, WorkerHeartbeat).last_seq

    await NatsBus(connection).subscribe(subjects.heartbeats(), hear)
    engine = Engine()
    await engine.server.start("127.0.0.1", 0)
    argv = [
        *(sys.executable, "-m", "kvmesh", "worker", "--worker-id", "w", "--bucket", "b"),
        *("--engine-url", f"http://127.0.0.1:{engine.server.port}", "--nats-url", url),
        *("--namespace", subjects.namespace, "--log-level", "error"),
    ]
    process = subprocess.Popen(argv, stdin=subprocess.DEVNULL)  # noqa: ASYNC220 - no wait
    try:
        await until(lambda: confirmed[0] >= 0)
        before = cpu_ns(process.pid)
        for number, batch in enumerate(batches):
            engine.events.publish(batch)
            if not number % 8:
                await asyncio.sleep(0)
        # A batch is two events, a removal and a store, but for the first ones.
        await until(lambda: confirmed[0] >= 2 * len(batches) - HELD)
        cpu_ms = (cpu_ns(process.pid) - before) / 1e6
    finally:
        process.terminate()
        process.wait()
        await engine.server.drain(0)
        engine.events.close()
        await journal.close()
        await connection.close()
    return {"cpu ms/1,000 blocks": cpu_ms / (len(batches) * BLOCKS / 1000)}


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110  what is waited for happens in another process
            await asyncio.sleep(0.02)


def run_sidecar(url: str, batches: Sequence[bytes]) -> Sample:
    with quiet_collector():
        return asyncio.run(sidecar_cpu(url, batches))


def main() -> None:
    configure_logging("warning", "console")
    options = parse_options("What an engine's events cost a sidecar.")
    count = options.size(full=2_000, quick=400)
    maps, arrays = make_batches(count, maps=True), make_batches(count, maps=False)
    title = f"Engine batches, {BLOCKS} blocks of {BLOCK_SIZE} tokens each, per block"
    ways = {
        f"msgspec {msgspec.__version__} typed": partial(
            each, msgspec.msgpack.Decoder(Batch).decode, maps
        ),
        f"msgspec {msgspec.__version__} untyped": partial(
            each, msgspec.msgpack.Decoder().decode, maps
        ),
        "decode, maps": partial(each, decode_engine_batch, maps),
        "decode, arrays": partial(each, decode_engine_batch, arrays),
        "decode, count, hash, close": partial(follow, maps),
    }
    report(compare(title, ways, options.rounds), options)
    with tempfile.TemporaryDirectory(prefix="kvmesh-bench-") as folder:
        server = NatsServer(Path(folder))
        url = asyncio.run(server.start())
        try:
            sidecar = {"kvmesh worker": partial(run_sidecar, url, maps)}
            title = f"A sidecar process, {count * BLOCKS:,} blocks stored and removed"
            report(compare(title, sidecar, options.rounds), options)
        finally:
            asyncio.run(server.stop())


if __name__ == "__main__":
    main()
