"""Three sites, even and skewed load: who serves a request, by rule."""

import argparse
from collections.abc import Sequence
from statistics import median
from typing import Final

from benchmarks.sites.workload import Load, make_conversations
from benchmarks.sites.world import Played, Rule, World, WorldOptions
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.timing import PROFILES
from kvmesh_lab.report.outcome import percentile
from kvmesh_lab.simulator.fleet.options import FleetOptions

RTT_MS: Final = ((0.0, 30.0, 80.0), (30.0, 0.0, 150.0), (80.0, 150.0, 0.0))
RULES: Final[tuple[Rule, ...]] = ("nearest", "skywalker", "kvmesh")
LOADS: Final = {"at ease": (1.0, 1.0, 1.0), "skewed": (4.5, 0.5, 0.5), "crowded": (6.0, 1.0, 1.0)}
"""Conversations a second that begin near each site: of two engines, which at 3 are just full."""

WARM_S: Final = 30.0


def play(rates: Sequence[float], rule: Rule, seed: int, seconds: float) -> World:
    engine = EngineOptions(timing=PROFILES["preble-70b"], num_gpu_blocks=12_000, max_num_seqs=64)
    fleet = FleetOptions(engines=2, engine=engine, seed=seed)
    world = World(WorldOptions(fleet, RTT_MS), rule, seed)
    world.run(make_conversations(Load(rates, seconds), seed))
    return world


def row(world: World) -> str:
    kept: list[Played] = [one for one in world.played if one.sent_s >= WARM_S]
    ttfts = sorted(one.ttft_ms for one in kept)
    away = sum(one.home != one.site for one in kept) / len(kept)
    tokens = sum(one.prompt_tokens for one in kept)
    hit = sum(one.cached_tokens for one in kept) / tokens
    share = world.bytes["digest"] / max(1, world.bytes["feed"])
    p90 = percentile(ttfts, 0.9)
    whys = dict(world.whys)
    return (
        f"{world.rule:10} n {len(kept):5} p50 {median(ttfts):7.0f} p90 {p90:8.0f} mean "
        f"{sum(ttfts) / len(ttfts):7.0f} overseas {away:6.1%} hit {hit:5.1%} digest/feed "
        f"{share:5.1%} {whys}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--load", choices=[*LOADS, "all"], default="all")
    parser.add_argument("--seconds", type=float, default=100.0)
    parser.add_argument("--seeds", type=int, default=1)
    parser.add_argument("--rates", type=float, nargs=3)
    parser.add_argument("--rules", nargs="+", choices=RULES, default=RULES)
    options = parser.parse_args()
    loads = {"given": options.rates} if options.rates else LOADS
    for name, rates in loads.items():
        if options.load in (name, "all"):
            for seed in range(options.seeds):
                print(name, rates, "seed", seed)
                for rule in options.rules:
                    print("  ", row(play(rates, rule, seed, options.seconds)), flush=True)


if __name__ == "__main__":
    main()
