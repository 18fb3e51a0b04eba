"""The life of a request in the router's books: chosen and booked, first token, end.

    python -m benchmarks.index.bench_choice --quick

Each round a fleet is given 64 prompts of 25 blocks, all new to it but for a system prompt of 8
blocks that half of the workers hold, and then their ends; what lives besides is in the row's name.
Processor time of the scheduler alone, in warm caches: a router has other work in between.
"""

import time
from collections.abc import Sequence
from functools import partial
from random import Random

from benchmarks.measure import Candidate, Sample, compare, parse_options, quiet_collector, report
from kvmesh.core.blocks.events import ROOT, Stored, WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes, sequence_hashes
from kvmesh.core.index.approx import new_approx
from kvmesh.core.index.index import KvIndex
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.worker_info import WorkerInfo
from kvmesh.core.routing.decision import RouteRequest, RouterOptions
from kvmesh.core.routing.scheduler import Scheduler

BLOCK_SIZE = 16
BLOCKS = 25
SHARED_BLOCKS = 8
IN_FLIGHT = 64
EXPECTED_TOKENS = 100


class Fleet:
    """A scheduler with `workers`, and `busy` requests at them that stay."""

    def __init__(self, workers: int, busy: int) -> None:
        membership, index = Membership(), KvIndex()
        self.scheduler = Scheduler(
            RouterOptions(block_size=BLOCK_SIZE),
            Random(1),
            membership=membership,
            sequences=new_sequences(BLOCK_SIZE),
            index=index,
            routed=new_approx(thinned=True),
        )
        self._rng = Random(2)
        self._system = [self._rng.randrange(1 << 16) for _ in range(SHARED_BLOCKS * BLOCK_SIZE)]
        self._number = 0
        self._now = 1000.0
        shared = Stored(ROOT, pack_hashes(sequence_hashes(self._system, BLOCK_SIZE)))
        for number in range(workers):
            name = WorkerId(f"worker-{number:03d}")
            membership.add(name, self._now)
            self.scheduler.workers.describe(name, WorkerInfo(total_blocks=1 << 16))
            if number % 2:
                index.apply(name, shared)
        for request in self._requests(busy):
            self._now += 0.002
            self.scheduler.schedule(request, self._now)

    def round(self, size: int) -> Sample:
        """Let `size` waves of requests live, and return what a request cost."""
        waves = [self._requests(IN_FLIGHT) for _ in range(size)]
        spent = [0, 0, 0]
        with quiet_collector():
            for wave in waves:
                self._live(wave, spent)
        names = ("choose and book, us", "first token, us", "end, us")
        figures = [one / size / IN_FLIGHT / 1000 for one in spent]
        return {"all, us": sum(figures), **dict(zip(names, figures, strict=True))}

    def _live(self, wave: Sequence[RouteRequest], spent: list[int]) -> None:
        scheduler, clock, now = self.scheduler, time.process_time_ns, self._now
        marks = [clock()]
        for request in wave:
            now += 0.0005
            scheduler.schedule(request, now)
        marks.append(clock())
        for request in wave:
            now += 0.0005
            scheduler.first_token(request.request_id, now)
        marks.append(clock())
        for request in wave:
            now += 0.0005
            scheduler.finish(request.request_id, now)
        marks.append(clock())
        self._now = now
        for number in range(3):
            spent[number] += marks[number + 1] - marks[number]

    def _requests(self, count: int) -> list[RouteRequest]:
        return [self._request() for _ in range(count)]

    def _request(self) -> RouteRequest:
        self._number += 1
        count = BLOCKS * BLOCK_SIZE - len(self._system)
        tokens = self._system + [self._rng.randrange(1 << 16) for _ in range(count)]
        hashes = BlockHashes(tokens, BLOCK_SIZE)
        return RouteRequest(f"r{self._number}", hashes, len(tokens), EXPECTED_TOKENS)


def main() -> None:
    options = parse_options(__doc__ or "")
    waves = options.size(full=30, quick=8)
    fleets = [(4, 0), (8, 64), (64, 0), (64, 600), (512, 5000)]
    candidates: dict[str, Candidate] = {
        f"{workers} workers, {busy} requests": partial(Fleet(workers, busy).round, waves)
        for workers, busy in fleets
    }
    report(compare("one request's decision and bookings", candidates, options.rounds), options)


if __name__ == "__main__":
    main()
