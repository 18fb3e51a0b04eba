"""What bench_index measures; every figure is the median of a pass that begins with cold caches."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import median
from types import ModuleType

import msgspec

from benchmarks.index_peers import DynamoPeer, OurPeer
from benchmarks.index_selection import OurSelection, dynamo_selection
from benchmarks.index_workload import BLOCK_SIZE, Change, Request, Workload
from benchmarks.measure import (
    BenchOptions,
    Candidate,
    Sample,
    compare,
    quiet_collector,
    report,
)
from kvmesh.core.events import WorkerId
from kvmesh.core.hashing import BlockHashes, sequence_hashes

_trash = bytearray(64 << 20)
"""Read to push everything else out of the processor's caches."""


class Goals(msgspec.Struct, frozen=True):
    """How many times quicker than Dynamo we mean to be; for the last two, absolute limits."""

    find: float = 2.5
    find_deep: float = 5.0
    select: float = 5.0
    hash_buffer: float = 2.5
    apply: float = 2.0
    remove: float = 1.0
    dump: float = 3.0
    restore: float = 2.0
    entry_bytes: float = 60.0
    stop_ms: float = 20.0


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
        self, options: BenchOptions, blocks: Sequence[int], dynamo: ModuleType | None
    ) -> None:
        self.options = options
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


def measure_size(bench: Bench, workload: Workload, size: str, *, hashing: bool) -> None:
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
    if hashing:
        for blocks, requests in prompts.items():
            measure_hashing(bench, blocks, requests)
    for blocks, requests in prompts.items():
        measure_find(bench, f"{size}, {blocks} blocks", blocks, requests, (ours, peer))
    measure_selection(bench, workload, size, prompts, ours)
    measure_changes(bench, workload, size, ours, peer)


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


def each(work: Callable[[Request], object], requests: Sequence[Request]) -> Sample:
    """Return the median wall time of one call in a pass that begins with cold caches, us."""
    taken: list[int] = []
    _trash.count(1)
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
    }
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
    }
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
            }
            if theirs:
                candidates["dynamo"] = partial(theirs, requests)
            bench.compare(f"{size}, {blocks} blocks", "tokens to worker", candidates, GOALS.select)

    if bench.dynamo is None:
        run(None)
        return
    with dynamo_selection(bench.dynamo, workload) as service:
        run(lambda requests: {"us": median(service.time_ns(requests)) / 1000})


def measure_changes(
    bench: Bench, workload: Workload, size: str, ours: OurPeer, peer: DynamoPeer | None
) -> None:
    """Apply the same churn to both, round by round; then take workers out and all of it over."""
    count = bench.options.size(full=8000, quick=4000)
    batches = [workload.churn(count) for _ in range(bench.options.rounds + 1)]
    candidates: dict[str, Candidate] = {"kvmesh": churn(ours, batches)}
    if peer:
        candidates["dynamo"] = churn(peer, batches)
    bench.compare(size, "apply from the wire", candidates, GOALS.apply)

    dumped = ours.dump()
    bench.rows.append(
        Row(
            size=size,
            operation="snapshot",
            unit="bytes per entry",
            ours=len(dumped) / workload.entries,
        )
    )
    candidates = {"kvmesh": lambda: once(ours.dump)}
    if peer:
        candidates["dynamo"] = lambda: once(peer.dump)
    bench.compare(size, "dump", candidates, GOALS.dump)
    candidates = {"kvmesh": lambda: once(lambda: ours.restore(dumped))}
    if peer:
        prepared = peer.prepared(peer.dump())
        candidates["dynamo"] = lambda: once(lambda: peer.restore(prepared))
    bench.compare(size, "restore", candidates, GOALS.restore)
    leavers = iter(range(workload.workers))
    candidates = {
        "kvmesh": lambda: once(lambda: ours.index.remove_worker(ours.names[next(leavers)]))
    }
    if peer:
        theirs = iter(range(workload.workers))
        candidates["dynamo"] = lambda: once(lambda: peer.tree.remove_worker(next(theirs)))
    if workload.workers > bench.options.rounds:
        bench.compare(size, "remove a worker", candidates, GOALS.remove)
    start = time.perf_counter()
    longest = 0.0
    done = False
    while not done:
        before = time.perf_counter()
        done = ours.index.sweep(4096)
        longest = max(longest, time.perf_counter() - before)
    swept_ms = (time.perf_counter() - start) * 1000
    print(f"{size}: swept behind them in {swept_ms:.0f} ms, longest slice {longest * 1000:.1f} ms")


def churn(peer: OurPeer | DynamoPeer, batches: Iterable[Sequence[Change]]) -> Candidate:
    """Return a candidate that applies the next batch, decoding included; us per block."""
    left = iter(batches)

    def apply() -> Sample:
        changes = next(left)
        messages = peer.messages(changes)
        blocks = sum(change.last - change.first for change in changes)
        sample = once(lambda: peer.apply(messages))
        return {
            "cpu us per block": 1000 * sample["cpu ms"] / blocks,
            "wall us per block": 1000 * sample["wall ms"] / blocks,
        }

    return apply


def once(work: Callable[[], object]) -> Sample:
    """Return wall and processor time of one call with cold caches, ms."""
    _trash.count(1)
    with quiet_collector():
        wall, cpu = time.perf_counter_ns(), time.process_time_ns()
        work()
        cpu, wall = time.process_time_ns() - cpu, time.perf_counter_ns() - wall
    return {"cpu ms": cpu / 1e6, "wall ms": wall / 1e6}
