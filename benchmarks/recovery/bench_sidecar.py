"""What an engine's events cost a sidecar: decoding, following the cache, the whole process, memory.

Batches are one store of 64 blocks of 16 tokens, evicted 16 batches later by one removal. The peers
are msgspec's own decoders, which only make objects of the bytes.
"""

import asyncio
import itertools
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
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
from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.core.engines.kv_events.cache import EngineCache
from kvmesh.core.engines.kv_events.dialect import decode_engine_batch
from kvmesh.observe import configure_logging
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.server import HttpServer
from kvmesh.transport.nats.jetstream.journal import JournalOptions, NatsJournal
from kvmesh.transport.nats.link.bus import NatsBus
from kvmesh.transport.nats.link.connection import NatsConnection, NatsOptions
from kvmesh_lab.mocker.publisher import EventPublisher, ZmqPublisherOptions

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


def make_prompts(blocks: int) -> Iterator[bytes]:
    """Yield batches that store chains of blocks and evict none, behind one system prompt."""
    rng = random.Random(2)
    parent = None
    for _ in range(0, blocks, BLOCKS):
        tokens = [rng.randrange(150_000) for _ in range(BLOCKS * BLOCK_SIZE)]
        run = [rng.getrandbits(64) for _ in range(BLOCKS)]
        stored = ["BlockStored", run, parent, tokens, BLOCK_SIZE]
        parent = parent or run[9]
        yield msgspec.msgpack.encode([1.5, [stored]])


def fill(blocks: int) -> Sample:
    """Return the memory that so many blocks take, and the longest that one batch did."""
    cache, longest_ns = EngineCache(BLOCK_SIZE), 0
    batches = make_prompts(blocks)
    cache.take(next(batches))
    before = rss_bytes()
    for batch in batches:
        began = time.process_time_ns()
        cache.take(batch)
        longest_ns = max(longest_ns, time.process_time_ns() - began)
    held = cache.statistics().visible_blocks
    return {"bytes/block": (rss_bytes() - before) / held, "longest ms": longest_ns / 1e6}


def rss_bytes() -> int:
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize()


def fill_apart(blocks: int) -> Sample:
    """Fill a cache in a process of its own: what was freed before is no room to grow into."""
    code = (
        "import msgspec\nfrom benchmarks.recovery.bench_sidecar import fill\n"
        f"print(msgspec.json.encode(fill({blocks})).decode())"
    )
    done = subprocess.run([sys.executable, "-c", code], check=True, capture_output=True)
    return msgspec.json.decode(done.stdout, type=dict[str, float])


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

    def receive(_: str, data: bytes) -> None:
        confirmed[0] = decode(data, WorkerHeartbeat).last_seq

    await NatsBus(connection).subscribe(subjects.heartbeats(), receive)
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
    blocks = options.size(full=500_000, quick=100_000)
    title = f"Memory of an engine's {blocks:,} blocks, and the longest batch"
    memory = {"EngineCache": partial(fill_apart, blocks)}
    report(compare(title, memory, options.rounds), options)
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
