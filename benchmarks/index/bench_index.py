"""The index, the hashes and the decision against NVIDIA Dynamo's: same work, same run, one table.

    python -m benchmarks.index.bench_index --quick
    python -m benchmarks.index.bench_index --sizes 64x1000000 512x5000000 --blocks 512 8192
    python -m benchmarks.index.bench_index --parts find select --sizes 64x1000000

`--sizes` are workers x (worker, block) entries, `--parts` what to measure, by default everything,
Caches are flushed before each pass over a set of
different prompts; a figure is the median over the pass and over rounds, a ratio the median over
rounds. Without ai-dynamo-runtime 1.6.1 only our own figures are printed, with the reason. SGLang's
tree is no peer here: the wheel sglang-router 0.3.2 exports `Router.start` alone, and through its
HTTP service the tree's time is below the noise of the rest.
"""

import argparse
import subprocess
import sys

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.index.changes import measure_changes
from benchmarks.index.exactness import QUERIES, count_exact
from benchmarks.index.growth import RUN_BLOCKS, longest_stops
from benchmarks.index.measures import GOALS, PARTS, Bench, Row, measure_reads
from benchmarks.index.peers import find_dynamo
from benchmarks.index.workload import Workload
from benchmarks.measure import TABLE_WIDTH, parse_options

QUICK_SIZES = ["8x100000", "64x200000"]
FULL_SIZES = ["8x100000", "64x1000000", "512x1000000", "512x5000000"]


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--sizes", nargs="+", default=None)
    parser.add_argument("--blocks", nargs="+", type=int, default=None)
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS)
    found, rest = parser.parse_known_args()
    options = parse_options(__doc__ or "", rest)
    sizes = found.sizes or (QUICK_SIZES if options.quick else FULL_SIZES)
    blocks = found.blocks or ([32, 512, 8192] if options.quick else [32, 128, 512, 2048, 8192])
    dynamo = find_dynamo()
    if isinstance(dynamo, str):
        print(f"no peer: {dynamo}")
    bench = Bench(options, blocks, None if isinstance(dynamo, str) else dynamo, found.parts)
    for size in sizes:
        measure_size(bench, size)
    if "exactness" in bench.parts:
        measure_exactness(bench)
    if "growth" in bench.parts:
        measure_growth(bench)
    print_table(bench)
    print_curve(bench)


def measure_size(bench: Bench, size: str) -> None:
    if not bench.parts.isdisjoint(("hash", "find", "select", "changes")):
        workers, entries = map(int, size.split("x"))
        workload = Workload(workers, entries)
        ours, peer = measure_reads(bench, workload, size)
        if "changes" in bench.parts:
            measure_changes(bench, workload, size, ours, peer)
    if "memory" in bench.parts:
        measure_memory(bench, size)


def measure_memory(bench: Bench, size: str) -> None:
    """Let each index be loaded in a fresh process, which tells what it grew by per entry."""
    grown: dict[str, float] = {}
    for peer in ("kvmesh", "dynamo") if bench.dynamo else ("kvmesh",):
        command = [sys.executable, "-m", "benchmarks.index.memory", peer, size]
        grown[peer] = float(subprocess.run(command, check=True, capture_output=True).stdout)
    ours, theirs = grown["kvmesh"], grown.get("dynamo")
    bench.rows.append(
        Row(
            size=size,
            operation=f"memory (at most {GOALS.entry_bytes:g})",
            unit="bytes per entry",
            ours=ours,
            peer=theirs,
            ratio=theirs / ours if theirs else None,
            met=ours <= GOALS.entry_bytes,
        )
    )


def measure_exactness(bench: Bench) -> None:
    for share in (0.0, 0.05, 0.3):
        ours, theirs = count_exact(bench.dynamo, share)
        bench.rows.append(
            Row(
                size="16 workers",
                operation=f"right answers of {QUERIES}, {share:.0%} inner evictions",
                unit="answers",
                ours=ours,
                peer=theirs,
                ratio=ours / theirs if theirs else None,
                met=ours == QUERIES,
            )
        )


def measure_growth(bench: Bench) -> None:
    blocks, goal = bench.options.size(full=20_000_000, quick=500_000), GOALS.stop_ms
    stops = longest_stops(blocks, bench.options.rounds)
    figures = (
        (f"longest store of {RUN_BLOCKS} new blocks (at most {goal:g})", stops.store),
        (f"the same, in a snapshot (at most {goal:g})", stops.store_in_view),
        (f"longest removal of {RUN_BLOCKS}, in a snapshot (at most {goal:g})", stops.remove),
    )
    for operation, longest in figures:
        bench.rows.append(
            Row(
                size=f"1x{blocks}",
                operation=operation,
                unit="cpu ms",
                ours=longest,
                met=longest <= goal,
            )
        )


def print_table(bench: Bench) -> None:
    table = Table(
        title="kvmesh against ai-dynamo-runtime 1.6.1",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    for name in ("size", "operation", "unit"):
        table.add_column(name, overflow="fold")
    for name in ("kvmesh", "Dynamo", "times better", "goal", ""):
        table.add_column(name, justify="right")
    for row in bench.rows:
        table.add_row(
            row.size,
            row.operation,
            row.unit,
            f"{row.ours:,.4g}",
            "" if row.peer is None else f"{row.peer:,.4g}",
            "" if row.ratio is None else f"{row.ratio:.2f}",
            "" if row.goal is None else f"{row.goal:g}",
            "" if row.met is None else ("met" if row.met else "MISSED"),
        )
    Console(width=TABLE_WIDTH).print(table)


def print_curve(bench: Bench) -> None:
    """How `find_matches` grows: with depth along the rows, with workers and entries down them."""
    table = Table(title="find matches, us, kvmesh / Dynamo", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("workers x entries")
    for blocks in bench.blocks:
        table.add_column(f"{blocks} blocks", justify="right")
    curve: dict[str, list[str]] = {}
    for row in bench.rows:
        if row.operation == "find matches":
            peer = "" if row.peer is None else f" / {row.peer:.0f}"
            curve.setdefault(row.size.split(",")[0], []).append(f"{row.ours:.0f}{peer}")
    for size, cells in curve.items():
        table.add_row(size, *cells)
    Console(width=TABLE_WIDTH).print(table)


if __name__ == "__main__":
    main()
