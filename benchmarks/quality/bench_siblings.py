"""How well several router replicas decide beside one: p90 TTFT in simulated fleets.

    python -m benchmarks.quality.bench_siblings [--trace FILE ...] [--requests N] [--engines N ...]
        [--loads SHARE ...] [--routers N ...] [--seeds N] [--sync-ms MS] [--block TOKENS]
        [--no-events] [--jobs N] [--json FILE] [--quick]

Replicas hear of each other's bookings `--sync-ms` late, and of prompts by graded blocks alone. Each
setting is played with one replica and with several, with the same seeds: a seed delays each request
a little and spreads the requests over the replicas. The table tells the geometric means over the
seeds of p90 TTFT over that of one replica. Engines have blocks of `--block` tokens, which divides
the trace's; with 16, as engines have, a long run takes four times as long as with 64. Time is
simulated, so the figures do not depend on the machine.
"""

import argparse
import random
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from math import exp, log, sqrt
from pathlib import Path
from statistics import fmean, stdev
from typing import Final

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
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.fleet.request import FleetRequest, make_requests

REQUESTS: Final = 2_000
QUICK_REQUESTS: Final = 300


class Setting(msgspec.Struct, frozen=True):
    """One fleet under one load, which is relative to where round robin saturates."""

    trace: str
    requests: int
    engines: int
    load: float
    sync_ms: float = 5.0
    block: int = 64
    events: bool = True

    @property
    def name(self) -> str:
        """Return it as one word per part."""
        events = "" if self.events else " no events"
        trace = Path(self.trace).name.partition(".")[0]
        return f"{trace} x{self.engines} {self.load:g}{events} {self.sync_ms:g}ms"


class Played(msgspec.Struct, frozen=True):
    """What came of one run. `hit_rate`: prompt tokens found cached by the engines."""

    setting: Setting
    routers: int
    seed: int
    p90_ms: float
    hit_rate: float


class Ratio(msgspec.Struct, frozen=True):
    """A p90 over that of one replica: geometric mean over the seeds, and its standard error."""

    mean: float
    error: float
    seeds: int


@cache
def _requests(trace: str, requests: int, block: int) -> tuple[FleetRequest, ...]:
    sliced = load(trace, requests)
    return make_requests(sliced.trace, sliced.block_size, min(block, sliced.block_size))


