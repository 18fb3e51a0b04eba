"""How long growing stops the event loop: one message at a time, up to millions of blocks."""

import random
import time
from collections.abc import Callable, Iterable, Iterator

import msgspec

from benchmarks.measure import quiet_collector
from kvmesh._native import rekey
from kvmesh.core.blocks.events import ROOT, WorkerId
from kvmesh.core.index.index import KvIndex

RUN_BLOCKS = 512
_KEY = (0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB)
_VIEWS = 4
_IN_VIEW = 100
"""Messages while each view is open."""

Times = list[int]


class Stops(msgspec.Struct, frozen=True):
    """The longest processor time, ms, of one message of `RUN_BLOCKS` blocks on the way up.

    Of each message the least of all rounds counts: the same blocks go to the same places each time,
    so that what takes long in all of them is the index, and what does not is the machine.
    """

    store: float
    store_in_view: float
    """While a snapshot is taken: it needs a copy of what changes before it was read."""
    remove: float
    """Likewise while a snapshot is taken."""


def longest_stops(blocks: int, rounds: int) -> Stops:
    """Fill an index with so many blocks of one worker, and remove some of them again."""
    before = rekey(*_KEY)
    try:
        played = [_play(blocks) for _ in range(rounds)]
    finally:
        rekey(*before)
    longest = [max(map(min, zip(*kind, strict=True))) / 1e6 for kind in zip(*played, strict=True)]
    return Stops(*longest)


def _play(blocks: int) -> tuple[Times, Times, Times]:
    """Return the processor time, ns, of each store, of those in a view, and of each removal."""
    index = KvIndex(max_blocks=2 * blocks)
    worker = WorkerId("w")
    rng = random.Random(1)
    kept: list[bytes] = []
    stores: Times = []
    in_view: Times = []

    def store(run: bytes) -> None:
        index.store(worker, ROOT, run)

    def remove(run: bytes) -> None:
        index.remove(worker, run)

    def runs(count: int) -> Iterator[bytes]:
        return (rng.randbytes(8 * RUN_BLOCKS) for _ in range(count))

    with quiet_collector():
        for _ in range(_VIEWS):
            stores += _times(store, runs(blocks // RUN_BLOCKS // _VIEWS))
            view = index.freeze()
            some = list(runs(_IN_VIEW))
            in_view += _times(store, some)
            kept += some
            view.close()
        view = index.freeze()
        removals = _times(remove, kept)
        view.close()
    return stores, in_view, removals


def _times(work: Callable[[bytes], None], runs: Iterable[bytes]) -> Times:
    taken: Times = []
    for run in runs:
        before = time.thread_time_ns()
        work(run)
        taken.append(time.thread_time_ns() - before)
    return taken
