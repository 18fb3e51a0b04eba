"""An overview drawn for a terminal: what `kvmesh top` shows."""

from collections.abc import Sequence
from math import ceil
from typing import Final

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from kvmesh.app.views.decision_view import DecisionRow
from kvmesh.app.views.figure import Format
from kvmesh.app.views.figure_table import COLUMNS, Rows
from kvmesh.app.views.overview import BucketRow, Overview, ReplicaRow, WorkerRow, number
from kvmesh.app.views.policy_view import PolicyRow
from kvmesh.app.views.program_rows import ProgramRow
from kvmesh.bounds import counted
from kvmesh.core.insight.traffic import TrafficSecond, share_of, sketch_quantile, sum_seconds

WINDOW_S: Final = 60
"""Seconds of traffic that rates, shares and medians are taken over."""

BARS: Final = " ▁▂▃▄▅▆▇█"
DRAINING: Final = "draining"
MOST_WARNINGS: Final = 4
MOST_PROGRAMS: Final = 6
LONGEST_ID: Final = 36
"""A UUID is shown whole."""
GAUGE_CELLS: Final = 10
SHORT_CELLS: Final = 4
"""Where many columns share 80."""

SAMPLED: Final = 0.9
"""With a smaller part of the tokens round robin's share is said to be of a sample."""

TRUST_STYLES: Final = {
    "exact": "green",
    "estimated": "cyan",
    "approx": "cyan",
    "catching-up": "yellow",
}
STATE_STYLES: Final = {"waiting": "yellow", "running": "green", "paused": "", "ended": "dim"}
AGREEMENT_STYLES: Final = {"agrees": "green", "disagrees": "bold red", "unchecked": "dim"}


class Present(msgspec.Struct, frozen=True):
    """The traffic of the last `WINDOW_S` seconds. Shares are 0..1, None: nothing to divide."""

    requests_per_s: float
    failed: int
    hit_share: float | None
    round_robin_share: float | None
    shadowed_share: float | None
    ttft_p50_ms: float | None
    ttft_p90_ms: float | None
    per_second: tuple[int, ...]


def measure(seconds: Sequence[TrafficSecond], now: int) -> Present:
    """Return what happened in the `WINDOW_S` whole seconds before `now` (Unix seconds)."""
    first = now - WINDOW_S
    window = [one for one in seconds if first <= one.second < now]
    total = sum_seconds(window)
    counts = {one.second: one.requests for one in window}
    return Present(
        requests_per_s=total.requests / WINDOW_S,
        failed=total.failed + total.refused,
        hit_share=share_of(total.saved_tokens, total.answered_tokens),
        round_robin_share=share_of(total.round_robin_tokens, total.shadowed_tokens),
        shadowed_share=share_of(total.shadowed_tokens, total.prompt_tokens),
        ttft_p50_ms=sketch_quantile(total.ttft, 0.5),
        ttft_p90_ms=sketch_quantile(total.ttft, 0.9),
        per_second=tuple(counts.get(second, 0) for second in range(first, now)),
    )


def draw(overview: Overview, seconds: Sequence[TrafficSecond], *, rows: int) -> RenderableType:
    """Return the whole screen; `rows` bounds the list of requests."""
    parts: list[RenderableType] = [
        _head(overview),
        *_warnings(overview.warnings),
        *_policies(overview.policies),
        _traffic(measure(seconds, int(overview.now))),
        _buckets(overview.buckets),
        *_scaling(overview),
        _replicas(overview.replicas),
        _workers(overview.workers),
    ]
    if overview.programs:
        parts.append(_programs(overview.programs[:MOST_PROGRAMS]))
    newest = sorted(overview.decisions, key=lambda row: row.decided_at, reverse=True)[:rows]
    if newest:
        parts.append(_decisions(newest))
    return Group(*parts)