def play(setting: Setting, routers: int, seed: int, saturation: float) -> Played:
    """Play one run; `saturation` is the speedup at which round robin saturates."""
    block = min(setting.block, load(setting.trace, setting.requests).block_size)
    speedup = setting.load * saturation
    options = FleetOptions(
        engines=setting.engines,
        routers=routers,
        engine=EngineOptions(block_size=block, num_gpu_blocks=DYNAMO_CAPACITY_TOKENS // block),
        kv_events=setting.events,
        sync_delay_s=setting.sync_ms / 1000.0,
        seed=seed,
    )
    requests = perturb(_requests(setting.trace, setting.requests, setting.block), seed, speedup)
    policy, rng = parse_policy(OURS, block), random.Random(seed)
    outcomes = SimulatedFleet(options, policy, requests, rng, speedup=speedup).run()
    return Played(
        setting=setting,
        routers=routers,
        seed=seed,
        p90_ms=percentile(sorted(one.ttft_ms or 0.0 for one in outcomes), 0.9),
        hit_rate=sum(one.cached_tokens for one in outcomes)
        / sum(one.prompt_tokens for one in outcomes),
    )


def mean_ratio(ratios: Sequence[float]) -> Ratio:
    """Return the geometric mean of ratios, and the standard error of it."""
    logs = [log(one) for one in ratios]
    mean = exp(fmean(logs))
    return Ratio(mean, mean * stdev(logs) / sqrt(len(logs)) if len(logs) > 1 else 0.0, len(logs))


def ratios_of(runs: Sequence[Played]) -> dict[tuple[Setting, int], list[float]]:
    """Return p90s over that of one replica with the same seed, by setting and replicas."""
    alone = {(one.setting, one.seed): one.p90_ms for one in runs if one.routers == 1}
    found: dict[tuple[Setting, int], list[float]] = {}
    for one in runs:
        if one.routers > 1 and (base := alone.get((one.setting, one.seed))):
            found.setdefault((one.setting, one.routers), []).append(one.p90_ms / base)
    return found


def _shown(ratios: Sequence[float]) -> str:
    ratio = mean_ratio(ratios)
    return f"{ratio.mean:.3f} ±{ratio.error:.3f}"


def make_table(runs: Sequence[Played]) -> Table:
    """Return a row for each setting, and one for all."""
    ratios = ratios_of(runs)
    many = sorted({routers for _, routers in ratios})
    table = Table(
        "setting", "p90 of one", *(f"{one} replicas" for one in many), "hits of one, most"
    )
    for setting in dict.fromkeys(one.setting for one in runs):
        mine = [one for one in runs if one.setting == setting]
        alone = [one for one in mine if one.routers == 1]
        most = [one for one in mine if one.routers == max(many, default=1)]
        table.add_row(
            setting.name,
            f"{fmean(one.p90_ms for one in alone):.0f} ms",
            *(_shown(ratios[setting, one]) for one in many),
            f"{fmean(one.hit_rate for one in alone):.3f}, "
            f"{fmean(one.hit_rate for one in most):.3f}",
        )
    every = [
        [ratio for (_, one), all_ in ratios.items() if one == of for ratio in all_] for of in many
    ]
    table.add_row("all", "", *map(_shown, every), "")
    return table


def _play(job: tuple[Setting, int, int, float]) -> Played:
    return play(*job)


def _saturate(job: tuple[str, int, int]) -> float:
    return saturate(*job, BLIND)


def play_all(
    settings: Sequence[Setting], routers: Sequence[int], seeds: int, jobs: int | None
) -> list[Played]:
    """Play every setting with every number of replicas and every seed."""
    fleets = list(dict.fromkeys((one.trace, one.requests, one.engines) for one in settings))
    with ProcessPoolExecutor(jobs) as pool:
        found: Mapping[tuple[str, int, int], float] = dict(
            zip(fleets, pool.map(_saturate, fleets), strict=True)
        )
        runs = [
            (one, of, seed, found[one.trace, one.requests, one.engines])
            for seed in range(seeds)
            for one in settings
            for of in sorted({1, *routers})
        ]
        return list(pool.map(_play, runs))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", action="append", help="a trace file, or a workload's name")
    parser.add_argument("--requests", type=int, default=REQUESTS)
    parser.add_argument("--engines", type=int, nargs="+", default=[8])
    parser.add_argument("--loads", type=float, nargs="+", default=[0.5, 0.7, 0.9])
    parser.add_argument("--routers", type=int, nargs="+", default=[4, 8])
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--sync-ms", type=float, default=5.0)
    parser.add_argument("--block", type=int, default=64, help="tokens of an engine's block")
    parser.add_argument("--no-events", action="store_true", help="routers know what was sent alone")
    parser.add_argument("--jobs", type=int, help="processes")
    parser.add_argument("--json", type=Path, help="one JSON line a run is appended there")
    parser.add_argument("--quick", action="store_true", help="one load, four replicas, one seed")
    found = parser.parse_args()
    if found.quick:
        found.requests, found.loads, found.routers, found.seeds = QUICK_REQUESTS, [0.7], [4], 1
    settings = [
        Setting(
            trace, found.requests, engines, share, found.sync_ms, found.block, not found.no_events
        )
        for trace in found.trace or list(WORKLOADS)
        for engines in found.engines
        for share in found.loads
    ]
    runs = play_all(settings, found.routers, found.seeds, found.jobs)
    if found.json is not None:
        with found.json.open("ab") as file:
            file.writelines(msgspec.json.encode(one) + b"\n" for one in runs)
    Console(width=TABLE_WIDTH).print(make_table(runs))


if __name__ == "__main__":
    main()
