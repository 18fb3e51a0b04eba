"""What a comparison of routing policies found, as tables."""

from collections.abc import Callable, Mapping, Sequence
from math import sqrt
from operator import attrgetter
from statistics import fmean, stdev
from typing import Final

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from benchmarks.quality.grid import BLIND, OURS, RIVALS, SIMPLE, Played, Setting
from benchmarks.quality.peer import Replayed
from benchmarks.quality.seeds import Runs
from kvmesh_lab.simulator.comparison import Cell, geometric_mean, ratio

MUCH_LOWER = 0.85
"""The goal against the best rival of each setting."""

WORSE = 1.10

Cells = Mapping[str, Cell]


def print_tables(played: Sequence[Played], console: Console) -> None:
    """Print each setting, then all together, then replicas. Every setting has every policy."""
    cells: dict[Setting, dict[str, Cell]] = {}
    for one in played:
        cells.setdefault(one.setting, {})[one.cell.policy] = one.cell
    facts = {one.setting: one for one in played if one.cell.policy == OURS}
    console.print(settings_table(cells, facts))
    console.print(rivals_table(list(cells.values())))
    per_setting = {one: best_rival(of).ttft_ms_p90 for one, of in cells.items()}
    title = "p90 TTFT / the best rival of each setting, another each time (stricter)"
    console.print(headroom_table(title, per_setting, cells, facts))
    single = best_single_rival(list(cells.values()))
    title = f"p90 TTFT / {single}, the best single rival over all settings"
    overall = {one: of[single].ttft_ms_p90 for one, of in cells.items()}
    console.print(headroom_table(title, overall, cells, facts))
    console.print(replicas_table(cells))


def best_rival(cells: Cells) -> Cell:
    """Return the rival of least p90 TTFT."""
    return min((cells[name] for name in RIVALS), key=attrgetter("ttft_ms_p90"))


def settings_table(cells: Mapping[Setting, Cells], facts: Mapping[Setting, Played]) -> Table:
    """Return one row per setting; ratios are against the best rival's p90 TTFT there.

    `waitless` and `least` as in `Played`, of ours.
    """
    table = _table("p90 TTFT against the best rival of each setting", "setting")
    for name in (
        "ours",
        "best rival",
        "",
        "/",
        "oracle",
        "waitless",
        "alone",
        "hits",
        "bound",
        "spread",
        "least",
    ):
        table.add_column(name, justify="right", no_wrap=True)
    for setting, of in cells.items():
        best, ours = best_rival(of), of[OURS]
        table.add_row(
            setting.name,
            f"{ours.ttft_ms_p90:,.0f} ms",
            f"{best.ttft_ms_p90:,.0f} ms",
            best.policy.removeprefix("kv:"),
            f"{ratio(ours.ttft_ms_p90, best.ttft_ms_p90):.2f}",
            f"{ratio(of['oracle'].ttft_ms_p90, best.ttft_ms_p90):.2f}",
            f"{ratio(facts[setting].waitless_p90_ms, best.ttft_ms_p90):.2f}",
            f"{ratio(facts[setting].alone_p90_ms, best.ttft_ms_p90):.2f}",
            f"{ours.hit_rate:.1%}",
            f"{facts[setting].infinite_hit_rate:.1%}",
            f"{ours.busy_spread:.0%}",
            f"{facts[setting].least_share:.2f}",
        )
    return table


def rivals_table(cells: Sequence[Cells]) -> Table:
    """Return ours over each policy: geometric means, and the worst setting."""
    table = _table(f"{OURS} / policy, geometric means over {len(cells)} settings", "policy")
    for name in ("TTFT p50", "p90", "p99", "TPOT p90", "worst p90", "hits, theirs", "ours"):
        table.add_column(name, justify="right")
    for policy in (*RIVALS, BLIND, "oracle"):
        pairs = [(of[OURS], of[policy]) for of in cells]
        ratios = [ratio(a.ttft_ms_p90, b.ttft_ms_p90) for a, b in pairs]
        table.add_row(
            policy,
            f"{geometric_mean([ratio(a.ttft_ms_p50, b.ttft_ms_p50) for a, b in pairs]):.2f}",
            f"{geometric_mean(ratios):.2f}",
            f"{geometric_mean([ratio(a.ttft_ms_p99, b.ttft_ms_p99) for a, b in pairs]):.2f}",
            f"{geometric_mean([ratio(a.tpot_ms_p90, b.tpot_ms_p90) for a, b in pairs]):.2f}",
            f"{max(ratios):.2f}",
            f"{sum(b.hit_rate for _, b in pairs) / len(pairs):.1%}",
            f"{sum(a.hit_rate for a, _ in pairs) / len(pairs):.1%}",
        )
    return table


