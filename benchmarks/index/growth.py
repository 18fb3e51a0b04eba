"""How long growing stops the event loop: one message at a time, up to millions of blocks."""

import os
import time
from collections.abc import Callable, Iterable

import msgspec

from benchmarks.measure import quiet_collector
from kvmesh.core.blocks.events import ROOT, WorkerId
from kvmesh.core.index.index import KvIndex

RUN_BLOCKS = 512
_REMOVED = 2000
_VIEWS = 4


class Stops(msgspec.Struct, frozen=True):
    """The longest processor time, ms, of one message of `RUN_BLOCKS` blocks on the way up."""

    store: float
    store_in_view: float
    """While a snapshot is taken: it needs a copy of what changes before it was read."""
    remove: float


def longest_stops(blocks: int) -> Stops:
    """Fill an index with so many blocks of one worker, and remove some of them again."""
    index = KvIndex(max_blocks=2 * blocks)
    worker = WorkerId("w")
    runs = blocks // RUN_BLOCKS
    kept: list[bytes] = []
    longest = in_view = 0.0

    def store(run: bytes) -> None:
        index.store(worker, ROOT, run)

    def remove(run: bytes) -> None:
        index.remove(worker, run)

    with quiet_collector():
        for share in range(_VIEWS):
            some = [os.urandom(8 * RUN_BLOCKS) for _ in range(_REMOVED // _VIEWS)]
            kept += some
            many = range(runs * share // _VIEWS, runs * (share + 1) // _VIEWS)
            longest = max(longest, _longest(store, (os.urandom(8 * RUN_BLOCKS) for _ in many)))
            longest = max(longest, _longest(store, some[1:]))
            view = index.freeze()
            in_view = max(in_view, _longest(store, some[:1]))
            view.close()
        return Stops(longest, in_view, _longest(remove, kept))


def _longest(work: Callable[[bytes], None], runs: Iterable[bytes]) -> float:
    longest = 0
    for run in runs:
        before = time.process_time_ns()
        work(run)
        longest = max(longest, time.process_time_ns() - before)
    return longest / 1e6
