"""Yesterday's plan beside what a later log shows."""

from collections.abc import Callable
from statistics import fmean

import msgspec

from kvmesh.errors import ConfigError
from kvmesh_lab.plan.judge import Judge, Load, quantile
from kvmesh_lab.plan.kinds import Kind, Mix
from kvmesh_lab.plan.planning import Basis, new_judge
from kvmesh_lab.plan.record import Check, FleetPlan, Foretold, mix_of, named
from kvmesh_lab.plan.targets import FIGURES, USUAL_SHARE, Figure, Target
from kvmesh_lab.plan.workload import Workload
from kvmesh_lab.simulator.fleet.options import FleetOptions


class Compared(msgspec.Struct, frozen=True):
    """One figure: what was `foretold` for as many engines, None: that fleet was not in the plan;
    what the simulator makes of the day's own requests, and what happened; ms.
    """

    target: str
    foretold: Foretold | None
    simulated_ms: float
    happened_ms: float


def check_plan(
    plan: FleetPlan, workload: Workload, day: str, watch: Callable[[Mix], None]
) -> tuple[Check, list[Compared]]:
    """Play the log of a later day on the engines of the plan, as many as ran, and compare.

    So a load that grew is no error of the prediction; `Check.load` tells of it. Raises
    `ConfigError` for what is no log, and where it is not known which kinds ran.
    """
    if workload.fleet is None:
        raise ConfigError(
            f"{workload.trace.source}: tells nothing of how its requests went; --check needs a log "
            "of GET /admin/trace"
        )
    engines = len(workload.fleet.fleet.speeds)
    mix = mix_of(plan, engines)
    targets = [_target(plan, figure) for figure in FIGURES]
    judge = _judge(plan, workload, targets)
    judge.watch = watch
    runs = judge.runs(mix)
    foretold = {
        one.target: one
        for row in plan.rows
        if row.engines == named(plan.kinds, mix)
        for one in row.foretold
    }
    ratios: dict[str, float] = {}
    rows: list[Compared] = []
    for place, target in enumerate(targets):
        simulated = fmean(run.values[place] for run in runs)
        happened = quantile(sorted(workload.measured()[target.figure]), target.share)
        if happened > 0.0 and 0.0 < simulated < float("inf"):
            ratios[target.figure] = happened / simulated
            rows.append(Compared(target.name, foretold.get(target.name), simulated, happened))
    load = workload.tokens_per_s / max(plan.tokens_per_s, 0.001)
    return Check(day, engines, round(load, 4), ratios), rows


def _target(plan: FleetPlan, figure: Figure) -> Target:
    """Return the plan's target for a figure, else its usual percentile."""
    found = (one for one in plan.targets if one.figure == figure)
    return next(found, Target(figure, float("inf"), USUAL_SHARE))


def _judge(plan: FleetPlan, workload: Workload, targets: list[Target]) -> Judge:
    """Return a judge of the plan's fleets, in blocks of the log."""
    size = workload.trace.block_size
    kinds = tuple(_resized(kind, size) for kind in plan.kinds)
    fleet = FleetOptions(
        engine=kinds[0].engine,
        routers=plan.routers,
        kv_events=plan.kv_events,
        max_backlog_ms=plan.max_backlog_ms,
    )
    return new_judge(workload, Basis(fleet, kinds, plan.policy), targets, Load())


def _resized(kind: Kind, size: int) -> Kind:
    engine = kind.engine
    blocks = max(2, engine.num_gpu_blocks * engine.block_size // size)
    engine = msgspec.structs.replace(engine, block_size=size, num_gpu_blocks=blocks)
    return msgspec.structs.replace(kind, engine=engine)
