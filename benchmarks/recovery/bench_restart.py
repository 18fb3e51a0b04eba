"""How soon a sidecar killed beside an old engine is exact again.

`python -m benchmarks.recovery.bench_restart [BATCHES] [BLOCKS] [RESTARTS]`

An engine publishes BATCHES batches (1,000,000), each of which evicts and stores 4 blocks of a cache
of BLOCKS (20,000), and keeps the last 10,000 for replay, as vLLM does. Sidecar, router and NATS
server are real. The sidecar is killed (SIGKILL) and started again RESTARTS times (5) while the
engine goes on at 100 batches a second. Printed are the seconds from the start of the process to the
first look at which the router knows the worker exactly and holds what the engine does.
"""

import asyncio
import contextlib
import sys
import tempfile
import time
from collections import deque
from itertools import count
from pathlib import Path
from typing import Final

import httpx
import msgspec

from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.observe import configure_logging
from kvmesh_lab.mocker.command import Mocker, MockerOptions
from kvmesh_lab.mocker.publisher import EventPublisher
from tests.chaos.process import MeshProcess, fixed_ports

BLOCKS_A_BATCH: Final = 4
BLOCK_SIZE: Final = 16
AT_ONCE: Final = 60
PAUSE_S: Final = 0.01
LATE_S: Final = 60.0


class OldEngine:
    """Evicts its oldest blocks and stores new ones, for ever."""

    def __init__(self, publisher: EventPublisher, blocks: int) -> None:
        self.publisher = publisher
        self._blocks = blocks
        self._held: deque[int] = deque()
        self._next = count(1)

    def __len__(self) -> int:
        """Return how many blocks are held."""
        return len(self._held)

    def step(self) -> None:
        """Publish one batch."""
        numbers = [next(self._next) for _ in range(BLOCKS_A_BATCH)]
        run = [one * 0x9E3779B97F4A7C15 % 2**64 for one in numbers]
        self._held.extend(run)
        events: list[dict[str, object]] = []
        if len(self._held) > self._blocks:
            gone = [self._held.popleft() for _ in range(BLOCKS_A_BATCH)]
            # The end of a prefix is evicted first.
            removed: list[object] = [*reversed(gone)]
            events.append({"type": "BlockRemoved", "block_hashes": removed, "medium": "GPU"})
        stored: dict[str, object] = {
            "type": "BlockStored",
            "block_hashes": run,
            "parent_block_hash": None,
            "token_ids": [one for one in numbers for _ in range(BLOCK_SIZE)],
            "block_size": BLOCK_SIZE,
            "medium": "GPU",
        }
        self.publisher.publish(msgspec.msgpack.encode([time.time(), [*events, stored], 0]))


async def check(client: httpx.AsyncClient, url: str) -> tuple[str, int, object]:
    """Return trust, blocks in the index, and the batch of the stored checkpoint."""
    status = (await client.get(f"{url}/v1/status")).json()
    trusts = [str(one["trust"]) for one in status["workers"]]
    mesh = status["mesh"]
    return (*trusts, "none")[0], mesh["blocks"].get("w", 0), mesh["checkpoints"]["batches"].get("w")


class Room:
    """The processes around one engine."""

    def __init__(self, folder: Path, server: NatsServer, mocker: Mocker, blocks: int) -> None:
        (port,) = fixed_ports(1)
        self.url, nats = f"http://127.0.0.1:{port}", ("--nats-url", server.url)
        router = ("router", "--http-port", str(port), *nats)
        self.router = MeshProcess("router", self.url, router, folder / "router.log")
        sidecar = ("worker", "--engine-url", mocker.url, "--worker-id", "w", *nats)
        self.sidecar = MeshProcess("sidecar", "", sidecar, folder / "sidecar.log")
        self._log = folder / "sidecar.log"
        publisher = mocker.ranks[0].publisher
        assert publisher is not None
        self.engine = OldEngine(publisher, blocks)

    def said(self, line: str) -> int:
        """Return how often the sidecars logged a line."""
        return self._log.read_text().count(line)

    async def until_followed(self, client: httpx.AsyncClient, starts: int = 1) -> float:
        """Return the seconds until the router holds what the engine does, by the sidecar that was
        the so-many-th to be started.
        """
        began_s, seen = time.monotonic(), "nothing"
        while time.monotonic() < began_s + LATE_S:
            with contextlib.suppress(httpx.HTTPError):
                trust, blocks, _ = await check(client, self.url)
                seen = f"{trust}, {blocks} of {len(self.engine)} blocks"
                known = trust == "exact" and abs(blocks - len(self.engine)) <= 2 * BLOCKS_A_BATCH
                if known and self.said("engine events lost") >= starts - 1:
                    return time.monotonic() - began_s
            await asyncio.sleep(0.02)
        raise SystemExit(f"not exact within {LATE_S} s: {seen}\n{self._log.read_text()[-4000:]}")


async def measure(batches: int, blocks: int, restarts: int, folder: Path) -> list[float]:
    """Return the seconds of each restart."""
    server = NatsServer(folder / "store", port=fixed_ports(1)[0])
    mocker = Mocker(MockerOptions(port=0, kv_events_port=0, replay_port=0))
    await server.start()
    await mocker.start()
    room = Room(folder, server, mocker, blocks)
    try:
        room.router.start()
        room.sidecar.start()
        async with httpx.AsyncClient(timeout=20) as client:
            return await restart(room, client, batches, restarts)
    finally:
        room.sidecar.kill()
        room.router.kill()
        await mocker.stop()
        await server.stop()


async def restart(
    room: Room, client: httpx.AsyncClient, batches: int, restarts: int
) -> list[float]:
    """Publish the batches, then restart the sidecar; return the seconds of each restart."""
    engine, took = room.engine, list[float]()
    await room.until_followed(client)
    began_s = time.monotonic()
    for number in range(batches):
        engine.step()
        if number % AT_ONCE == 0:
            await asyncio.sleep(PAUSE_S)
    print(f"{batches} batches in {time.monotonic() - began_s:.0f} s", flush=True)
    print(f"followed {await room.until_followed(client):.2f} s later")
    busy = asyncio.create_task(go_on(engine))
    await asyncio.sleep(3.0)
    for number in range(restarts):
        _, _, kept = await check(client, room.url)
        behind = engine.publisher.next_seq - (kept if isinstance(kept, int) else 0)
        room.sidecar.kill()
        room.sidecar.start()
        took.append(await room.until_followed(client, number + 2))
        print(f"exact after {took[-1]:.2f} s, the checkpoint {behind} batches old", flush=True)
        await asyncio.sleep(2.0)
    print(room.said("going on from"), "went on from a checkpoint")
    busy.cancel()
    return took


async def go_on(engine: OldEngine) -> None:
    """Step 100 times a second, until cancelled."""
    while True:
        engine.step()
        await asyncio.sleep(PAUSE_S)


def main() -> None:
    """Measure and print."""
    configure_logging("warning", "console")
    given = [int(one) for one in sys.argv[1:]]
    batches, blocks, restarts = (*given, *(1_000_000, 20_000, 5)[len(given) :])
    with tempfile.TemporaryDirectory() as folder:
        took = asyncio.run(measure(batches, blocks, restarts, Path(folder)))
    print(f"seconds to exact: median {sorted(took)[len(took) // 2]:.2f}, worst {max(took):.2f}")


if __name__ == "__main__":
    main()
