"""Three sites, even and skewed load: who serves a request, by rule."""

import argparse
from collections.abc import Sequence
from typing import Final

from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.timing import PROFILES
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.sites.comparison import RULES, site_figures
from kvmesh_lab.simulator.sites.workload import Load, make_conversations
from kvmesh_lab.simulator.sites.world import Rule, World, WorldOptions

RTT_MS: Final = ((0.0, 30.0, 80.0), (30.0, 0.0, 150.0), (80.0, 150.0, 0.0))
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
    found = site_figures(world, WARM_S)
    share = world.bytes["digest"] / max(1, world.bytes["feed"])
    assert found.ttft is not None
    return (
        f"{found.rule:10} n {found.turns:5} p50 {found.ttft.p50:7.0f} p90 {found.ttft.p90:8.0f} "
        f"mean {found.ttft.mean:7.0f} overseas {found.away:6.1%} hit {found.hit_rate:5.1%} "
        f"digest/feed {share:5.1%} {dict(world.whys)}"
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