def best_single_rival(cells: Sequence[Cells]) -> str:
    """Return the rival whose p90 TTFT has the least geometric mean over all settings."""
    return min(RIVALS, key=lambda name: geometric_mean([of[name].ttft_ms_p90 for of in cells]))


def headroom_table(
    title: str,
    best: Mapping[Setting, float],
    cells: Mapping[Setting, Cells],
    facts: Mapping[Setting, Played],
) -> Table:
    """Return how much lower p90 TTFT is than `best`, and how much it could be."""
    table = _table(title, "")
    for name in ("geometric mean", "worst", f"settings <= {MUCH_LOWER}", f"> {WORSE}"):
        table.add_column(name, justify="right")
    rows = {
        "ours": [ratio(of[OURS].ttft_ms_p90, best[one]) for one, of in cells.items()],
        "oracle": [ratio(of["oracle"].ttft_ms_p90, best[one]) for one, of in cells.items()],
        "ours, had nothing waited": [ratio(facts[one].waitless_p90_ms, best[one]) for one in cells],
        "alone, infinite cache (bound)": [
            ratio(facts[one].alone_p90_ms, best[one]) for one in cells
        ],
    }
    for name, ratios in rows.items():
        table.add_row(
            name,
            f"{geometric_mean(ratios):.3f}",
            f"{max(ratios):.2f}",
            f"{sum(one <= MUCH_LOWER for one in ratios)} of {len(ratios)}",
            f"{sum(one > WORSE for one in ratios)}",
        )
    return table


def regret_table(runs: Runs) -> Table:
    """Return ours over the best of the simple rivals, another for each figure; of goodput, the
    share of requests within 2 s and 100 ms a token, ours and how much theirs is more. ± is the
    standard error of the runs' ratios.
    """
    table = _table(f"{OURS} / the best simple rival, another for each figure", "setting")
    for name in (*_TIMES, "goodput", "most", "by"):
        table.add_column(name, justify="right", no_wrap=True)
    worst: dict[str, float] = {}
    for setting in dict.fromkeys(one for one, _ in runs):
        row: list[str] = []
        for name, figure in _TIMES.items():
            best = min(SIMPLE, key=lambda one: _mean(runs[setting, one], figure))
            pairs = zip(runs[setting, OURS], runs[setting, best], strict=True)
            ratios = [ratio(figure(a.cell), figure(b.cell)) for a, b in pairs]
            error = stdev(ratios) / sqrt(len(ratios)) if len(ratios) > 1 else 0.0
            found = ratio(_mean(runs[setting, OURS], figure), _mean(runs[setting, best], figure))
            row.append(f"{found:.2f} ±{error:.2f} {_SHORT[best]}")
            worst[name] = max(worst.get(name, 0.0), found)
        good = attrgetter("goodput")
        best = max(SIMPLE, key=lambda one: _mean(runs[setting, one], good))
        ours, theirs = _mean(runs[setting, OURS], good), _mean(runs[setting, best], good)
        worst["goodput"] = max(worst.get("goodput", -1.0), theirs - ours)
        table.add_row(setting.name, *row, f"{ours:.3f}", f"{theirs - ours:+.3f}", _SHORT[best])
    if worst:
        most = [f"{worst[name]:.2f}" for name in _TIMES]
        table.add_row("worst", *most, "", f"{worst['goodput']:+.3f}", "")
    return table


