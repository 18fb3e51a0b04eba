"""A replay's plots. Imported only when asked for: matplotlib is the extra `plots`."""

from collections.abc import Callable, Sequence
from io import StringIO
from pathlib import Path
from typing import Any, Final

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from kvmesh_lab.report.statistics import ReplayReport, ReplayRun, Share
from kvmesh_lab.report.timeline import timeline

COLOURS: Final = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")
"""Okabe and Ito's, told apart by the colour-blind."""

STYLE: Final[Any] = {
    "font.size": 9,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "grid.color": "#dddddd",
    "axes.axisbelow": True,
    "svg.hashsalt": "kvmesh",
    "svg.fonttype": "none",
}
"""Any: matplotlib types its setting names as one literal of 300, which changes each release."""

MAX_CURVE_POINTS: Final = 500
MAX_NAMED_WORKERS: Final = 16


def write_plots(report: ReplayReport, path: Path) -> None:
    """Write all plots as one picture; the suffix of `path` is its format."""
    with mpl.rc_context(STYLE):
        draw(report).savefig(path, dpi=150, metadata={"Date": None} if _is_svg(path) else None)


def plots_as_svg(report: ReplayReport) -> str:
    """Return all plots as one `<svg>` element to be put into a page."""
    buffer = StringIO()
    with mpl.rc_context(STYLE):
        draw(report).savefig(buffer, format="svg", metadata={"Date": None})
    text = buffer.getvalue()
    return text[text.index("<svg") :]


def _is_svg(path: Path) -> bool:
    return path.suffix == ".svg"


def draw(report: ReplayReport) -> Figure:
    """Return a figure of six panels over all runs."""
    figure = Figure(figsize=(13, 7.5), layout="constrained")
    panels = figure.subplots(2, 3)
    plain = [panel for row in panels for panel in row]
    draw_latency(plain[0], report.runs, "time to first token", _ttfts, report.slo.ttft_ms)
    draw_latency(plain[1], report.runs, "inter-token time", _pauses, report.slo.itl_ms)
    draw_hit_rate(plain[2], report)
    draw_ttft_over_time(plain[3], report.runs)
    draw_load(plain[4], report.runs, "requests per worker", lambda share: share.requests)
    draw_load(plain[5], report.runs, "computed tokens per worker", lambda s: s.computed_tokens)
    handles, names = plain[2].get_legend_handles_labels()
    figure.legend(handles, names, loc="outside lower center", ncols=len(names), frameon=False)
    return figure


def draw_latency(
    axes: Axes,
    runs: Sequence[ReplayRun],
    title: str,
    values_of: Callable[[ReplayRun], list[float]],
    bound_ms: float,
) -> None:
    """Draw the share of values below each time, and the SLO's bound."""
    axes.set_title(title)
    axes.set_xlabel("ms")
    axes.set_ylabel("share below")
    axes.set_ylim(0, 1.01)
    found = False
    for number, run in enumerate(runs):
        ordered = sorted(values_of(run))
        if ordered:
            found = True
            step = max(1, len(ordered) // MAX_CURVE_POINTS)
            ranks = [*range(0, len(ordered) - 1, step), len(ordered) - 1]
            shares = [(rank + 1) / len(ordered) for rank in ranks]
            axes.step([ordered[rank] for rank in ranks], shares, color=_colour(number))
    if found:
        axes.set_xscale("log")
        axes.axvline(bound_ms, color="#888888", linestyle=":", linewidth=1)
        axes.annotate("SLO", (bound_ms, 0.02), color="#666666", fontsize=8)


def draw_hit_rate(axes: Axes, report: ReplayReport) -> None:
    """Draw the hit rate over time against what one infinite cache would have hit in all."""
    axes.set_title("hit rate over time")
    axes.set_xlabel("s")
    axes.set_ylim(0, 1.01)
    for number, run in enumerate(report.runs):
        windows = [window for window in timeline(run.outcomes) if window.hit_rate is not None]
        times = [window.start_s for window in windows]
        rates = [window.hit_rate or 0.0 for window in windows]
        axes.plot(times, rates, color=_colour(number), label=run.name)
    axes.axhline(
        report.infinite_hit_rate, color="#888888", linestyle="--", label="one infinite cache, mean"
    )


def draw_ttft_over_time(axes: Axes, runs: Sequence[ReplayRun]) -> None:
    """Draw the median (line) and p90 (dashes) of the time to first token over time."""
    axes.set_title("time to first token over time: p50, p90 dashed")
    axes.set_xlabel("s")
    axes.set_ylabel("ms")
    for number, run in enumerate(runs):
        windows = [window for window in timeline(run.outcomes) if window.ttft_ms_p50 is not None]
        times = [window.start_s for window in windows]
        colour = _colour(number)
        axes.plot(times, [window.ttft_ms_p50 or 0.0 for window in windows], color=colour)
        highs = [window.ttft_ms_p90 or 0.0 for window in windows]
        axes.plot(times, highs, color=colour, linestyle="--", linewidth=1)
    if axes.lines:
        axes.set_ylim(bottom=0)


def draw_load(
    axes: Axes, runs: Sequence[ReplayRun], title: str, value_of: Callable[[Share], int]
) -> None:
    """Draw one group of bars per worker, one bar per run."""
    axes.set_title(title)
    names = sorted({share.name for run in runs for share in run.summary.workers})
    width = 0.8 / max(1, len(runs))
    for number, run in enumerate(runs):
        values = {share.name: value_of(share) for share in run.summary.workers}
        places = [place + (number - (len(runs) - 1) / 2) * width for place in range(len(names))]
        axes.bar(places, [values.get(name, 0) for name in names], width, color=_colour(number))
    axes.grid(visible=False, axis="x")
    if len(names) <= MAX_NAMED_WORKERS:
        axes.set_xticks(range(len(names)), names, rotation=30, ha="right")
    else:
        axes.set_xticks([])
        axes.set_xlabel(f"{len(names)} workers, by name")


def _ttfts(run: ReplayRun) -> list[float]:
    return [outcome.ttft_ms for outcome in run.outcomes if outcome.ttft_ms is not None]


def _pauses(run: ReplayRun) -> list[float]:
    return [pause for outcome in run.outcomes for pause in outcome.itl_ms]


def _colour(number: int) -> str:
    return COLOURS[number % len(COLOURS)]
