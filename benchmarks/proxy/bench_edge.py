"""What it costs an edge to ask the index process, both sides together, the decision left out.

Both ends of the Unix socket are in one process: question out, read and turned into a request,
answer out, read.
"""

import asyncio
import tempfile
from functools import partial
from pathlib import Path

import uvloop

from benchmarks.measure import Candidate, Sample, compare, parse_options, report, time_work
from kvmesh.app.edge.messages import Ask, EdgeCodec, FromEdge, Go, IndexCodec, ToEdge, ask, asked
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.transport.local import LocalLink, connect_local, listen_local

BLOCK_SIZE = 16
TOLD = [(b"x-kvmesh-worker", b"w0"), (b"x-kvmesh-overlap-blocks", b"20")]


class IndexSide:
    """Turns each question into a request and answers where it goes."""

    def __init__(self, link: LocalLink[FromEdge, ToEdge]) -> None:
        self._link = link

    def on_message(self, message: FromEdge) -> None:
        assert isinstance(message, Ask)
        asked(message, BLOCK_SIZE)
        self._link.send(Go(message.n, WorkerId("w0"), "http://127.0.0.1:8000", [], TOLD))

    def on_unsent(self, message: ToEdge, error: Exception) -> None:
        raise AssertionError(message) from error

    def on_lost(self) -> None:
        pass


class EdgeSide:
    """Counts the answers."""

    def __init__(self) -> None:
        self.wanted = 0
        self.whole = asyncio.Event()

    def on_message(self, message: ToEdge) -> None:
        del message
        self.wanted -= 1
        if not self.wanted:
            self.whole.set()

    def on_unsent(self, message: FromEdge, error: Exception) -> None:
        raise AssertionError(message) from error

    def on_lost(self) -> None:
        pass


def prompt(blocks: int) -> RouteRequest:
    """Return a request whose prompt is hashed already: that costs the same without edges."""
    hashes = BlockHashes.of(list(range(1 << 62, (1 << 62) + blocks)), BLOCK_SIZE)
    return RouteRequest("9f1c8a2e-1", hashes, blocks * BLOCK_SIZE, model="m")


async def turns(rounds: int, in_flight: int, blocks: int) -> None:
    """Let `in_flight` questions go in a turn, and wait for their answers, `rounds` times."""
    request = prompt(blocks)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "index.sock"
        server = await listen_local(path, IndexCodec(), lambda link: link.attach(IndexSide(link)))
        link = await connect_local(path, EdgeCodec())
        edge = EdgeSide()
        link.attach(edge)
        for _ in range(rounds):
            edge.wanted = in_flight
            edge.whole.clear()
            for n in range(in_flight):
                link.send(ask(n, request, b"9f1c8a2e-1"))
            await edge.whole.wait()
        link.close()
        server.close()


def asking(in_flight: int, blocks: int, calls: int) -> Sample:
    rounds = max(1, calls // in_flight)
    work = partial(turns, rounds, in_flight, blocks)
    return time_work(lambda: uvloop.run(work()), operations=rounds * in_flight)


def main() -> None:
    options = parse_options(str(__doc__))
    calls = options.size(full=20_000, quick=2_000)
    for blocks in (25, 1_000):
        candidates: dict[str, Candidate] = {
            f"{in_flight} in flight": partial(asking, in_flight, blocks, calls)
            for in_flight in (64, 16, 1)
        }
        report(compare(f"asking with {blocks:,} hashes", candidates, options.rounds), options)


if __name__ == "__main__":
    main()
