"""The tuner in virtual time: three phases of another character each, default, best and tuned.

    python -m benchmarks.quality.bench_tuner --cost prefill-decode --load 0.8

The best fixed weights of a phase are searched on the very requests that are played: what no tuner
can know. Each phase's are played over all, and the best of all counts. `tuned` is told twice: over
the whole phase, with what it takes to notice and to try, and over its end. Times are shorter than
a router's: a load is observed for 30 s, weights are shadowed for 10 s, 30 requests end a stage.
"""

import argparse
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from random import Random

import msgspec

from benchmarks.quality.phases import BLOCK, PHASES, join
from benchmarks.quality.tuned_fleet import TunedFleet
from kvmesh.core.insight.performance import score_of
from kvmesh.core.insight.tuner import TunerOptions
from kvmesh.core.insight.tuning_loop import LoopOptions
from kvmesh.core.insight.weight_search import Weighting, name_policy
from kvmesh.core.routing.policy import parse_policy
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.report.outcome import RequestOutcome
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.fleet.request import FleetRequest, make_requests
from kvmesh_lab.simulator.proposer import p90_times
from kvmesh_lab.simulator.tuning import Search, tuned_weights
from kvmesh_lab.traces.trace import TraceRequest

ENGINES = 4
SATURATED = {"prefill-heavy": 27.4, "decode-heavy": 94.0, "hot-prefix": 107.0}
"""Requests a second at which round robin saturates, as 1,500 of them show (find_saturation)."""

TRAINED = 2000
STEADY_FROM = 0.65
"""Behind this part of a phase the tuner has ended its trial."""


class Plan(msgspec.Struct, frozen=True):
    """Requests of each phase, at so many a second."""

    cost: str
    load: float
    seconds: float
    seed: int
    rates: dict[str, float] = {}

    def fleet(self) -> FleetOptions:
        return FleetOptions(
            engines=ENGINES, engine=EngineOptions(block_size=BLOCK, num_gpu_blocks=2048)
        )


class Part(msgspec.Struct, frozen=True):
    """One phase of a run: scores of all its requests and of its last part, p90 times of that."""

    whole: float
    steady: float
    ttft_ms: float
    tpot_ms: float


def play(
    plan: Plan, policy: str, requests: Sequence[FleetRequest], speedup: float = 1.0
) -> list[RequestOutcome]:
    fleet = SimulatedFleet(
        plan.fleet(), parse_policy(policy, BLOCK), requests, Random(0), speedup=speedup
    )
    return fleet.run()


def phase_requests(plan: Plan, phase: str, seed: int, most: int = 1 << 30) -> list[TraceRequest]:
    rate = plan.rates[phase]
    return PHASES[phase](min(most, round(rate * plan.seconds)), rate, seed)


def whole_trace(plan: Plan) -> tuple[FleetRequest, ...]:
    parts = [phase_requests(plan, phase, plan.seed) for phase in PHASES]
    return make_requests(join(parts), BLOCK, BLOCK)


def parts_of(plan: Plan, outcomes: Sequence[RequestOutcome]) -> dict[str, Part]:
    begin, found = 0, {}
    for phase in PHASES:
        count = round(plan.rates[phase] * plan.seconds)
        end = begin + count
        whole = [one for one in outcomes if begin <= one.index < end]
        steady = [one for one in whole if one.index >= begin + STEADY_FROM * count]
        times = p90_times(steady)
        found[phase] = Part(score_of(*p90_times(whole)), score_of(*times), *times)
        begin = end
    return found


def search(plan: Plan, phase: str, seed: int) -> Weighting:
    """Return the weights that do best on a trace of one phase, behind what warms the caches."""
    requests = make_requests(phase_requests(plan, phase, seed, TRAINED), BLOCK, BLOCK)

    def score(weights: Weighting) -> float:
        outcomes = play(plan, name_policy(plan.cost, weights), requests)
        return score_of(*p90_times([one for one in outcomes if one.index > 0.1 * len(requests)]))

    return Search(tuned_weights(plan.cost), score).run(3).weights


def fixed(plan: Plan, policy: str) -> dict[str, Part]:
    return parts_of(plan, play(plan, policy, whole_trace(plan)))


def tuned(plan: Plan) -> tuple[dict[str, Part], list[str]]:
    said: list[str] = []
    options = LoopOptions(
        tuner=TunerOptions(apply=True, observe_s=30.0, shadow_s=10.0),
        trial_requests=30,
        search_requests=1500,
    )
    fleet = TunedFleet(plan.fleet(), f"kv:{plan.cost}", whole_trace(plan), options, said.append)
    return parts_of(plan, fleet.run()), said


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cost", default="predicted-time")
    parser.add_argument("--load", type=float, default=0.8, help="of round robin's saturation")
    parser.add_argument("--seconds", type=float, default=200.0, help="of each phase, virtual")
    parser.add_argument("--seed", type=int, default=7)
    parser.add_argument("--workers", type=int, default=2)
    found = parser.parse_args()
    began = time.monotonic()
    plan = Plan(found.cost, found.load, found.seconds, found.seed)
    with ProcessPoolExecutor(found.workers) as pool:
        rates = {phase: round(found.load * limit, 1) for phase, limit in SATURATED.items()}
        plan = msgspec.structs.replace(plan, rates=rates)
        tuning = pool.submit(tuned, plan)
        searches = {
            (phase, seed): pool.submit(search, plan, phase, seed)
            for phase in PHASES
            for seed in (plan.seed,)
        }
        default = pool.submit(fixed, plan, f"kv:{plan.cost}")
        policies = {
            key: name_policy(plan.cost, future.result()) for key, future in searches.items()
        }
        runs = {policy: pool.submit(fixed, plan, policy) for policy in sorted({*policies.values()})}
        parts, said = tuning.result()
        plain = default.result()
        played = {policy: future.result() for policy, future in runs.items()}
        played[f"kv:{plan.cost}"] = plain
    print("\n".join(said))
    print(f"\n{plan.cost}, load {plan.load:g}, {plan.seconds:g} s a phase, seed {plan.seed}")
    print(
        "| phase | req/s | default | best fixed | tuned | tuned/best | tuned/default |"
        " whole phase: tuned/default | best weights |"
    )
    print("|---|---|---|---|---|---|---|---|---|")
    for phase in PHASES:
        best = min(played, key=lambda policy: played[policy][phase].steady)
        mine, known, top = parts[phase], plain[phase], played[best][phase]
        shown = [f"{one.ttft_ms:.0f} / {one.tpot_ms:.1f}" for one in (known, top, mine)]
        print(
            f"| {phase} | {plan.rates[phase]:g} | {' | '.join(shown)}"
            f" | {mine.steady / top.steady:.3f} | {mine.steady / known.steady:.3f}"
            f" | {mine.whole / known.whole:.3f} | `{best.removeprefix('kv:' + plan.cost)}` |"
        )
    print(
        f"p90 TTFT / p90 time per token, ms, of the last {1 - STEADY_FROM:.0%} of each phase;"
        f" ratios of p90 TTFT x p90 TPOT^1/4. {time.monotonic() - began:.0f} s"
    )


if __name__ == "__main__":
    main()