def sparkline(values: Sequence[int]) -> str:
    """Return one character a value, as high as the value is of the largest."""
    most = max(values, default=0)
    if not most:
        return BARS[0] * len(values)
    top = len(BARS) - 1
    return "".join(BARS[-(-value * top // most)] for value in values)


def gauge(part: int, whole: int, cells: int = GAUGE_CELLS) -> Text:
    """Return a bar and the share in per cent; a dash where the whole is not known."""
    if whole <= 0:
        return Text("-", "dim")
    share = min(1.0, part / whole)
    filled = round(share * cells)
    style = "red" if share > 0.95 else "yellow" if share > 0.8 else "green"  # noqa: PLR2004  levels of warning
    return Text.assemble(("█" * filled, style), ("░" * (cells - filled), "dim"), f" {share:4.0%}")


def _head(overview: Overview) -> Text:
    state = ("ready", "bold green") if overview.ready else (overview.reason, "bold red")
    return Text.assemble(
        ("kvmesh ", "bold"),
        f"{overview.role} {overview.name} {overview.version}  ",
        state,
        (f"  {overview.policy}, blocks of {overview.block_size}", "dim")
        if overview.policy
        else ("", ""),
    )


def _warnings(lines: Sequence[str]) -> list[Text]:
    shown = [Text(f"! {line}", "yellow") for line in lines[:MOST_WARNINGS]]
    if len(lines) > MOST_WARNINGS:
        shown.append(Text(f"! and {len(lines) - MOST_WARNINGS} more, see /ready", "yellow"))
    return shown


def _policies(rows: Sequence[PolicyRow]) -> list[Text]:
    """Return a line for each bucket whose policy was changed: the trial, or what came of it."""
    lines: list[Text] = []
    for row in rows:
        if row.candidate:
            words = f"window {row.window} ({row.turn}), {row.verdict}"
            line = (f"{row.candidate} on trial: {words}", "cyan")
        elif row.history:
            last = row.history[0]
            style = "yellow" if last.phase == "returned" else ""
            line = (f"{last.policy} {last.phase}: {last.steps[-1].reason}", style)
        else:
            continue
        lines.append(Text.assemble((f"policy of {row.bucket}  ", "dim"), line))
    return lines


def _traffic(present: Present) -> Text:
    return Text.assemble(
        (f"last {WINDOW_S} s  ", "dim"),
        (f"{present.requests_per_s:.1f} requests/s", "bold"),
        ("  failed ", "dim"),
        (str(present.failed), "red" if present.failed else ""),
        ("  cached ", "dim"),
        (percent(present.hit_share), "bold green"),
        (f" (round robin {percent(present.round_robin_share)}{_sample(present)})", "dim"),
        ("\nTTFT p50 ", "dim"),
        _ms(present.ttft_p50_ms),
        ("  p90 ", "dim"),
        _ms(present.ttft_p90_ms),
        "\n",
        (sparkline(present.per_second), "cyan"),
    )


def _sample(present: Present) -> str:
    """Return of how many tokens round robin's share is told, where that is not nearly all."""
    share = present.shadowed_share
    if share is None or present.round_robin_share is None or share >= SAMPLED:
        return ""
    return f", of a sample of {percent(share)}"


def _buckets(rows: Sequence[BucketRow]) -> Table:
    titles = _titles("buckets")
    table = _table("buckets", "bucket", "replicas#", "workers#", *titles, "KV blocks")
    for row in rows:
        table.add_row(
            row.bucket,
            _of(row.ready_replicas, row.replicas),
            _of(row.usable_workers, row.workers),
            *_figures("buckets", row),
            gauge(row.used_blocks, row.total_blocks),
        )
    return table


def _scaling(overview: Overview) -> list[Text]:
    """Return a line for each bucket: how full it is, and what autoscaling would do."""
    lines: list[Text] = []
    for row in overview.buckets:
        full, wanted = number(row, "saturation"), number(row, "wanted_workers")
        if full is None or wanted is None:
            continue
        first = [
            one.worker
            for one in overview.workers
            if one.bucket == row.bucket and number(one, "drain_order") == 1
        ]
        wants = counted(max(1, ceil(wanted)), "worker")
        state = f"{percent(full)} full, wants {wants}, has {row.workers}"
        leaves = f"; {first[0]} would leave first" if first else ""
        style = "yellow" if full > 1.0 else "dim"
        lines.append(Text(f"{row.bucket} is {state}{leaves}", style))
    return lines


def _replicas(rows: Sequence[ReplicaRow]) -> Table:
    titles = _titles("replicas")
    table = _table("replicas", "replica", "state", "sequence#", "lag#", "digest", *titles)
    for row in rows:
        table.add_row(
            f"{row.replica} (picker)" if row.role == "picker" else row.replica,
            Text("ready", "green") if row.ready else Text(row.reason, "red"),
            f"{row.applied_sequence:,}" if row.kv_events else "-",
            f"{row.lag:,}" if row.kv_events else "-",
            Text(row.agreement, AGREEMENT_STYLES[row.agreement]),
            *_figures("replicas", row),
        )
    return table


def _workers(rows: Sequence[WorkerRow]) -> Table:
    why = any(row.why_not for row in rows)
    fail = any(row.failures for row in rows)
    table = _table(
        "workers", "worker", "trust", "KV blocks", *_titles("workers"),
        *(["failed#"] if fail else []), *(["why not"] if why else []),
    )  # fmt: skip
    for row in rows:
        table.add_row(
            row.worker,
            Text(row.trust, TRUST_STYLES.get(row.trust, "red")),
            gauge(row.used_blocks, row.total_blocks, SHORT_CELLS),
            *_figures("workers", row),
            *([_failed(row)] if fail else []),
            *([Text(row.why_not, _why_style(row))] if why else []),
        )
    return table


def _programs(rows: Sequence[ProgramRow]) -> Table:
    """Return the programs that wait, then those that run and pause."""
    table = _table("programs", "program", "client", "state", "turns#", "at", "context#", "kept")
    for row in rows:
        table.add_row(
            row.program,
            row.client or "-",
            Text(f"{row.state} {row.since_s:,.0f} s", STATE_STYLES[row.state]),
            f"{row.turns:,}",
            ", ".join(row.workers) or "nowhere",
            f"{row.tokens:,}",
            gauge(row.reserved_tokens, row.tokens, SHORT_CELLS),
        )
    return table


def _titles(rows: Rows) -> list[str]:
    return [f"{one.top}#" for one in COLUMNS[rows] if one.top]


def _figures(rows: Rows, row: WorkerRow | ReplicaRow | BucketRow) -> list[str]:
    """Return the cells of the figures that have a title here."""
    shown = [one for one in COLUMNS[rows] if one.top]
    return [figure(one.format, number(row, one.key)) for one in shown]


def figure(style: Format, value: float | None) -> str:
    """Return a figure as text; a dash for none."""
    if value is None:
        return "-"
    match style:
        case "count":
            return f"{value:,.0f}"
        case "percent":
            return percent(value)
        case "ms":
            return _ms(value)
        case "s":
            return _ms(value * 1000.0)
        case "ms_per_token":
            return f"{value:.3f}"


def _failed(row: WorkerRow) -> Text:
    """Return how many of a worker's last requests failed; a worker that is spared stands out."""
    if not row.failures:
        return Text("-", "dim")
    return Text(_of(row.failures, row.attempts), "yellow" if row.stage == "in" else "red")


def _why_style(row: WorkerRow) -> str:
    return "yellow" if row.why_not == DRAINING else "red"


def _decisions(rows: Sequence[DecisionRow]) -> Table:
    table = _table("requests, newest first", "request", "worker", "cached", "TTFT#", "state", "why")
    for row in rows:
        table.add_row(
            Text(_short(row.request_id), "dim"),
            row.worker,
            _of(row.overlap_blocks, row.total_blocks),
            _ms(row.ttft_ms),
            row.state,
            Text(row.why, overflow="ellipsis", no_wrap=True),
        )
    return table


def _table(title: str, *headers: str) -> Table:
    """Return an empty table; a header that ends in # is a number's."""
    table = Table(
        title=title,
        title_justify="left",
        title_style="bold",
        box=SIMPLE_HEAD,
        padding=0,
    )
    for place, header in enumerate(headers):
        number = header.endswith("#")
        name = header.removesuffix("#")
        table.add_column(name, justify="right" if number else "left", no_wrap=place == 0)
    return table


def _short(request_id: str) -> str:
    """Return the id as `kvmesh explain` takes it; the end of one that is very long."""
    cut = len(request_id) - LONGEST_ID
    return f"…{request_id[cut + 1 :]}" if cut > 0 else request_id


def _of(part: int, whole: int) -> str:
    return f"{part}/{whole}"


def percent(share: float | None) -> str:
    """Return a share for people; a dash for none."""
    return "-" if share is None else f"{share:.1%}"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:,.0f} ms"
