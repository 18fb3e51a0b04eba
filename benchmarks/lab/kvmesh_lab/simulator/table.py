"""A simulation's comparison as tables for people."""

from collections.abc import Sequence
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from kvmesh_lab.report.outcome import Distribution, distribution
from kvmesh_lab.report.statistics import ReplayRun
from kvmesh_lab.simulator.capacity import Capacity
from kvmesh_lab.simulator.comparison import Cell, PolicyVerdict, compare, ratio
from kvmesh_lab.simulator.membership import JOIN_HEAD, LEAVE_HEAD, Changes

EVEN: Final = 0.02
"""Ratios nearer to 1 than this are no difference."""

_SHARES: Final = ("hit\nrate", "imba-\nlance", "busy\nspread")
_ENDS: Final = ("lost", "re-\ntried")


def print_comparison(cells: Sequence[Cell], console: Console, *, faulty: bool = False) -> None:
    """Print one table per setting, then every policy over all settings.

    `faulty`: with the requests lost and retried.
    """
    settings = list(dict.fromkeys(cell.setting for cell in cells))
    for setting in settings:
        found = [one for one in cells if one.setting == setting]
        console.print(setting_table(setting, found, faulty=faulty))
    if len(settings) > 1:
        console.print(verdict_table(compare(cells), faulty=faulty))


def setting_table(setting: str, cells: Sequence[Cell], *, faulty: bool) -> Table:
    """Return one row per policy; ratios are against the first. Times are in ms."""
    table = _table(f"{setting}; times in ms, ratios against {cells[0].policy}")
    for name in ("TTFT\np50", "TTFT\np90", "p90\nratio", "TTFT\np99", "TPOT\np90", *_SHARES):
        _add_figures(table, name)
    _add_ends(table, faulty=faulty)
    for cell in cells:
        table.add_row(
            cell.policy,
            f"{cell.ttft_ms_p50:,.0f}",
            f"{cell.ttft_ms_p90:,.0f}",
            colour(ratio(cell.ttft_ms_p90, cells[0].ttft_ms_p90)),
            f"{cell.ttft_ms_p99:,.0f}",
            f"{cell.tpot_ms_p90:,.1f}",
            f"{cell.hit_rate:.1%}",
            f"{cell.imbalance:.2f}",
            f"{cell.busy_spread:.2f}",
            *_ends(cell, faulty=faulty),
        )
    return table


def print_changes(found: Sequence[Changes], console: Console) -> None:
    """Print, for each setting, what runs felt of engines that joined and of those that left."""
    joined = "engines that join (hits: first 60 s; TTFT: 75 s)"
    left = "engines that leave (tokens prefilled, a minute each)"
    for setting in dict.fromkeys(one.setting for one in found):
        ones = [one for one in found if one.setting == setting]
        for title, head, rows in (
            (joined, JOIN_HEAD, [(one.policy, row) for one in ones for row in one.joins]),
            (left, LEAVE_HEAD, [(one.policy, row) for one in ones for row in one.leaves]),
        ):
            table = _table(f"{setting}: {title}")
            for name in ("who", *head):
                _add_figures(table, name)
            for policy, row in rows:
                table.add_row(policy, *row)
            if rows:
                console.print(table)


def program_table(setting: str, runs: Sequence[ReplayRun]) -> Table:
    """Return one row per policy: how its programs fared. Times are in s."""
    title = f"{setting}: programs; times in s, ratio of the mean against {runs[0].name}"
    table = _table(title)
    names = ("done", "turns\n/s", "mean", "p90", "mean\nratio", "requests\nmean", "wait\nmean")
    for name in (*names, "wait\nmax", "prefill\n/ inf.", "fair"):
        _add_figures(table, name)
    first = runs[0].summary.programs
    base = _mean_s(first.completion_s if first else None)
    for run in runs:
        found = run.summary.programs
        if found is None:
            continue
        whole = found.completion_s
        table.add_row(
            run.name,
            f"{found.finished:,}/{found.programs:,}",
            f"{found.turns_per_s:.3g}",
            f"{_mean_s(whole):,.0f}",
            f"{whole.p90 if whole else 0.0:,.0f}",
            colour(ratio(_mean_s(whole), base)),
            f"{_mean_s(found.request_s):,.0f}",
            f"{found.wait_s_mean:,.1f}",
            f"{found.wait_s_max:,.0f}",
            f"x{found.prefill_ratio:.2f}",
            f"{found.fairness:.2f}",
        )
    return table


