"""What bench_index measures; every figure is the median of a pass that begins with cold caches."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import median
from types import ModuleType
from typing import Final, TypeVar

import msgspec

from benchmarks.index.floor import bare_choice, bare_hashes, bare_matches, cut, needed, searched
from benchmarks.index.peers import DynamoPeer, OurPeer
from benchmarks.index.selection import OurSelection, dynamo_selection
from benchmarks.index.workload import BLOCK_SIZE, Request, Workload
from benchmarks.measure import (
    BenchOptions,
    Candidate,
    Sample,
    compare,
    quiet_collector,
    report,
)
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, sequence_hashes

_T = TypeVar("_T")

PARTS: Final = ("hash", "find", "select", "changes", "memory", "exactness", "growth")
"""What can be measured by itself."""

_trash = bytearray(64 << 20)
"""Read to push everything else out of the processor's caches."""


class Goals(msgspec.Struct, frozen=True):
    """How many times quicker than Dynamo we mean to be; for the last three, absolute limits."""

    find: float = 3.0
    find_deep: float = 5.0
    select: float = 5.0
    hash_buffer: float = 2.5
    apply: float = 2.0
    remove: float = 1.0
    dump: float = 3.0
    restore: float = 2.0
    entry_bytes: float = 60.0
    stop_ms: float = 2.0


GOALS = Goals()


class Row(msgspec.Struct, frozen=True):
    """One line of the final table; `ratio` is how many times better than the peer we are."""

    size: str
    operation: str
    unit: str
    ours: float
    peer: float | None = None
    ratio: float | None = None
    goal: float | None = None
    met: bool | None = None


class Bench:
    """The rows so far, and what is common to all parts."""

    def __init__(
        self,
        options: BenchOptions,
        blocks: Sequence[int],
        dynamo: ModuleType | None,
        parts: Iterable[str] = PARTS,
    ) -> None:
        self.options = options
        self.parts = frozenset(parts)
        self.blocks = blocks
        self.dynamo = dynamo
        self.rows: list[Row] = []
        self.prompts = options.size(full=100, quick=40)

    def compare(
        self,
        size: str,
        operation: str,
        candidates: Mapping[str, Candidate],
        goal: float | None = None,
    ) -> None:
        """Let the candidates take turns; the peer is called "dynamo", what counts "kvmesh"."""
        ordered = dict(sorted(candidates.items(), key=lambda one: one[0] != "dynamo"))
        found = compare(f"{size}: {operation}", ordered, self.options.rounds)
        report(found, self.options)
        figure = found.figures()[0]
        for name in ordered:
            ours = found.median(name, figure)
            if name == "dynamo" or ours is None:
                continue
            ratio = found.ratio(name, figure) if "dynamo" in ordered else None
            times = 1 / ratio if ratio else None
            wanted = goal if name == "kvmesh" else None
            self.rows.append(
                Row(
                    size=size,
                    operation=operation if name == "kvmesh" else f"{operation}, {name}",
                    unit=figure,
                    ours=ours,
                    peer=found.median("dynamo", figure) if "dynamo" in ordered else None,
                    ratio=times,
                    goal=wanted,
                    met=None if wanted is None or times is None else times >= wanted,
                )
            )


def measure_reads(bench: Bench, workload: Workload, size: str) -> tuple[OurPeer, DynamoPeer | None]:
    """Load both, measure what only reads them, and return them."""
    ours = OurPeer(workload)
    longest, load_s = timed_load(ours, workload)
    print(f"{size}: loaded in {load_s:.1f} s")
    peer = DynamoPeer(bench.dynamo, workload) if bench.dynamo else None
    longest_peer = timed_load(peer, workload)[0] if peer else None
    bench.rows.append(
        Row(
            size=size,
            operation="longest stop for one message of the load",
            unit="cpu ms",
            ours=longest,
            peer=longest_peer,
            ratio=longest_peer / longest if longest_peer else None,
        )
    )
    prompts = {blocks: workload.requests(blocks, bench.prompts) for blocks in bench.blocks}
    for blocks, requests in prompts.items():
        if "hash" in bench.parts:
            measure_hashing(bench, blocks, requests)
    for blocks, requests in prompts.items():
        if "find" in bench.parts:
            measure_find(bench, f"{size}, {blocks} blocks", blocks, requests, (ours, peer))
    if "select" in bench.parts:
        measure_selection(bench, workload, size, prompts, ours)
    return ours, peer


