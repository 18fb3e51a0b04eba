"""A replay's report as tables for people."""

from collections.abc import Sequence
from typing import Final

from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvmesh_lab.report.statistics import Metric, ReplayReport, ReplayRun, RunSummary, Share, metrics

LATE_MS: Final = 50.0
"""Requests sent later than this at p99 make the sender part of what was measured."""

EVEN: Final = 0.02
"""Ratios nearer to 1 than this are no difference."""

BASELINE_COLUMNS: Final = 42
RUN_COLUMNS: Final = 24
"""Columns of a terminal that names and baseline need, and every further run: others have a table
of their own below."""


def print_report(report: ReplayReport, console: Console) -> None:
    """Print facts, metrics side by side, each run's workers, errors and what to distrust."""
    facts = Table.grid(padding=(0, 2))
    facts.add_column(no_wrap=True)
    facts.add_column(overflow="fold")
    facts.add_row("trace", report.trace)
    for name, value in report.facts.items():
        facts.add_row(name, value)
    facts.add_row("one infinite cache would hit", f"{report.infinite_hit_rate:.1%}")
    console.print(facts)
    baseline, *others = report.runs
    count = max(1, (console.width - BASELINE_COLUMNS) // RUN_COLUMNS)
    for first in range(0, max(1, len(others)), count):
        console.print(metric_table(baseline, others[first : first + count]))
    for run in report.runs:
        console.print(share_table(run))
        if run.summary.errors:
            console.print(error_table(run))
    for warning in find_warnings(report):
        console.print(f"[yellow]warning:[/yellow] {warning}", highlight=False)


def metric_table(baseline: ReplayRun, others: Sequence[ReplayRun]) -> Table:
    """Return one row per metric, one column per run and, from the second on, its ratio."""
    table = Table(title="results", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("metric", no_wrap=True)
    for run in (baseline, *others):
        table.add_column(Text(run.name, overflow="fold"), justify="right", min_width=11)
        if run is not baseline:
            table.add_column(f"/ {baseline.name}", justify="right", min_width=5, overflow="fold")
    columns = [metrics(run.summary) for run in others]
    for row, metric in enumerate(metrics(baseline.summary)):
        cells = [format_value(metric)]
        for column in columns:
            cells += [format_value(column[row]), _colour(metric, column[row])]
        table.add_row(metric.name, *cells)
    return table


def format_value(metric: Metric) -> str:
    """Return the value with its unit; a dash for none."""
    value = metric.value
    if value is None:
        return "-"
    digits = 0 if isinstance(value, int) else 1 if abs(value) >= 10 else 2  # noqa: PLR2004  three significant digits
    text = f"{value:,.{digits}f}"
    return f"{text}{'' if metric.unit in {'', '%', '/s'} else ' '}{metric.unit}"


def ratio_of(baseline: Metric, other: Metric) -> float | None:
    """Return other / baseline; None without two values to compare."""
    if baseline.better is None or other.value is None or not baseline.value:
        return None
    return other.value / baseline.value


def verdict(baseline: Metric, other: Metric) -> str:
    """Return "better", "worse" or "" for no difference worth a word."""
    ratio = ratio_of(baseline, other)
    if ratio is None or abs(ratio - 1) < EVEN:
        return ""
    return "better" if (ratio < 1) == (baseline.better == "lower") else "worse"


def _colour(baseline: Metric, other: Metric) -> str:
    ratio = ratio_of(baseline, other)
    if ratio is None:
        return ""
    colour = {"better": "green", "worse": "red", "": "default"}[verdict(baseline, other)]
    return f"[{colour}]x{ratio:.2f}[/{colour}]"


def share_table(run: ReplayRun) -> Table:
    """Return who served how much: workers first, then routers and buckets."""
    table = Table(title=f"who served: {run.name}", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("")
    table.add_column("name", overflow="fold")
    for name in ("requests", "share", "hit\nrate", "computed\ntokens", "output\ntokens"):
        table.add_column(name, justify="right", no_wrap=True)
    summary = run.summary
    groups = (("worker", summary.workers), ("router", summary.routers), ("bucket", summary.buckets))
    for kind, members in groups:
        for share in members:
            table.add_row(kind, *_share_cells(share))
        table.add_section()
    return table


def _share_cells(share: Share) -> tuple[str, ...]:
    return (
        share.name,
        f"{share.requests:,}",
        f"{share.request_share:.1%}",
        f"{share.hit_rate:.1%}",
        f"{share.computed_tokens:,}",
        f"{share.output_tokens:,}",
    )


def error_table(run: ReplayRun) -> Table:
    """Return the failures by kind, each with the first one's words."""
    table = Table(title=f"errors: {run.name}", title_justify="left", box=SIMPLE_HEAD)
    table.add_column("kind")
    table.add_column("requests", justify="right")
    table.add_column("the first said", overflow="fold")
    for kind, count in run.summary.errors.items():
        first = next(outcome.detail for outcome in run.outcomes if outcome.error == kind)
        table.add_row(kind, str(count), first)
    return table


def find_warnings(report: ReplayReport) -> list[str]:
    """Return what makes the figures less than they seem, in words."""
    found: list[str] = []
    for run in report.runs:
        found += [f"{run.name}: {text}" for text in _run_warnings(run.summary)]
    return found


def _run_warnings(summary: RunSummary) -> list[str]:
    found: list[str] = []
    if summary.lag_ms is not None and summary.lag_ms.p99 > LATE_MS:
        found.append(
            f"requests left up to {summary.lag_ms.p99:.0f} ms late (p99): this machine could not "
            "keep up, so latencies include its own; send slower or from another machine"
        )
    if summary.succeeded and not summary.prompt_tokens:
        found.append("answers carry no usage, so hit rate and tokens are unknown")
    elif summary.succeeded and not summary.cached_tokens:
        found.append(
            "no cached token was reported: start vLLM with --enable-prompt-tokens-details, "
            "or caches are off"
        )
    if summary.requests and not summary.succeeded:
        found.append("no request succeeded")
    return found
