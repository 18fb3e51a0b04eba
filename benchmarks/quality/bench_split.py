"""Prefill and decode engines: the choice by predicted time against fixed shares of split requests.

    python -m benchmarks.quality.bench_split [--requests N] [--seeds N] [--jobs N]

Four engines in virtual time, the first one or two prefill for the others, which do whole requests,
too. A row is one load at one rate: the share of requests within the SLO (first token, and mean time
per further token) by the best of the fixed shares 0, 0.2 … 1 of the prompts above the threshold, by
the worst, and by what the router decides. Means over the seeds; minutes of processor time.
"""

import argparse
import math
import random
import sys
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from statistics import fmean
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.measure import TABLE_WIDTH
from kvmesh.core.routing.decision import RouterOptions
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.timing import DYNAMO_CAPACITY_TOKENS, PROFILES
from kvmesh_lab.report.statistics import Slo, summarize
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.fleet.request import make_requests
from kvmesh_lab.traces.trace import TraceRequest

BLOCK: Final = 64
ENGINES: Final = 4
CHUNK: Final = 2048
SHARES: Final = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
RATES: Final = (0.8, 1.2)
"""Relative to a load's own, at which the best fixed share is about to fail."""


class Load(msgspec.Struct, frozen=True):
    """Prompts and answers of log-normal lengths with these medians, at `rate` requests a second on
    four engines of `profile`. `reuse` of the prompts begin as one of 20 documents; in a `burst` all
    comes so many times as fast for 10 s, then as slowly.
    """

    name: str
    prompt: int
    output: int
    rate: float
    profile: str = "preble-70b"
    slo: Slo = Slo(ttft_ms=2000.0, itl_ms=60.0)
    transfer_ms_per_token: float = 0.005
    reuse: float = 0.0
    burst: float = 1.0


FAST: Final = Slo(ttft_ms=1000.0, itl_ms=25.0)

LOADS: Final = (
    Load("long prompts", 6000, 60, 3.0),
    Load("balanced", 3000, 200, 5.0),
    Load("long answers", 800, 500, 16.0),
    Load("balanced, bursts", 3000, 200, 4.5, burst=1.6),
    Load("balanced, half reused", 3000, 200, 7.0, reuse=0.5),
    Load("balanced, slow transfer", 3000, 200, 5.0, transfer_ms_per_token=0.1),
    Load("long prompts, fast engines", 6000, 60, 9.0, "dynamo", FAST),
    Load("balanced, fast engines", 3000, 200, 16.0, "dynamo", FAST),
)


class Row(msgspec.Struct, frozen=True):
    """Shares of requests within the SLO, of one load at one rate."""

    load: str
    rate: float
    prefillers: int
    fixed: tuple[float, ...]
    chosen: float
    split: float

    @property
    def best(self) -> float:
        """Return what the best fixed share gives."""
        return max(self.fixed)


def trace(load: Load, rate: float, count: int, seed: int) -> list[TraceRequest]:
    """Return `count` requests of that load."""
    rng, now_s = random.Random(seed), 0.0
    found: list[TraceRequest] = []
    for index in range(count):
        speed = load.burst if int(now_s // 10) % 2 else 1.0 / load.burst
        now_s += rng.expovariate(rate * speed)
        tokens = min(30_000, max(BLOCK, int(rng.lognormvariate(math.log(load.prompt), 0.8))))
        output = min(2_000, max(2, int(rng.lognormvariate(math.log(load.output), 0.6))))
        document = rng.randrange(20) if rng.random() < load.reuse else None
        shared = range(int(0.7 * tokens) // BLOCK)
        ids = () if document is None else tuple(document * 1_000 + block for block in shared)
        found.append(TraceRequest(index, now_s * 1000.0, tokens, output, ids))
    return found


def play(
    load: Load, requests: list[TraceRequest], prefillers: int, share: float | None
) -> tuple[float, float]:
    """Return the share of requests within the SLO, and of those that were split."""
    engine = EngineOptions(
        block_size=BLOCK,
        num_gpu_blocks=DYNAMO_CAPACITY_TOKENS // BLOCK,
        timing=PROFILES[load.profile],
        max_num_batched_tokens=CHUNK,
    )
    options = FleetOptions(
        engines=ENGINES,
        engine=engine,
        prefillers=prefillers,
        split_share=share,
        transfer_ms_per_token=load.transfer_ms_per_token,
    )
    policy = RouterOptions(block_size=BLOCK)
    fleet = SimulatedFleet(options, policy, make_requests(requests, BLOCK, BLOCK), random.Random(1))
    good = summarize(fleet.run(), load.slo).goodput_share
    splitting = fleet.routers[0].splitting
    return good, 0.0 if splitting is None else splitting.split.get("", 0) / len(requests)


def measure(load: Load, factor: float, prefillers: int, count: int, seeds: int) -> Row:
    """Return one row."""
    rate = load.rate * factor
    traces = [trace(load, rate, count, seed) for seed in range(1, seeds + 1)]
    fixed = tuple(
        fmean(play(load, one, prefillers, share)[0] for one in traces) for share in SHARES
    )
    chosen = [play(load, one, prefillers, None) for one in traces]
    return Row(
        load.name,
        rate,
        prefillers,
        fixed,
        fmean(good for good, _ in chosen),
        fmean(split for _, split in chosen),
    )


def rows(count: int, seeds: int, jobs: int) -> Iterator[Row]:
    """Yield a row for each load, rate and number of prefill engines."""
    with ProcessPoolExecutor(jobs) as pool:
        futures = [
            pool.submit(measure, load, factor, prefillers, count, seeds)
            for load in LOADS
            for prefillers in (1, 2)
            for factor in RATES
        ]
        for future in futures:
            yield future.result()


def main() -> None:
    """Print the table, and the least and mean of chosen over best fixed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--requests", type=int, default=500)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--jobs", type=int, default=1)
    asked = parser.parse_args()
    table = Table("load", "requests/s", "prefill engines", "best fixed", "at", "worst", "chosen")
    table.add_column("split")
    table.add_column("chosen / best")
    found: list[Row] = []
    for row in rows(asked.requests, asked.seeds, asked.jobs):
        found.append(row)
        print(msgspec.json.encode(row).decode(), file=sys.stderr, flush=True)
        at = SHARES[row.fixed.index(row.best)]
        table.add_row(
            *(row.load, f"{row.rate:.1f}", f"{row.prefillers} of {ENGINES}", f"{row.best:.3f}"),
            *(f"{at:.1f}", f"{min(row.fixed):.3f}", f"{row.chosen:.3f}", f"{row.split:.2f}"),
            f"{row.chosen / max(row.best, 1e-9):.3f}",
        )
    console = Console(width=TABLE_WIDTH)
    console.print(table)
    ratios = [row.chosen / max(row.best, 1e-9) for row in found]
    console.print(f"chosen / best fixed: least {min(ratios):.3f}, mean {fmean(ratios):.3f}")


if __name__ == "__main__":
    main()
