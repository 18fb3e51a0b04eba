"""One engine, its sidecar, one nats-server (file storage) and two routers, each a process."""

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.events.timed_router import Notes
from benchmarks.measure import cpu_ns
from benchmarks.proxy.peers import free_port
from benchmarks.recovery.bench_sidecar import Engine
from benchmarks.started import Started
from kvmesh.app.ops.nats_server import NatsServer

BLOCK_SIZE: Final = 16
DEADLINE_S: Final = 60.0
GRAIN_S: Final = 0.002
QUIET_S: Final = 1.0
QUIET_SHARE: Final = 0.05
SESSION: Final = Path("/proc/self/autogroup")
AHEAD: Final = -15


class Shape(msgspec.Struct, frozen=True):
    """What a batch of an engine holds: `events` runs of `blocks` new blocks each."""

    events: int = 4
    blocks: int = 16

    def size(self) -> int:
        """Return the blocks of a batch."""
        return self.events * self.blocks


class Batch(msgspec.Struct, frozen=True):
    """What the engine publishes, and the last run's tokens."""

    payload: bytes
    last_tokens: list[int]


def make_batches(count: int, seed: int, shape: Shape) -> list[Batch]:
    """Return batches of new blocks, in the form of vLLM 0.24 and later."""
    rng = random.Random(seed)
    made: list[Batch] = []
    for _ in range(count):
        tokens: list[int] = []
        events: list[object] = []
        for _ in range(shape.events):
            tokens = rng.choices(range(1 << 17), k=shape.blocks * BLOCK_SIZE)
            event = {
                "type": "BlockStored",
                "block_hashes": [rng.getrandbits(63) for _ in range(shape.blocks)],
                "parent_block_hash": None,
                "token_ids": tokens,
                "block_size": BLOCK_SIZE,
                "lora_id": None,
                "medium": "GPU",
            }
            events.append(event)
        made.append(Batch(msgspec.msgpack.encode([0.0, events, 0]), tokens))
    return made


class Mesh:
    """The processes of one round; `notes` are the routers'."""

    def __init__(self, engine: Engine, processes: dict[str, int], notes: Sequence[Notes]) -> None:
        self.engine = engine
        self.processes = processes
        self.notes = notes

    def stored(self) -> int:
        """Return how many blocks both replicas have stored."""
        return min(notes.stored() for notes in self.notes)

    def spent_us(self) -> dict[str, float]:
        """Return the processor time of each role so far; the replicas' is their mean."""
        spent = {role: cpu_us([pid]) for role, pid in self.processes.items()}
        replicas = [spent.pop(role) for role in list(spent) if role.startswith("router")]
        return {**spent, "replica": sum(replicas) / len(replicas)}


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
            argv = ["benchmarks.events.timed_router", str(path), "router", *common]
            argv += ["--http-port", str(port), "--router-id", f"r{number}"]
            routers.append(Started(argv, port, folder / f"router-{number}.log"))
            stack.callback(routers[-1].kill)
        sidecar = ["kvmesh", "worker", "--engine-url", f"http://127.0.0.1:{engine.server.port}"]
        worker = Started([*sidecar, *common], 0, folder / "sidecar.log")
        stack.callback(worker.kill)
        for router in routers:
            await asyncio.to_thread(router.wait, _is_ready)
        pids = {"sidecar": worker.pid, "nats": server.program.pid()}
        pids |= {f"router {number}": router.pid for number, router in enumerate(routers)}
        await until_quiet(list(pids.values()))
        yield Mesh(engine, pids, notes)


def _is_ready(router: Started) -> bool:
    return bool(router.ask("/ready")["ready"])


async def until_quiet(pids: Sequence[int]) -> None:
    """Wait until no process does anything but beat: what is loaded late is no part of the path."""
    spent_us = [cpu_us([pid]) for pid in pids]
    async with asyncio.timeout(DEADLINE_S):
        while True:
            await asyncio.sleep(QUIET_S)
            before, spent_us = spent_us, [cpu_us([pid]) for pid in pids]
            shares = [
                (now - then) / 1e6 / QUIET_S for now, then in zip(spent_us, before, strict=True)
            ]
            if max(shares) < QUIET_SHARE:
                return


async def publish(engine: Engine, batches: Sequence[Batch], per_second: float) -> list[int]:
    """Publish on time, or as late as this loop is; 0 is at once. Return when each went, ns."""
    sent: list[int] = []
    start = time.perf_counter()
    for number, batch in enumerate(batches):
        if per_second:
            while (early_s := start + number / per_second - time.perf_counter()) > 0:  # noqa: ASYNC110  a clock
                await asyncio.sleep(early_s if early_s > GRAIN_S else 0)
        elif not number % 8:
            await asyncio.sleep(0)
        sent.append(time.monotonic_ns())
        engine.events.publish(batch.payload)
    return sent


@contextlib.contextmanager
def ahead_of_others() -> Iterator[None]:
    """Let the processes of this session go before those of others, where allowed (Linux, root).

    On a busy machine throughput else is what the others leave, another in each round.
    """
    with contextlib.suppress(OSError):
        SESSION.write_text(str(AHEAD), encoding="ascii")
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            SESSION.write_text("0", encoding="ascii")


async def until(condition: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not condition():  # noqa: ASYNC110  what is waited for happens in another process
            await asyncio.sleep(GRAIN_S)


def cpu_us(pids: Sequence[int]) -> float:
    return sum(map(cpu_ns, pids)) / 1e3


def less(after: Mapping[str, float], before: Mapping[str, float]) -> dict[str, float]:
    """Return what each role spent in between."""
    return {role: spent - before[role] for role, spent in after.items()}
