"""An engine that joins a busy fleet: its hits in its first minute, and what the fleet feels of it.

For each trace and rate: a fleet in virtual time that an engine joins, at several times of the run,
with and without prefixes given to it before it serves. Run as
`python -m benchmarks.fleet.bench_joining --trace A.jsonl.gz --rate 8,12`; `--trace` may also name
a generated workload of `benchmarks.quality.workloads`.
"""

import argparse
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.quality.workloads import BLOCK, WORKLOADS
from kvmesh.core.warming.newcomers import WarmOptions
from kvmesh_lab.replay.options import ReplayOptions
from kvmesh_lab.replay.plan import TraceSlice, load_slice
from kvmesh_lab.simulator.membership import JoinSums
from kvmesh_lab.simulator.options import SimulateOptions
from kvmesh_lab.simulator.slices import Setting, Simulator

GENERATED: Final = 8000
"""Requests of a generated workload, unless told."""

_HEAD: Final = (
    "| trace | requests/s | newcomer | waits s | warmed tokens | its hits | fleet's hits | ratio |"
    " TTFT p50 ms | p90 | p99 | prefill of 75 s, M tokens |\n"
    "|---|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
)


def load(trace: Path, requests: int | None) -> TraceSlice:
    """Return a file's requests, or those of a generated workload."""
    if (make := WORKLOADS.get(str(trace))) is not None:
        return TraceSlice(str(trace), BLOCK, tuple(make(requests or GENERATED)))
    return load_slice(ReplayOptions(trace, requests=requests))


def times(length_s: float, count: int) -> list[float]:
    """Return seconds between 20 and 60 % of a run, evenly."""
    return [length_s * (0.2 + 0.4 * (place + 0.5) / count) for place in range(count)]


def arguments(description: str | None, engines: str) -> argparse.ArgumentParser:
    """Return the arguments of a comparison of fleets; `engines` says which of them count."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--trace", type=Path, action="append", required=True)
    parser.add_argument("--rate", required=True, help="requests/s, comma-separated")
    parser.add_argument("--engines", type=int, default=8, help=engines)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--share", type=float, default=WarmOptions().share)
    return parser


def play(options: SimulateOptions, rate: float, joins: int, share: float) -> JoinSums:
    """Return what became of an engine that joins between 20 and 60 % of the run."""
    trace = load(options.trace, options.requests)
    simulator, number = Simulator(options, trace), options.engines - 1
    speedup = rate / simulator.recorded_rate
    length_s, sums = len(trace.requests) / rate, JoinSums()
    for join_s in times(length_s, joins):
        warm = WarmOptions(share=share) if share else None
        fleet = msgspec.structs.replace(simulator.fleet, joins=((number, join_s),), warm=warm)
        played = simulator.play("kv", Setting("", speedup), lambda _: None, fleet)
        sums.add(played, number, join_s)
    return sums


def main() -> None:
    """Print a row for each trace, rate and way to join."""
    parser = arguments(__doc__, "with the newcomer")
    parser.add_argument("--joins", type=int, default=4)
    asked = parser.parse_args()
    print(_HEAD, flush=True)
    options = SimulateOptions(asked.trace[0], engines=asked.engines, requests=asked.requests)
    for trace in asked.trace:
        for rate in map(float, asked.rate.split(",")):
            for name, share in (("cold", 0.0), ("warmed", asked.share)):
                sums = play(replace(options, trace=trace), rate, asked.joins, share)
                row = " | ".join(sums.cells())
                print(f"| {trace.name.split('.')[0]} | {rate:g} | {name} | {row} |", flush=True)


if __name__ == "__main__":
    main()
