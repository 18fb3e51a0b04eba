"""A simulation's comparison as tables for people."""

from collections.abc import Sequence
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

from kvmesh.core.comparison import Cell, Verdict, compare, ratio

EVEN: Final = 0.02
"""Ratios nearer to 1 than this are no difference."""


def print_comparison(cells: Sequence[Cell], console: Console) -> None:
    """Print one table per setting, then every policy over all settings."""
    settings = list(dict.fromkeys(cell.setting for cell in cells))
    for setting in settings:
        console.print(setting_table(setting, [one for one in cells if one.setting == setting]))
    if len(settings) > 1:
        console.print(verdict_table(compare(cells)))


def setting_table(setting: str, cells: Sequence[Cell]) -> Table:
    """Return one row per policy; ratios are against the first."""
    table = Table(title=setting, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("policy", no_wrap=True)
    for name in ("TTFT p50", "p90", f"/ {cells[0].policy}", "p99", "TPOT p90"):
        table.add_column(name, justify="right")
    for name in ("hit rate", "imbalance", "busy spread"):
        table.add_column(name, justify="right")
    for cell in cells:
        table.add_row(
            cell.policy,
            f"{cell.ttft_ms_p50:,.0f} ms",
            f"{cell.ttft_ms_p90:,.0f} ms",
            colour(ratio(cell.ttft_ms_p90, cells[0].ttft_ms_p90)),
            f"{cell.ttft_ms_p99:,.0f} ms",
            f"{cell.tpot_ms_p90:,.1f} ms",
            f"{cell.hit_rate:.1%}",
            f"{cell.imbalance:.2f}",
            f"{cell.busy_spread:.2f}",
        )
    return table


def verdict_table(verdicts: Sequence[Verdict]) -> Table:
    """Return one row per policy over all settings."""
    title = f"all settings: geometric mean against {verdicts[0].policy}, lower is better"
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("policy", no_wrap=True)
    for name in ("TTFT p50", "p90", "p99", "TPOT p90", "worst p90", "worst / best policy"):
        table.add_column(name, justify="right")
    for name in ("hit rate", "imbalance", "busy spread"):
        table.add_column(name, justify="right")
    for one in verdicts:
        worst = f"{colour(one.worst)} ({one.worst_setting})"
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
        )
    return table


def colour(value: float) -> str:
    """Return a ratio, green when it is lower than 1 and red when higher."""
    if abs(value - 1.0) < EVEN:
        return f"x{value:.2f}"
    return f"[{'green' if value < 1.0 else 'red'}]x{value:.2f}[/]"
