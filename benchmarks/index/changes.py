"""What bench_index measures of events and snapshots: they change what they are measured on."""

import time
from collections.abc import Callable, Iterable, Sequence

from benchmarks.index.floor import (
    bare_apply,
    bare_changes,
    bare_columns,
    bare_dump,
    bare_restore,
    shards_of,
    undo,
)
from benchmarks.index.measures import GOALS, Bench, Row, flush_caches
from benchmarks.index.peers import DynamoPeer, OurPeer
from benchmarks.index.workload import Change, Workload
from benchmarks.measure import Candidate, Sample, quiet_collector


def measure_changes(
    bench: Bench, workload: Workload, size: str, ours: OurPeer, peer: DynamoPeer | None
) -> None:
    """Apply the same churn to both, round by round; then take workers out and all of it over."""
    count = bench.options.size(full=8000, quick=4000)
    batches = [workload.churn(count) for _ in range(bench.options.rounds + 1)]
    candidates: dict[str, Candidate] = {"kvmesh": churn(ours, batches)}
    if peer:
        candidates["dynamo"] = churn(peer, batches)
    candidates["floor"] = bare_churn(ours, batches)
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
    candidates = {
        "kvmesh": lambda: once(ours.dump),
        "floor": lambda: once(lambda: bare_dump(ours.index)),
    }
    if peer:
        candidates["dynamo"] = lambda: once(peer.dump)
    bench.compare(size, "dump", candidates, GOALS.dump)
    columns = bare_columns(ours.index)
    candidates = {
        "kvmesh": lambda: once(lambda: ours.restore(dumped)),
        "floor": lambda: once(lambda: bare_restore(columns)),
    }
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
        return per_block(once(lambda: peer.apply(messages)), blocks)

    return apply


def bare_churn(peer: OurPeer, batches: Iterable[Sequence[Change]]) -> Candidate:
    """Return a candidate that decodes the next batch and does one dict operation a block."""
    left = iter(batches)

    def apply() -> Sample:
        changes = next(left)
        messages = peer.messages(changes)
        table = shards_of(peer.index)
        prepared = [(data, bare_changes(table, data)) for _, data in messages]
        blocks = sum(change.last - change.first for change in changes)
        sample = once(lambda: bare_apply(prepared))
        undo(prepared)
        return per_block(sample, blocks)

    return apply


def per_block(sample: Sample, blocks: int) -> Sample:
    return {
        "cpu us per block": 1000 * sample["cpu ms"] / blocks,
        "wall us per block": 1000 * sample["wall ms"] / blocks,
    }


def once(work: Callable[[], object]) -> Sample:
    """Return wall and processor time of one call with cold caches, ms."""
    flush_caches()
    with quiet_collector():
        wall, cpu = time.perf_counter_ns(), time.process_time_ns()
        work()
        cpu, wall = time.process_time_ns() - cpu, time.perf_counter_ns() - wall
    return {"cpu ms": cpu / 1e6, "wall ms": wall / 1e6}
