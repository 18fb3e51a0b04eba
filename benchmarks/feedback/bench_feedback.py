"""How well a picker decides that sees little of answers, or nothing, beside one that sees them.

    python -m benchmarks.feedback.bench_feedback [--trace FILE ...] [--requests N] [--engines N]
        [--loads SHARE ...] [--routers N ...] [--seeds N] [--report-age-ms MS] [--jobs N] [--quick]

Each setting is played with the same seeds by what routers see of answers: all; their end alone;
nothing, so that prefills and ends are inferred; nothing, every booking dropped at once. Loads are
relative to where round robin saturates. Time is simulated, so figures do not depend on the machine.
"""

import argparse
import random
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from statistics import fmean
from typing import Final, get_args

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.measure import TABLE_WIDTH
from benchmarks.quality.grid import BLIND, OURS, load, perturb, saturate
from benchmarks.quality.workloads import WORKLOADS
from kvmesh.core.routing.policy import parse_policy
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.timing import DYNAMO_CAPACITY_TOKENS
from kvmesh_lab.report.outcome import percentile
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.simulator.fleet.options import Feedback, FleetOptions
from kvmesh_lab.simulator.fleet.request import make_requests
from kvmesh_lab.simulator.load import spread

REQUESTS: Final = 2_000
QUICK_REQUESTS: Final = 200
WAYS: Final[tuple[Feedback, ...]] = get_args(Feedback)


class Setting(msgspec.Struct, frozen=True):
    """One fleet under one load; `events` and `lengths`: whether engines and clients tell them."""

    trace: str
    requests: int
    engines: int
    routers: int
    load: float
    events: bool
    lengths: bool
    report_age_s: float

    @property
    def name(self) -> str:
        """Return it as one word per part."""
        events = "" if self.events else " no events"
        lengths = "" if self.lengths else " no lengths"
        return f"{self.trace} r{self.routers} {self.load:g}{events}{lengths}"


class Played(msgspec.Struct, frozen=True):
    """What came of one run: prompt tokens found cached, times to the first token in ms, and how
    unevenly engines worked: (most - least) / mean.
    """

    hit_rate: float
    p50_ms: float
    p90_ms: float
    spread: float


def play(setting: Setting, way: Feedback, seed: int, saturation: float) -> Played:
    """Play one run; `saturation` is the speedup at which round robin saturates."""
    sliced, speedup = load(setting.trace, setting.requests), setting.load * saturation
    block = min(64, sliced.block_size)
    options = FleetOptions(
        engines=setting.engines,
        routers=setting.routers,
        engine=EngineOptions(block_size=block, num_gpu_blocks=DYNAMO_CAPACITY_TOKENS // block),
        kv_events=setting.events,
        seed=seed,
        feedback=way,
        report_age_s=setting.report_age_s,
        tells_lengths=setting.lengths,
    )
    requests = perturb(make_requests(sliced.trace, sliced.block_size, block), seed, speedup)
    policy, rng = parse_policy(OURS, block), random.Random(seed)
    fleet = SimulatedFleet(options, policy, requests, rng, speedup=speedup)
    outcomes = fleet.run()
    ttfts = sorted(one.ttft_ms or 0.0 for one in outcomes)
    cached = sum(one.cached_tokens for one in outcomes)
    return Played(
        hit_rate=cached / sum(one.prompt_tokens for one in outcomes),
        p50_ms=percentile(ttfts, 0.5),
        p90_ms=percentile(ttfts, 0.9),
        spread=spread(fleet.busy_s),
    )


def table_of(rows: Sequence[tuple[Setting, list[list[Played]]]]) -> Table:
    """Return a row a setting: by way, hit rate, p50 and p90 of the first token, spread."""
    table = Table("setting", *WAYS, title="hit rate / p50 ms / p90 ms / spread of work")
    for setting, ways in rows:
        cells = []
        for runs in ways:
            means = [
                fmean(values) for values in zip(*map(msgspec.structs.astuple, runs), strict=True)
            ]
            cells.append(f"{means[0]:.3f} {means[1]:.0f} {means[2]:.0f} {means[3]:.2f}")
        table.add_row(setting.name, *cells)
    return table


def settings_of(args: argparse.Namespace) -> list[Setting]:
    """Return what to play."""
    age_s = args.report_age_ms / 1000.0
    return [
        Setting(trace, args.requests, args.engines, routers, share, events, lengths, age_s)
        for trace in args.trace or WORKLOADS
        for routers in args.routers
        for share in args.loads
        for events, lengths in ((True, True), (True, False), (False, True))
    ]


def main() -> None:
    """Play all settings and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--trace", action="append")
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--engines", type=int, default=8)
    parser.add_argument("--routers", type=int, nargs="+", default=[2])
    parser.add_argument("--loads", type=float, nargs="+", default=[0.5, 0.8, 1.0])
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--report-age-ms", type=float, default=1000.0)
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--quick", action="store_true")
    args = parser.parse_args()
    if args.quick:
        args.requests, args.seeds, args.loads = QUICK_REQUESTS, 1, [0.8]
    settings = settings_of(args)
    with ProcessPoolExecutor(args.jobs) as pool:
        keys = [(one.trace, one.requests, one.engines, BLIND) for one in settings]
        unique = list(dict.fromkeys(keys))
        known = dict(zip(unique, pool.map(saturate, *zip(*unique, strict=True)), strict=True))
        futures = [
            [
                [pool.submit(play, one, way, seed, known[key]) for seed in range(args.seeds)]
                for way in WAYS
            ]
            for one, key in zip(settings, keys, strict=True)
        ]
        played = [[[run.result() for run in way] for way in ways] for ways in futures]
    Console(width=TABLE_WIDTH).print(table_of(list(zip(settings, played, strict=True))))


if __name__ == "__main__":
    main()
