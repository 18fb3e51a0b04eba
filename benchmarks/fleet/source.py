"""`python -m benchmarks.fleet.source`: the sidecars of pretend engines, as routers hear them.

Sends each worker's heartbeat once a second and appends journal records: each stores a run of new
blocks and removes the run of `HELD` records before, so that what is held stays the same. Runs until
it is stopped; prints "ready" when the first heartbeats and records are on their way.
"""

import argparse
import asyncio
import contextlib
import itertools
import os
import time
from collections import deque
from typing import Final

import nats

from kvmesh.actors.messages import WorkerHeartbeat
from kvmesh.actors.wire import Subjects, encode
from kvmesh.core.blocks.events import (
    HASH_BYTES,
    ROOT,
    VERSION,
    Batch,
    Cleared,
    Event,
    Removed,
    Stored,
    WorkerId,
    encode_batch,
)

HELD: Final = 16
STEP_S: Final = 0.005
BLOCK_SIZE: Final = 16


class Sidecar:
    """One worker's part: its numbered batches and its heartbeat."""

    def __init__(self, worker: str, url: str, subjects: Subjects, blocks: int) -> None:
        self.records = subjects.events(worker)
        self.heartbeats = subjects.heartbeats(worker)
        self._worker, self._url, self._bucket = WorkerId(worker), url, subjects.bucket
        self._blocks = blocks
        self._epoch = time.time_ns() // 1_000_000
        self._next_seq = 1
        self._held: deque[bytes] = deque()

    def beat(self) -> bytes:
        """Return its sign of life."""
        heartbeat = WorkerHeartbeat(
            worker=self._worker,
            bucket=self._bucket,
            epoch=self._epoch,
            last_seq=self._next_seq - 1,
            url=self._url,
            models=("m",),
            block_size=BLOCK_SIZE,
        )
        return encode(heartbeat)

    def record(self) -> bytes:
        """Return the next journal record."""
        hashes = os.urandom(HASH_BYTES * self._blocks)
        events: list[Event] = [] if self._held else [Cleared()]
        if len(self._held) == HELD:
            events.append(Removed(self._held.popleft()))
        events.append(Stored(ROOT, hashes))
        self._held.append(hashes)
        batch = Batch(VERSION, self._epoch, self._next_seq, events)
        self._next_seq += len(events)
        return encode_batch(batch)


async def serve(url: str, bucket: str, sidecars: list[Sidecar], records_s: float) -> None:
    """Send for ever."""
    client = await nats.connect(url)
    begun, sent, beaten = time.monotonic(), 0, -1
    turns = itertools.cycle(sidecars)
    said = False
    while True:
        elapsed = time.monotonic() - begun
        if int(elapsed) != beaten:
            beaten = int(elapsed)
            for one in sidecars:
                await client.publish(one.heartbeats, one.beat())
        while sent < elapsed * records_s:
            one = next(turns)
            await client.publish(one.records, one.record())
            sent += 1
        if not said:
            said = True
            await client.flush()
            print("ready", bucket, flush=True)
        await asyncio.sleep(STEP_S)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nats-url", required=True)
    parser.add_argument("--bucket", default="bench")
    parser.add_argument("--worker", action="append", required=True, help="NAME=URL")
    parser.add_argument("--records", type=float, default=0.0, help="a second, of all workers")
    parser.add_argument("--blocks", type=int, default=16, help="new blocks a record")
    found = parser.parse_args()
    subjects = Subjects("kvmesh", found.bucket)
    named = (one.split("=", 1) for one in found.worker)
    sidecars = [Sidecar(name, url, subjects, found.blocks) for name, url in named]
    with contextlib.suppress(KeyboardInterrupt):
        asyncio.run(serve(found.nats_url, found.bucket, sidecars, found.records))


if __name__ == "__main__":
    main()
