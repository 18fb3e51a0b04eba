"""An engine that joins a busy fleet: its hits in its first minute, and what the fleet feels of it.

For each trace and rate: a fleet in virtual time that an engine joins, at several times of the run,
with and without prefixes given to it before it serves. Run as
`python -m benchmarks.fleet.bench_joining --trace A.jsonl.gz --rate 8,12`; `--trace` may also name
a generated workload of `benchmarks.quality.workloads`.
"""

import argparse
from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.quality.workloads import BLOCK, WORKLOADS
from kvmesh.core.warming.newcomers import WarmOptions
from kvmesh_lab.replay.options import ReplayOptions
from kvmesh_lab.replay.plan import TraceSlice, load_slice
from kvmesh_lab.report.outcome import RequestOutcome, percentile
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.simulator.options import SimulateOptions
from kvmesh_lab.simulator.slices import Setting, Simulator

FIRST_MS: Final = 60_000.0
"""The newcomer's first minute of serving."""

FELT_MS: Final = 75_000.0
"""From the join on the fleet's first tokens are looked at for so long."""

GENERATED: Final = 8000
"""Requests of a generated workload, unless told."""

_HEAD: Final = (
    "| trace | requests/s | newcomer | waits s | warmed tokens | its hits | fleet's hits | ratio |"
    " TTFT p50 ms | p90 | p99 | prefill of 75 s, M tokens |\n"
    "|---|--:|---|--:|--:|--:|--:|--:|--:|--:|--:|--:|"
)


class Minute(msgspec.Struct):
    """Sums over joins of one fleet: tokens of prompts and cached ones; first tokens, ms."""

    own: int = 0
    own_cached: int = 0
    fleet: int = 0
    fleet_cached: int = 0
    computed: int = 0
    waits_s: list[float] = []
    warmed: list[int] = []
    firsts: list[float] = []

    def add(self, fleet: SimulatedFleet, number: int, join_s: float) -> None:
        """Take in what became of one join."""
        worker = fleet.engines[number].worker
        serves_ms = fleet.joining.serves_s[worker] * 1000.0
        self.waits_s.append(serves_ms / 1000.0 - join_s)
        self.warmed.append(fleet.joining.warmed_tokens)
        for one in _sent(fleet.outcomes, serves_ms, FIRST_MS):
            self.fleet += one.prompt_tokens
            self.fleet_cached += one.cached_tokens
            if one.worker == worker:
                self.own += one.prompt_tokens
                self.own_cached += one.cached_tokens
        for one in _sent(fleet.outcomes, join_s * 1000.0, FELT_MS):
            self.computed += one.prompt_tokens - one.cached_tokens
            self.firsts.append(one.ttft_ms or 0.0)

    def row(self) -> str:
        """Return the cells behind the newcomer's name."""
        own, fleet = self.own_cached / max(1, self.own), self.fleet_cached / max(1, self.fleet)
        firsts, joins = sorted(self.firsts), len(self.warmed)
        ttfts = " | ".join(f"{percentile(firsts, share):,.0f}" for share in (0.5, 0.9, 0.99))
        return (
            f"{sum(self.waits_s) / joins:.1f} | {sum(self.warmed) // joins:,} | {own:.3f} | "
            f"{fleet:.3f} | {own / max(fleet, 1e-9):.2f} | {ttfts} | "
            f"{self.computed / joins / 1e6:.2f}"
        )


def _sent(
    outcomes: Iterable[RequestOutcome], from_ms: float, for_ms: float
) -> Iterator[RequestOutcome]:
    return (one for one in outcomes if from_ms <= one.sent_ms < from_ms + for_ms)


def load(trace: Path, requests: int | None) -> TraceSlice:
    """Return a file's requests, or those of a generated workload."""
    if (make := WORKLOADS.get(str(trace))) is not None:
        return TraceSlice(str(trace), BLOCK, tuple(make(requests or GENERATED)))
    return load_slice(ReplayOptions(trace, requests=requests))


def play(options: SimulateOptions, rate: float, joins: int, share: float) -> Minute:
    """Return what became of an engine that joins between 20 and 60 % of the run."""
    trace = load(options.trace, options.requests)
    simulator, number = Simulator(options, trace), options.engines - 1
    speedup = rate / simulator.recorded_rate
    length_s, minute = len(trace.requests) / rate, Minute()
    for place in range(joins):
        join_s = length_s * (0.2 + 0.4 * (place + 0.5) / joins)
        warm = WarmOptions(share=share) if share else None
        fleet = msgspec.structs.replace(simulator.fleet, joins=((number, join_s),), warm=warm)
        played = simulator.play("kv", Setting("", speedup), lambda _: None, fleet)
        minute.add(played, number, join_s)
    return minute


def main() -> None:
    """Print a row for each trace, rate and way to join."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", type=Path, action="append", required=True)
    parser.add_argument("--rate", required=True, help="requests/s, comma-separated")
    parser.add_argument("--engines", type=int, default=8, help="with the newcomer")
    parser.add_argument("--joins", type=int, default=4)
    parser.add_argument("--requests", type=int)
    parser.add_argument("--share", type=float, default=WarmOptions().share)
    asked = parser.parse_args()
    print(_HEAD, flush=True)
    options = SimulateOptions(asked.trace[0], engines=asked.engines, requests=asked.requests)
    for trace in asked.trace:
        for rate in map(float, asked.rate.split(",")):
            for name, share in (("cold", 0.0), ("warmed", asked.share)):
                row = play(replace(options, trace=trace), rate, asked.joins, share).row()
                print(f"| {trace.name.split('.')[0]} | {rate:g} | {name} | {row} |", flush=True)


if __name__ == "__main__":
    main()
