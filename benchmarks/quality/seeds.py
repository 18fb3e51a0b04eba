"""Several runs of each setting, perturbed alike for every policy, and their means.

The slowest tenth of one run moves by a tenth with any change: one run tells little of a setting.
"""

from collections.abc import Mapping, Sequence
from math import sqrt
from statistics import fmean, stdev

import msgspec
from rich.box import SIMPLE_HEAD
from rich.table import Table

from benchmarks.quality.grid import OURS, RIVALS, Played, Setting
from kvmesh_lab.simulator.comparison import Cell, ratio

Runs = Mapping[tuple[Setting, str], Sequence[Played]]
"""Runs by setting (of seed 0) and policy: the same seeds in the same order for every policy."""


def seeded(settings: Sequence[Setting], seeds: int) -> list[Setting]:
    """Return each setting with each seed; all of one seed first, so that a part is of use."""
    return [msgspec.structs.replace(one, seed=seed) for seed in range(seeds) for one in settings]


def complete_runs(
    settings: Sequence[Setting],
    policies: Sequence[str],
    seeds: int,
    played: Mapping[tuple[Setting, str], Played],
) -> dict[tuple[Setting, str], list[Played]]:
    """Return the runs of those seeds that every policy has played; a setting without one is left
    out.
    """
    found: dict[tuple[Setting, str], list[Played]] = {}
    for setting in settings:
        for one in seeded([setting], seeds):
            if all((one, name) in played for name in policies):
                for name in policies:
                    found.setdefault((setting, name), []).append(played[one, name])
    return found


def mean_of(runs: Sequence[Played]) -> Played:
    """Return the arithmetic mean of every figure, under the setting of seed 0."""
    cells = [one.cell for one in runs]
    setting = msgspec.structs.replace(runs[0].setting, seed=0)
    figures = {
        name: fmean(getattr(one, name) for one in cells)
        for name in Cell.__struct_fields__
        if name not in ("setting", "policy")
    }
    return Played(
        setting=setting,
        cell=Cell(setting=setting.name, policy=cells[0].policy, **figures),
        alone_p90_ms=fmean(one.alone_p90_ms for one in runs),
        infinite_hit_rate=fmean(one.infinite_hit_rate for one in runs),
        waitless_p90_ms=fmean(one.waitless_p90_ms for one in runs),
        least_share=fmean(one.least_share for one in runs),
    )


def seeds_table(runs: Runs) -> Table:
    """Return what single runs tell of p90 TTFT over that rival's whose mean is the best.

    ± is the standard error of the mean of the runs' ratios.
    """
    table = Table(
        title="p90 TTFT / the best rival's, run by run", title_justify="left", box=SIMPLE_HEAD
    )
    table.add_column("setting", no_wrap=True)
    for name in ("best rival", "runs", "means", "±", "least", "largest"):
        table.add_column(name, justify="right")
    for setting in dict.fromkeys(one for one, _ in runs):
        rivals = {name: [_p90(one) for one in runs[setting, name]] for name in RIVALS}
        best = min(rivals, key=lambda name: fmean(rivals[name]))
        ours = [_p90(one) for one in runs[setting, OURS]]
        ratios = [ratio(a, b) for a, b in zip(ours, rivals[best], strict=True)]
        error = f"{stdev(ratios) / sqrt(len(ratios)):.2f}" if len(ratios) > 1 else ""
        table.add_row(
            setting.name,
            best.removeprefix("kv:"),
            str(len(ratios)),
            f"{ratio(fmean(ours), fmean(rivals[best])):.2f}",
            error,
            f"{min(ratios):.2f}",
            f"{max(ratios):.2f}",
        )
    return table


def _p90(one: Played) -> float:
    return one.cell.ttft_ms_p90