def timed_load(ours: OurPeer | DynamoPeer, workload: Workload) -> tuple[float, float]:
    """Return the longest processor time for one message in ms, and all wall time in s.

    Not wall time: it would measure who else runs on this machine.
    """
    longest, start = 0, time.perf_counter()
    for message in ours.messages(workload.loads):
        before = time.process_time_ns()
        ours.apply([message])
        longest = max(longest, time.process_time_ns() - before)
    return longest / 1e6, time.perf_counter() - start


def flush_caches() -> None:
    """Push what is in the processor's own caches out of them."""
    _trash.count(1)


def each(work: Callable[[_T], object], requests: Sequence[_T]) -> Sample:
    """Return the median wall time of one call in a pass that begins with cold caches, us."""
    taken: list[int] = []
    flush_caches()
    with quiet_collector():
        for request in requests:
            start = time.perf_counter_ns()
            work(request)
            taken.append(time.perf_counter_ns() - start)
    return {"us": median(taken) / 1000}


def measure_hashing(bench: Bench, blocks: int, requests: Sequence[Request]) -> None:
    candidates: dict[str, Candidate] = {
        "from a list": lambda: each(lambda one: sequence_hashes(one.tokens, BLOCK_SIZE), requests),
        "kvmesh": lambda: each(lambda one: sequence_hashes(one.packed, BLOCK_SIZE), requests),
        "floor": lambda: each(bare_hashes, pieces),
    }
    pieces = [cut(one.packed) for one in requests]
    if bench.dynamo:
        theirs = bench.dynamo.compute_block_hash_for_seq
        candidates["dynamo"] = lambda: each(lambda one: theirs(one.tokens, BLOCK_SIZE), requests)
    bench.compare(f"{blocks} blocks", "hash a u32 buffer", candidates, GOALS.hash_buffer)


def measure_find(
    bench: Bench,
    size: str,
    blocks: int,
    requests: Sequence[Request],
    peers: tuple[OurPeer, DynamoPeer | None],
) -> None:
    ours, peer = peers
    find, groups = ours.index.find_matches, ours.index.find_groups
    candidates: dict[str, Candidate] = {
        "kvmesh": lambda: each(lambda one: find(BlockHashes.of(one.hashes, BLOCK_SIZE)), requests),
        "groups": lambda: each(
            lambda one: groups(BlockHashes.of(one.hashes, BLOCK_SIZE)), requests
        ),
        "floor": lambda: each(bare_matches, looked_up),
    }
    looked_up = [searched(ours.index, one.hashes) for one in requests]
    if peer:
        theirs = peer.tree.find_matches
        candidates["dynamo"] = lambda: each(lambda one: theirs(one.local).scores, requests)
        for one in requests:
            check_same(find(BlockHashes.of(one.hashes, BLOCK_SIZE)), theirs(one.local).scores)
    goal = GOALS.find_deep if blocks >= 8192 else GOALS.find
    bench.compare(size, "find matches", candidates, goal)


def check_same(ours: Mapping[WorkerId, int], theirs: Mapping[tuple[int, int], int]) -> None:
    expected = {WorkerId(f"worker-{worker}"): depth for (worker, _), depth in theirs.items()}
    if ours != expected:
        raise AssertionError(f"different answers: {ours} and {expected}")


def measure_selection(
    bench: Bench,
    workload: Workload,
    size: str,
    prompts: Mapping[int, Sequence[Request]],
    ours: OurPeer,
) -> None:
    selection = OurSelection(ours)

    def run(theirs: Callable[[Sequence[Request]], Sample] | None) -> None:
        for blocks, requests in prompts.items():
            candidates: dict[str, Candidate] = {
                "kvmesh": partial(each, selection.select_by_list, requests),
                "from a u32 buffer": partial(each, selection.select_by_buffer, requests),
                "floor": partial(each, bare_choice, [needed(ours.index, one) for one in requests]),
            }
            if theirs:
                candidates["dynamo"] = partial(theirs, requests)
            bench.compare(f"{size}, {blocks} blocks", "tokens to worker", candidates, GOALS.select)

    if bench.dynamo is None:
        run(None)
        return
    with dynamo_selection(bench.dynamo, workload) as service:
        run(lambda requests: {"us": median(service.time_ns(requests)) / 1000})
