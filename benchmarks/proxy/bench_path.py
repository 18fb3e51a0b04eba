"""KV events through the whole mesh: from an engine's ZMQ socket until both replicas applied them.

One engine, its sidecar, one nats-server (file storage), two routers, each a process. A batch is
4 runs of 16 new blocks of 16 tokens. Dynamo's standalone indexers listen to the engine's socket
themselves, with no log in between: two processes, as two replicas would.
"""

import asyncio
import contextlib
import random
import tempfile
import time
import urllib.request
from collections.abc import AsyncGenerator, Callable, Coroutine, Sequence
from functools import partial
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

import msgspec
import uvloop

from benchmarks.index.peers import PEER, find_dynamo
from benchmarks.measure import (
    BenchOptions,
    Candidate,
    Comparison,
    Sample,
    compare,
    cpu_ns,
    parse_options,
    quiet_collector,
    report,
)
from benchmarks.proxy.peers import free_port
from benchmarks.proxy.timed_router import Notes
from benchmarks.recovery.bench_sidecar import Engine
from benchmarks.started import Started
from kvmesh.app.nats.server import NatsServer
from kvmesh.core.blocks.hashing import pack_hashes, sequence_hashes
from kvmesh.observe import configure_logging

BLOCKS: Final = 16
BLOCK_SIZE: Final = 16
EVENTS: Final = 4
DEADLINE_S: Final = 60.0
GRAIN_S: Final = 0.002
DYNAMO_SUBSCRIBED_S: Final = 1.0


class Batch(msgspec.Struct, frozen=True):
    """What the engine publishes, the first hash of each run, and the last run's tokens."""

    payload: bytes
    firsts: list[bytes]
    last_tokens: list[int]


def make_batches(count: int, seed: int) -> list[Batch]:
    """Return batches of new blocks, in the form of vLLM 0.24 and later."""
    rng = random.Random(seed)
    made: list[Batch] = []
    for _ in range(count):
        runs = [[rng.randrange(1 << 17) for _ in range(BLOCKS * BLOCK_SIZE)] for _ in range(EVENTS)]
        events = [
            {
                "type": "BlockStored",
                "block_hashes": [rng.getrandbits(63) for _ in range(BLOCKS)],
                "parent_block_hash": None,
                "token_ids": tokens,
                "block_size": BLOCK_SIZE,
                "lora_id": None,
                "medium": "GPU",
            }
            for tokens in runs
        ]
        firsts = [pack_hashes(sequence_hashes(run[:BLOCK_SIZE], BLOCK_SIZE)) for run in runs]
        made.append(Batch(msgspec.msgpack.encode([0.0, events, 0]), firsts, runs[-1]))
    return made


class Mesh:
    """The processes of one round; `notes` are the routers'."""

    def __init__(self, engine: Engine, processes: dict[str, int], notes: Sequence[Notes]) -> None:
        self.engine = engine
        self.processes = processes
        self.notes = notes

    def applied(self) -> int:
        """Return how many runs both replicas have."""
        return min(notes.count() for notes in self.notes)


@contextlib.asynccontextmanager
async def running_mesh(folder: Path) -> AsyncGenerator[Mesh]:
    """Yield a mesh whose routers know their one worker."""
    async with contextlib.AsyncExitStack() as stack:
        server = NatsServer(folder / "nats")
        url = await server.start()
        stack.push_async_callback(server.stop)
        engine = Engine()
        stack.callback(engine.events.close)
        await engine.server.start("127.0.0.1", 0)
        stack.push_async_callback(engine.server.drain, 0)
        paths = [folder / f"notes-{number}" for number in range(2)]
        notes = [Notes(path, fresh=True) for path in paths]
        common = ["--bucket", "bench", "--nats-url", url, "--log-level", "warning"]
        routers: list[Started] = []
        for number, path in enumerate(paths):
            port = free_port()
            argv = ["benchmarks.proxy.timed_router", str(path), "router", *common]
            argv += ["--http-port", str(port), "--router-id", f"r{number}"]
            routers.append(Started(argv, port, folder / f"router-{number}.log"))
            stack.callback(routers[-1].kill)
        sidecar = ["kvmesh", "worker", "--engine-url", f"http://127.0.0.1:{engine.server.port}"]
        worker = Started([*sidecar, *common], 0, folder / "sidecar.log")
        stack.callback(worker.kill)
        for router in routers:
            await asyncio.to_thread(router.wait, _is_ready)
        # Routers load what answers commands once they are ready: 0.2 s in which they stand still.
        answering = [f"kvmesh.rctl.bench.r{number}" for number in range(2)]
        await until(partial(are_heard, server.monitoring_url, answering))
        assert server.process is not None
        pids = {"sidecar": worker.pid, "nats": server.process.pid}
        pids |= {f"router {number}": router.pid for number, router in enumerate(routers)}
        yield Mesh(engine, pids, notes)


def _is_ready(router: Started) -> bool:
    return bool(router.ask("/ready")["ready"])


def are_heard(monitoring_url: str, subjects: Sequence[str]) -> bool:
    """Return whether somebody subscribed to each, by the server's own account."""
    url = f"{monitoring_url}/subsz?subs=1&limit=1000"
    with urllib.request.urlopen(url, timeout=5) as answer:  # noqa: S310  our own server's
        page = answer.read().decode()
    return all(f'"{subject}"' in page for subject in subjects)