def capacity_table(title: str, found: Sequence[Capacity]) -> Table:
    """Return one row per policy: the largest load that keeps the SLO, and how it went there."""
    table = _table(title)
    for name in ("capacity", "ratio", "in SLO", "TTFT\np90", "TPOT\np90", "hit\nrate", "turns\n/s"):
        _add_figures(table, name)
    for one in found:
        cells = [f"{one.load:,.3g}", colour_more(ratio(one.load, found[0].load))]
        if one.run is not None:
            summary = one.run.summary
            tpot = distribution(
                mean for each in one.run.outcomes if (mean := each.mean_itl_ms()) is not None
            )
            turns = summary.programs.turns_per_s if summary.programs else summary.requests_per_s
            cells += [
                f"{summary.goodput_share:.1%}",
                f"{summary.ttft_ms.p90 if summary.ttft_ms else 0.0:,.0f}",
                f"{tpot.p90 if tpot else 0.0:,.1f}",
                f"{summary.hit_rate:.1%}",
                f"{turns:.3g}",
            ]
        table.add_row(one.policy, *cells)
    return table


def colour_more(value: float) -> str:
    """Return a ratio, green when it is higher than 1 and red when lower."""
    if abs(value - 1.0) < EVEN:
        return f"x{value:.2f}"
    return f"[{'green' if value > 1.0 else 'red'}]x{value:.2f}[/]"


def _mean_s(found: Distribution | None) -> float:
    return found.mean if found else 0.0


def verdict_table(verdicts: Sequence[PolicyVerdict], *, faulty: bool) -> Table:
    """Return one row per policy over all settings; where it was worst stands below the ratio."""
    title = f"all settings: geometric mean against {verdicts[0].policy}, lower is better"
    table = _table(title)
    for name in ("TTFT\np50", "TTFT\np90", "TTFT\np99", "TPOT\np90"):
        _add_figures(table, name)
    table.add_column("worst\np90", justify="right", overflow="fold")
    for name in ("worst\n/ best", *_SHARES):
        _add_figures(table, name)
    _add_ends(table, faulty=faulty)
    for one in verdicts:
        worst = f"{colour(one.worst)}\n{one.worst_setting}"
        if one is verdicts[0]:
            worst = ""
        table.add_row(
            one.policy,
            colour(one.ttft_p50),
            colour(one.ttft_p90),
            colour(one.ttft_p99),
            colour(one.tpot_p90),
            worst,
            f"x{one.worst_of_best:.2f}",
            f"{one.hit_rate:.1%}",
            f"{one.imbalance:.2f}",
            f"{one.busy_spread:.2f}",
            *_ends(one, faulty=faulty),
        )
    return table


def _table(title: str) -> Table:
    """Return a table that stays whole in 80 columns: long names are folded, figures are not."""
    table = Table(
        title=title, title_justify="left", box=SIMPLE_HEAD, padding=(0, 0), pad_edge=False
    )
    table.add_column("policy", overflow="fold")
    return table


def _add_figures(table: Table, name: str) -> None:
    table.add_column(name, justify="right", no_wrap=True)


def _add_ends(table: Table, *, faulty: bool) -> None:
    for name in _ENDS if faulty else ():
        _add_figures(table, name)


def _ends(found: Cell | PolicyVerdict, *, faulty: bool) -> tuple[str, ...]:
    return (f"{found.lost:,.0f}", f"{found.retried:,.0f}") if faulty else ()


def colour(value: float) -> str:
    """Return a ratio, green when it is lower than 1 and red when higher."""
    if abs(value - 1.0) < EVEN:
        return f"x{value:.2f}"
    return f"[{'green' if value < 1.0 else 'red'}]x{value:.2f}[/]"
