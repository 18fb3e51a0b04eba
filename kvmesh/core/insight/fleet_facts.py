"""What a router has learned of its fleet, as a simulator takes it, and when that is too little."""

from statistics import fmean, median
from typing import Final

from kvmesh.bounds import counted
from kvmesh.core.cost.formulas import COSTS
from kvmesh.core.insight.weight_search import SimulatedFleetFacts
from kvmesh.core.routing.disaggregation import PREFILL
from kvmesh.core.routing.scheduler import Scheduler

LEAST_WORKERS: Final = 2


def obstacle(scheduler: Scheduler, now: float) -> str:
    """Return in words why nothing can be tuned; "" when it can. O(workers)."""
    if scheduler.options.mode != "kv":
        return f"mode is {scheduler.options.mode}: only kv has weights"
    cost = scheduler.policy.cost
    if not cost.weights.specs:
        return f"formula {cost.name} has no weights"
    return unplayable(scheduler, cost.name, now)


def unplayable(scheduler: Scheduler, cost: str, now: float) -> str:
    """Return in words why no simulator can play this fleet by `cost`; "" when it can."""
    if cost not in COSTS:
        return f"formula {cost} is in a file, which is not simulated"
    infos = [scheduler.workers.info(one) for one in scheduler.workers.everyone(now)]
    if len(infos) < LEAST_WORKERS:
        return f"{counted(len(infos), 'worker')}: nothing to choose"
    if any(PREFILL in info.labels for info in infos):
        return "prefill and decode on two workers are not simulated"
    if len({info.models for info in infos}) > 1:
        return "workers serve different models, which is not simulated"
    return ""


def fleet_facts(scheduler: Scheduler, replicas: int, now: float) -> SimulatedFleetFacts:
    """Return the fleet as learned: the workers that may be given requests. O(workers)."""
    speeds, workers = scheduler.speeds, scheduler.workers.everyone(now)
    token_ms = speeds.fleet_ms_per_token
    capacities = [size for one in workers if (size := scheduler.workers.capacity_blocks(one))]
    outputs = [ms for one in workers if (ms := speeds.ms_per_output_token(one))]
    return SimulatedFleetFacts(
        speeds=tuple(round(token_ms / speeds.ms_per_token(one), 3) for one in workers),
        block_size=scheduler.options.block_size,
        prefill_fixed_ms=token_ms * speeds.steps.step_tokens,
        prefill_token_ms=token_ms,
        output_token_ms=fmean(outputs) if outputs else 0.0,
        blocks=int(median(capacities)) if capacities else 0,
        replicas=replicas,
    )
