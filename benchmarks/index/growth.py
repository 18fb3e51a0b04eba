"""How long growing stops the event loop: one message at a time, up to millions of blocks."""

import os
import time
from collections.abc import Callable

from benchmarks.measure import quiet_collector
from kvmesh.core.blocks.events import ROOT, WorkerId
from kvmesh.core.blocks.hashing import unpack_run
from kvmesh.core.index.index import KvIndex

RUN_BLOCKS = 64


def longest_stops(blocks: int) -> tuple[float, float]:
    """Return the longest processor time, ms, of one message of 64 new blocks on the way to
    `blocks`: of our index, and of one dict, which is what it would be without shards.
    """
    index, one = KvIndex(max_blocks=2 * blocks), dict[int, int]()
    worker = WorkerId("w")

    def ours(run: bytes) -> None:
        index.store(worker, ROOT, run)

    def plain(run: bytes) -> None:
        for block in unpack_run(run):
            one[block] = 1

    return _longest(ours, blocks), _longest(plain, blocks)


def _longest(store: Callable[[bytes], None], blocks: int) -> float:
    longest = 0
    with quiet_collector():
        for _ in range(0, blocks, RUN_BLOCKS):
            run = os.urandom(8 * RUN_BLOCKS)
            before = time.process_time_ns()
            store(run)
            longest = max(longest, time.process_time_ns() - before)
    return longest / 1e6
