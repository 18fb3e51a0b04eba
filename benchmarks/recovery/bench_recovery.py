"""How soon a router that is started again knows everything, with every worker down.

16 workers of 50,000 blocks each, in runs of 64. kvmesh loads its snapshot from the object store and
reads the last of the journal; nobody else runs. Dynamo's indexer has no store: it asks a live peer
that holds as many blocks. Ready is: the whole history is applied and HTTP answers.
"""

import asyncio
import random
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Final

from benchmarks.measure import Candidate, Comparison, Sample, compare, parse_options, report
from benchmarks.proxy.peers import free_port
from benchmarks.recovery.dynamo import DynamoIndexer
from benchmarks.started import Started
from kvmesh.actors.wire import Subjects
from kvmesh.app.ops.nats_server import NatsServer
from kvmesh.core.blocks.events import ROOT, VERSION, Batch, Event, Stored, encode_batch
from kvmesh.observe import configure_logging
from kvmesh.transport.nats.jetstream.journal import JournalOptions, NatsJournal
from kvmesh.transport.nats.link.connection import NatsConnection, NatsOptions

WORKERS: Final = 16
RUN: Final = 64
RUNS_A_MESSAGE: Final = 8
TAIL_MESSAGES: Final = 64
OUTSTANDING: Final = 256
BUCKET: Final = "bench"
SUBJECTS: Final = Subjects("kvmesh", BUCKET)

Message = tuple[str, bytes]
"""Subject and batch."""


def make_messages(blocks: int) -> list[Message]:
    """Return batches of 8 runs of 64 random blocks each, the workers in turn."""
    rng = random.Random(1)
    next_seq = [1] * WORKERS
    made: list[Message] = []
    for number in range(blocks // (RUN * RUNS_A_MESSAGE)):
        worker = number % WORKERS
        runs: list[Event] = [Stored(ROOT, rng.randbytes(8 * RUN)) for _ in range(RUNS_A_MESSAGE)]
        batch = encode_batch(Batch(VERSION, 1, next_seq[worker], runs))
        made.append((SUBJECTS.events(f"w{worker}"), batch))
        next_seq[worker] += RUNS_A_MESSAGE
    return made


async def append(url: str, messages: Sequence[Message]) -> None:
    """Append all to the journal that the routers made."""
    connection = NatsConnection(NatsOptions(url=url))
    await connection.connect()
    journal = NatsJournal(
        connection, JournalOptions(stream=SUBJECTS.stream(), subjects=(SUBJECTS.events(),))
    )
    await journal.open(ensure=False)
    for subject, data in messages:
        journal.append(subject, data, lambda _: None)
        while journal.statistics().outstanding > OUTSTANDING:  # noqa: ASYNC110  an event costs more
            await asyncio.sleep(0)
    while journal.statistics().outstanding:  # noqa: ASYNC110  as above
        await asyncio.sleep(0.001)
    await journal.close()
    await connection.close()


class OurRouter:
    """A router on a server whose journal and snapshot hold the whole index."""

    def __init__(self, url: str, folder: Path, blocks: int) -> None:
        self._url = url
        self._folder = folder
        self._messages = make_messages(blocks)
        self._blocks = len(self._messages) * RUN * RUNS_A_MESSAGE
        self._snapshot_bytes = 0.0
        self.phases: list[Sample] = []

    def prepare(self) -> None:
        """Write the history and a snapshot of it, all but the tail."""
        first = self._start()
        first.wait(lambda router: bool(router.ask("/v1/status")["mesh"]["caught_up"]))
        head = self._messages[:-TAIL_MESSAGES]
        asyncio.run(append(self._url, head))
        first.wait(lambda router: _applied(router) == len(head))
        tool = [sys.executable, "-m", "kvmesh", "snapshot", "take", BUCKET]
        subprocess.run([*tool, "--nats-url", self._url], check=True, stdout=subprocess.DEVNULL)
        newest = first.ask("/v1/status")["mesh"]["snapshotter"]["newest"]
        self._snapshot_bytes = newest["size"] / newest["blocks"]
        first.kill()
        asyncio.run(append(self._url, self._messages[-TAIL_MESSAGES:]))

    def restart(self) -> Sample:
        """Start a router and wait until it has it all; tell each phase."""
        router = self._start()
        ready_s, cpu_s = router.wait(_is_warm), router.cpu_s()
        assert _applied(router) == len(self._messages)
        assert sum(router.ask("/v1/status")["mesh"]["blocks"].values()) == self._blocks
        marks = ["router starts", "loading the index", "snapshot fetched", "snapshot loaded"]
        begin_s, opened_s, fetched_s, loaded_s = map(router.logged_s, marks)
        read_s = router.logged_s("journal is read")
        router.kill()
        self.phases.append(
            {
                "code ms": begin_s * 1e3,
                "connect ms": (opened_s - begin_s) * 1e3,
                "fetch ms": (fetched_s - opened_s) * 1e3,
                "decode ms": (loaded_s - fetched_s) * 1e3,
                "tail ms": (read_s - loaded_s) * 1e3,
            }
        )
        return {"ready s": ready_s, "cpu s": cpu_s, "stored B/entry": self._snapshot_bytes}

    def _start(self) -> Started:
        port = free_port()
        arguments = ["kvmesh", "router", "--bucket", BUCKET, "--nats-url", self._url]
        arguments += ["--http-port", str(port)]
        return Started(arguments, port, self._folder / "router.log")


def _is_warm(router: Started) -> bool:
    """All workers are down; a router that still reads says that instead."""
    return "catching up" not in router.ask("/ready")["reason"]


def _applied(router: Started) -> int:
    return int(router.ask("/v1/status")["mesh"]["applied_sequence"])


def main() -> None:
    configure_logging("warning", "console")
    options = parse_options("A restarted router: from process start to knowing everything.")
    blocks = options.size(full=819_200, quick=204_800)
    with tempfile.TemporaryDirectory(prefix="kvmesh-bench-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        server = NatsServer(folder / "nats")
        url = asyncio.run(server.start())
        dynamo = DynamoIndexer(folder, blocks, RUN)
        try:
            ours = OurRouter(url, folder, blocks)
            ours.prepare()
            ways: dict[str, Candidate] = {"kvmesh router": ours.restart}
            if dynamo.missing:
                print(dynamo.missing)
            else:
                dynamo.prepare()
                ways[dynamo.name] = partial(DynamoIndexer.restart, dynamo)
            title = f"From process start to ready, {blocks:,} (worker, block) entries"
            report(compare(title, ways, options.rounds), options)
            phases = {"kvmesh router": ours.phases[1:]}
            report(Comparison("What it does meanwhile", "kvmesh router", phases), options)
        finally:
            dynamo.close()
            asyncio.run(server.stop())


if __name__ == "__main__":
    main()
