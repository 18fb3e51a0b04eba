"""Search a formula's weights on the first part of a trace, to be judged on the rest."""

from typing import Final

import msgspec
from rich.console import Console

from kvmesh.errors import ConfigError
from kvmesh_lab.replay.plan import TraceSlice
from kvmesh_lab.report.statistics import summarize
from kvmesh_lab.simulator.bars import Bars
from kvmesh_lab.simulator.comparison import geometric_mean, measure
from kvmesh_lab.simulator.load import spread
from kvmesh_lab.simulator.options import SimulateOptions
from kvmesh_lab.simulator.slices import Simulator, find_settings
from kvmesh_lab.simulator.tuning import Search, Weighting, tuned_cost, tuned_weights
from kvmesh_lab.traces.trace import slice_requests

TPOT_EXPONENT: Final = 0.25
"""How much time per token counts beside the time to the first."""


def split_slice(trace: TraceSlice, train_share: float) -> tuple[TraceSlice, TraceSlice]:
    """Return the slice to train on and the one held out, each from time 0.

    Raises `ConfigError` when either would be empty.
    """
    count = round(train_share * len(trace.requests))
    if not 0 < count < len(trace.requests):
        raise ConfigError(
            f"{trace.source}: {len(trace.requests)} requests cannot be split at "
            f"--train-share {train_share:g}"
        )
    return (
        msgspec.structs.replace(trace, requests=trace.requests[:count]),
        msgspec.structs.replace(
            trace,
            requests=tuple(slice_requests(trace.requests, count, None, trace.source)),
        ),
    )


def tune_policy(
    options: SimulateOptions, cost: str, trace: TraceSlice, bars: Bars, console: Console
) -> str:
    """Return the policy `kv:COST:weight=number:…` that did best on `trace`; print what was tried.

    Best is the least geometric mean over all loads of p90 TTFT x p90 TPOT ^ 1/4.
    """
    simulator = Simulator(options, trace)
    settings = find_settings(options, simulator, bars)
    workers = len(trace.requests) * len(settings)
    watch = bars.watch(f"tuning {cost}", workers)

    def score(weights: Weighting) -> float:
        products: list[float] = []
        for number, setting in enumerate(settings):
            before = number * len(trace.requests)
            fleet = simulator.play(
                name_policy(cost, weights),
                setting,
                lambda done: watch(before + done),  # noqa: B023  called within
            )
            summary = summarize(fleet.outcomes, options.slo())
            busy = spread(fleet.busy_s)
            cell = measure(setting.name, cost, summary, fleet.outcomes, busy)
            products.append(
                max(cell.ttft_ms_p90, 1.0) * max(cell.tpot_ms_p90, 1.0) ** TPOT_EXPONENT
            )
        return geometric_mean(products)

    search = Search(
        tuned_weights(cost, simulator.formulas),
        score,
        tuned_cost(cost, simulator.formulas).weights.specs,
    )
    found = search.run()
    first = search.trials[0]
    console.print(
        f"tuned      {cost} on {len(trace.requests):,} requests, {len(search.trials)} trials: "
        f"{name_policy(cost, found.weights)} scores {found.score / first.score:.3f} of "
        f"{name_policy(cost, first.weights)}; below, both on the rest",
        soft_wrap=True,
        highlight=False,
    )
    return name_policy(cost, found.weights)


def name_policy(cost: str, weights: Weighting) -> str:
    """Return the policy as --policy takes it."""
    return ":".join(["kv", cost, *(f"{name}={value:g}" for name, value in weights.items())])