_TIMES: Final[Mapping[str, Callable[[Cell], float]]] = {
    "TTFT p50": attrgetter("ttft_ms_p50"),
    "p90": attrgetter("ttft_ms_p90"),
    "p99": attrgetter("ttft_ms_p99"),
    "TPOT p90": attrgetter("tpot_ms_p90"),
}

_SHORT: Final[Mapping[str, str]] = dict(
    zip(SIMPLE, ("pd", "lm", "pr", "sg", "rr", "rnd", "ll"), strict=True)
)


def _mean(runs: Sequence[Played], figure: Callable[[Cell], float]) -> float:
    return fmean(figure(one.cell) for one in runs)


def replicas_table(cells: Mapping[Setting, Cells]) -> Table:
    """Return what more router replicas make of p90 TTFT, per policy."""
    table = _table("p90 TTFT of several router replicas / of one", "policy")
    for name in ("settings", "geometric mean", "worst"):
        table.add_column(name, justify="right")
    pairs = [
        (of, cells[alone])
        for setting, of in cells.items()
        if setting.routers > 1 and (alone := msgspec.structs.replace(setting, routers=1)) in cells
    ]
    for policy in (OURS, *RIVALS):
        ratios = [ratio(a[policy].ttft_ms_p90, b[policy].ttft_ms_p90) for a, b in pairs]
        if ratios:
            table.add_row(
                policy, str(len(ratios)), f"{geometric_mean(ratios):.2f}", f"{max(ratios):.2f}"
            )
    return table


def blind_table(
    settings: Sequence[Setting],
    played: Mapping[tuple[Setting, str], Played],
    saturations: Mapping[tuple[str, int, int, str], float],
) -> Table:
    """Return ours against round robin; capacity is the load each saturates at."""
    table = _table(f"{OURS} against round robin", "setting")
    for name in ("hits, round robin", "ours", "bound", "TTFT p50", "p90", "TPOT p90", "capacity"):
        table.add_column(name, justify="right")
    for one in settings:
        ours, blind = played[one, OURS], played[one, BLIND]
        a, b = ours.cell, blind.cell
        capacity = [
            saturations.get((one.trace, one.requests, one.engines, name)) for name in (OURS, BLIND)
        ]
        table.add_row(
            one.name,
            f"{b.hit_rate:.1%}",
            f"{a.hit_rate:.1%}",
            f"{ours.infinite_hit_rate:.1%}",
            f"{ratio(a.ttft_ms_p50, b.ttft_ms_p50) - 1.0:+.0%}",
            f"{ratio(a.ttft_ms_p90, b.ttft_ms_p90) - 1.0:+.0%}",
            f"{ratio(a.tpot_ms_p90, b.tpot_ms_p90) - 1.0:+.0%}",
            f"{capacity[0] / capacity[1] - 1.0:+.0%}" if capacity[0] and capacity[1] else "",
        )
    return table


def dynamo_table(
    replayed: Sequence[Replayed], played: Mapping[tuple[Setting, str], Played]
) -> Table:
    """Return Dynamo's own simulation of its router beside ours of both."""
    table = _table("Dynamo 1.6's own offline replay beside this simulator", "setting")
    for name in ("router", "TTFT p50", "p90", "p99", "hits", "ours as", "p50", "p90", "hits"):
        table.add_column(name, justify="right", no_wrap=True)
    same = {"kv_router": "kv:dynamo", "round_robin": BLIND}
    for one in replayed:
        cells = [played[one.setting, name].cell for name in dict.fromkeys((same[one.router], OURS))]
        for number, cell in enumerate(cells):
            theirs = (
                one.setting.name,
                one.router,
                f"{one.ttft_ms_p50:,.0f}",
                f"{one.ttft_ms_p90:,.0f}",
                f"{one.ttft_ms_p99:,.0f}",
                f"{one.hit_rate:.1%}",
            )
            table.add_row(
                *(("",) * len(theirs) if number else theirs),
                cell.policy.removeprefix("kv:"),
                f"{cell.ttft_ms_p50:,.0f}",
                f"{cell.ttft_ms_p90:,.0f}",
                f"{cell.hit_rate:.1%}",
            )
    return table


def _table(title: str, first: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column(first, no_wrap=True)
    return table