async def publish(engine: Engine, batches: Sequence[Batch], per_second: float) -> dict[bytes, int]:
    """Publish on time, or as late as this loop is; 0 is at once. Return when each run went, ns."""
    sent: dict[bytes, int] = {}
    start = time.perf_counter()
    for number, batch in enumerate(batches):
        if per_second:
            while (early_s := start + number / per_second - time.perf_counter()) > 0:  # noqa: ASYNC110  a clock
                await asyncio.sleep(early_s if early_s > GRAIN_S else 0)
        elif not number % 8:
            await asyncio.sleep(0)
        sent |= dict.fromkeys(batch.firsts, time.monotonic_ns())
        engine.events.publish(batch.payload)
    return sent


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110  what is waited for happens in another process
            await asyncio.sleep(GRAIN_S)


def cpu_us(pids: Sequence[int]) -> float:
    return sum(map(cpu_ns, pids)) / 1e3


async def throughput(batches: Sequence[Batch], shares: list[Sample]) -> Sample:
    """Publish everything at once; stop the clock when both replicas have the last run.

    `shares` gets what each process spent.
    """
    blocks = len(batches) * EVENTS * BLOCKS
    with tempfile.TemporaryDirectory(prefix="kvmesh-bench-", ignore_cleanup_errors=True) as name:
        async with running_mesh(Path(name)) as mesh:
            before = {role: cpu_us([pid]) for role, pid in mesh.processes.items()}
            start = time.perf_counter()
            await publish(mesh.engine, batches, 0)
            await until(lambda: mesh.applied() >= len(batches) * EVENTS)
            took_s = time.perf_counter() - start
            spent = {role: cpu_us([pid]) - before[role] for role, pid in mesh.processes.items()}
    shares.append({f"{role} us/block": each / blocks for role, each in spent.items()})
    return {
        "events/s": len(batches) * EVENTS / took_s,
        "blocks/s": blocks / took_s,
        "cpu us/block": sum(spent.values()) / blocks,
    }


async def dynamo_throughput(batches: Sequence[Batch]) -> Sample:
    """The same into two of Dynamo's indexers; asking whether they are done costs them a little."""
    blocks = len(batches) * EVENTS * BLOCKS
    question = {"token_ids": batches[-1].last_tokens, "model_name": "default"}
    engine = Engine()
    with contextlib.ExitStack() as stack:
        stack.callback(engine.events.close)
        folder = stack.enter_context(tempfile.TemporaryDirectory(prefix="kvmesh-bench-"))
        indexers: list[Started] = []
        for number in range(2):
            port = free_port()
            argv = ["dynamo.indexer", "--port", str(port), "--block-size", str(BLOCK_SIZE)]
            argv += ["--workers", f"1={engine.events.endpoint}"]
            indexers.append(Started(argv, port, Path(folder) / f"{number}.log"))
            stack.callback(indexers[-1].kill)
            await asyncio.to_thread(indexers[-1].wait, lambda one: one.fetch("/health") == b"")
        await asyncio.sleep(DYNAMO_SUBSCRIBED_S)  # ZMQ tells no publisher of its subscribers
        pids = [indexer.pid for indexer in indexers]
        before, start = cpu_us(pids), time.perf_counter()
        await publish(engine, batches, 0)
        for indexer in indexers:
            await until(partial(knows, indexer, question))
        took_s = time.perf_counter() - start
        spent = cpu_us(pids) - before
    return {
        "events/s": len(batches) * EVENTS / took_s,
        "blocks/s": blocks / took_s,
        "cpu us/block": spent / blocks,
    }


def knows(indexer: Started, question: object) -> bool:
    return bool(indexer.ask("/query", question).get("scores"))


async def lateness(batches: Sequence[Batch], *, per_second: float) -> Sample:
    """How long after the engine published a run have both replicas applied it?"""
    with tempfile.TemporaryDirectory(prefix="kvmesh-bench-", ignore_cleanup_errors=True) as name:
        async with running_mesh(Path(name)) as mesh:
            sent = await publish(mesh.engine, batches, per_second)
            await until(lambda: mesh.applied() >= len(batches) * EVENTS)
            first, second = (notes.read() for notes in mesh.notes)
    late_ms = [(max(first[run], second[run]) - at) / 1e6 for run, at in sent.items()]
    cuts = quantiles(late_ms, n=100)
    return {"p50 ms": cuts[49], "p99 ms": cuts[98], "max ms": max(late_ms)}


def main() -> None:
    configure_logging("warning", "console")
    options = parse_options("KV events from an engine's socket until both replicas applied them.")
    count = options.size(full=4_000, quick=1_000)
    report_throughput(make_batches(count, 1), options)
    for per_second in (20, 200):
        batches = make_batches(per_second * options.size(full=10, quick=4), 2)
        blocks = per_second * EVENTS * BLOCKS
        title = f"From ZMQ to applied by both replicas, {per_second} batches/s, {blocks:,} blocks/s"
        ways: dict[str, Candidate] = {
            "kvmesh": partial(go, partial(lateness, batches, per_second=per_second))
        }
        report(compare(title, ways, options.rounds), options)


def report_throughput(batches: Sequence[Batch], options: BenchOptions) -> None:
    shares: list[Sample] = []
    ways: dict[str, Candidate] = {
        "kvmesh, stored": partial(go, partial(throughput, batches, shares))
    }
    missing = find_dynamo()
    if isinstance(missing, str):
        print(missing)
    else:
        ways[f"{PEER} indexers"] = partial(go, partial(dynamo_throughput, batches))
    blocks = len(batches) * EVENTS * BLOCKS
    title = f"From ZMQ to applied by both of two replicas, {blocks:,} blocks at once"
    report(compare(title, ways, options.rounds), options)
    spent = Comparison("Who spends it", "kvmesh", {"kvmesh": shares[1:]})
    report(spent, options)


def go(work: Callable[[], Coroutine[Any, Any, Sample]]) -> Sample:
    with quiet_collector():
        return uvloop.run(work())


if __name__ == "__main__":
    main()
