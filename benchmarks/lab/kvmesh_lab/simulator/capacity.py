"""The largest load at which requests still keep their SLO: a search over loads."""

from collections.abc import Callable

import msgspec

from kvmesh_lab.replay.plan import program_facts
from kvmesh_lab.report.statistics import ReplayRun, summarize
from kvmesh_lab.simulator.bars import Bars
from kvmesh_lab.simulator.load import find_saturation
from kvmesh_lab.simulator.options import SimulateOptions
from kvmesh_lab.simulator.slices import Setting, Simulator, Variant, is_closed


class Capacity(msgspec.Struct, frozen=True):
    """What one policy bears: requests a second, or of a closed loop live sessions an engine, and
    the run there. `load` 0: not even the least load tried.
    """

    policy: str
    load: float
    run: ReplayRun | None


def find_capacity(
    options: SimulateOptions, simulator: Simulator, variant: Variant, bars: Bars
) -> Capacity:
    """Return the largest load at which `capacity_share` of all requests keep the SLO.

    A request that got no answer does not keep it. The share is taken to fall with the load; a load
    that all keep is doubled ten times at most, and a closed loop has no more than all programs.
    """
    watch = bars.watch(f"capacity {variant.name}", len(simulator.trace.requests))
    programs = program_facts(simulator.trace)
    allowed = 1.0 - options.capacity_share + 1e-9
    kept: dict[float, ReplayRun] = {}

    def missed(load: float, setting: Setting) -> float:
        fleet = simulator.play(variant.policy, setting, watch, variant.fleet)
        workers = [engine.worker for engine in fleet.engines]
        summary = summarize(fleet.outcomes, options.slo(), workers, programs)
        share = 1.0 - summary.goodput_share
        if share <= allowed:
            kept[load] = ReplayRun(variant.name, summary, tuple(fleet.outcomes))
        return share

    if is_closed(options, simulator.trace):
        engines = simulator.fleet.engines
        count = largest_count(
            lambda live: missed(live, Setting("", live=live)) <= allowed,
            engines,
            max(1, simulator.trace.programs),
        )
        return Capacity(variant.name, count / engines, kept.get(count))
    recorded = simulator.recorded_rate
    speedup = find_saturation(lambda speedup: missed(speedup, Setting("", speedup)), 1.0, allowed)
    run = kept.get(speedup)
    return Capacity(variant.name, speedup * recorded if run else 0.0, run)


def largest_count(keeps: Callable[[int], bool], start: int, most: int) -> int:
    """Return the largest number from 1 to `most` that keeps, 0 when 1 does not."""
    low, high = 0, max(1, min(start, most))
    while keeps(high):
        low = high
        if high == most:
            return most
        high = min(2 * high, most)
    while high - low > 1:
        middle = (low + high) // 2
        if keeps(middle):
            low = middle
        else:
            high = middle
    return low
