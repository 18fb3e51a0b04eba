"""`kvmesh analyze`: what could be reused of a load, and what to set for it, in words."""

import asyncio
import sys
from collections.abc import Sequence
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Final

import msgspec
from cyclopts import Parameter
from cyclopts.validators import Number
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvmesh.app.views.ask import ask_overview
from kvmesh.app.views.overview import Overview
from kvmesh.app.views.top_view import percent
from kvmesh.bounds import counted
from kvmesh.core.insight.traffic import share_of, sum_seconds
from kvmesh.errors import ConfigError
from kvmesh.settings.types import Count, Flat, Positive
from kvmesh_lab.analyze.advice import advise
from kvmesh_lab.analyze.live_advice import (
    LivePrefix,
    LiveTraffic,
    LiveWorker,
    advise_live,
    core_depth,
)
from kvmesh_lab.analyze.reuse import Reuse, measure_reuse
from kvmesh_lab.analyze.weight_advice import Advice, FleetSize
from kvmesh_lab.replay.options import ReplayOptions
from kvmesh_lab.replay.plan import load_slice

TOP_FAMILIES: Final = 5
MEGA: Final = 1_000_000
PARTS: Final = (0.5, 0.8, 0.95)
"""Parts of what can be reused whose least cache is printed."""


@dataclass(frozen=True)
class AnalyzeOptions:
    """What to analyse: a trace file, or a running router or mesh.

    A dataclass, since the command line is made from it.
    """

    trace: Path | None = None
    """Trace file in Mooncake's format, JSON lines, gzip or plain."""
    _: KW_ONLY
    live: bool = False
    """Analyse what --url saw in the last ten minutes instead of a trace."""
    url: str = "http://127.0.0.1:8000"
    """Base URL of a router or meta-router, without /v1."""
    api_key: str = ""
    """Sent as bearer token."""
    workers: Annotated[Positive, Parameter(name=("--engines", "--workers"))] = 8
    """Workers to advise for."""
    worker_tokens: Count = 0
    """KV cache of each worker, tokens; 0: say how much is needed."""
    blocks_per_worker: Annotated[
        Count, Parameter(name=("--num-gpu-blocks", "--blocks-per-worker"))
    ] = 0
    """The same in KV blocks, as engines print it when they start (num_gpu_blocks)."""
    kv_cache_block_size: Positive = 16
    """Tokens of a block of --num-gpu-blocks."""
    trace_block_size: Annotated[int | None, Parameter(validator=Number(gt=0))] = None
    """Tokens a hash id stands for; default: from the file name (…_b512.jsonl), else inferred."""
    skip: Count = 0
    """Requests at the start of the trace to leave out."""
    requests: Annotated[int | None, Parameter(validator=Number(gt=0))] = None
    """Requests to analyse; default: all."""
    json: bool = False
    """Print figures and advice as JSON."""


class LiveFigures(msgspec.Struct, frozen=True):
    """What a running mesh shows of itself."""

    traffic: LiveTraffic
    workers: list[LiveWorker]
    prefixes: list[LivePrefix]


def command(options: Annotated[AnalyzeOptions, Flat] | None = None) -> None:
    """Say what could be reused of a load, and what to set for it."""
    chosen = options or AnalyzeOptions()
    if chosen.live == (chosen.trace is not None):
        raise ConfigError("give either a trace file or --live")
    console = Console()
    figures: Reuse | LiveFigures
    if chosen.trace is None:
        overview = asyncio.run(ask_overview(chosen.url, api_key=chosen.api_key))
        figures = read_live(overview)
        advice = advise_live(figures.traffic, figures.workers, figures.prefixes)
        table = live_table(figures)
    else:
        with console.status("measuring reuse …"):
            figures = read_trace(chosen, chosen.trace)
        advice = advise(figures, fleet_of(chosen))
        table = reuse_table(figures)
    if chosen.json:
        report = msgspec.json.encode({"figures": figures, "advice": advice})
        sys.stdout.write(msgspec.json.format(report).decode() + "\n")
        return
    console.print(table)
    print_advice(advice, console)


def fleet_of(options: AnalyzeOptions) -> FleetSize:
    """Return the workers to advise for. Raises `ConfigError` for two sizes of one cache."""
    size, blocks = options.kv_cache_block_size, options.blocks_per_worker
    if blocks and options.worker_tokens:
        raise ConfigError(
            f"--num-gpu-blocks {blocks} and --worker-tokens {options.worker_tokens} both say "
            "how large a worker's KV cache is; give one of them"
        )
    return FleetSize(options.workers, options.worker_tokens or blocks * size, size)


def read_trace(options: AnalyzeOptions, trace: Path) -> Reuse:
    """Return the reuse of the slice. Raises `ConfigError` for a file that is no trace."""
    loaded = load_slice(
        ReplayOptions(
            trace,
            trace_block_size=options.trace_block_size,
            skip=options.skip,
            requests=options.requests,
        )
    )
    return measure_reuse(loaded.requests, loaded.block_size)


def read_live(overview: Overview) -> LiveFigures:
    """Return what an overview says, as the advice needs it."""
    total = sum_seconds(overview.seconds)
    size = overview.block_size
    depths = {(row.bucket, row.key): row.depth for row in overview.prefixes}
    prefixes = [
        LivePrefix(
            key=row.key,
            bucket=row.bucket,
            tokens=row.depth * size,
            parent_tokens=depths.get((row.bucket, row.parent), 0) * size,
            share=row.share,
            cached_share=row.cached_share,
            holders=len(row.workers),
        )
        for row in overview.prefixes
    ]
    workers = [
        LiveWorker(
            name=row.worker,
            usable=row.usable,
            trust=row.trust,
            usage=share_of(row.used_blocks, row.total_blocks),
            bucket=row.bucket,
            blocks=row.total_blocks,
            requests=row.active_requests,
        )
        for row in overview.workers
    ]
    traffic = LiveTraffic(
        requests=total.requests,
        overridden=total.overridden,
        own=total.own_requests,
        saved=share_of(total.saved_tokens, total.answered_tokens),
        saved_tokens=total.saved_tokens,
        saved_s=total.saved_us / 1e6,
        predicted_alone=share_of(total.saved_tokens - total.cached_tokens, total.saved_tokens),
        cached=share_of(total.own_cached_tokens, total.own_reported_tokens),
        predicted=share_of(total.own_predicted_tokens, total.own_prompt_tokens),
        round_robin=share_of(total.own_round_robin_tokens, total.own_prompt_tokens),
        core_breadth=len(prefixes),
        core_depth=core_depth(prefixes),
    )
    return LiveFigures(traffic, workers, prefixes)


def reuse_table(reuse: Reuse) -> Table:
    """Return a trace's figures."""
    table = _table(f"{counted(reuse.requests, 'request')} in {reuse.duration_s:,.0f} s")
    rows: list[tuple[str, str]] = [
        ("prompt tokens", f"{reuse.prompt_tokens / reuse.requests:,.0f} a request"),
        ("output tokens", f"{reuse.output_tokens / reuse.requests:,.0f} a request"),
        ("could be reused (one unlimited cache)", f"{reuse.unlimited:.1%}"),
    ]
    rows += [
        (f"round robin over {workers} unlimited caches", f"{share:.1%}")
        for workers, share in reuse.round_robin.items()
    ]
    rows += [
        (f"one LRU cache that hits {part:.0%} of it", f"{tokens / MEGA:,.2f} M tokens")
        for part in PARTS
        if (tokens := reuse.cache_for(part)) is not None
    ]
    depth, gap = reuse.core_depth, reuse.gap_s
    rows.append(
        (
            "core prefix (blocks visited at least twice)",
            f"{reuse.core_blocks:,} of {reuse.distinct_blocks:,} blocks of {reuse.block_size}",
        )
    )
    if depth is not None:
        rows.append(("core prefix depth", f"mean {depth.mean:,.0f}, p90 {depth.p90:,.0f} tokens"))
    if gap is not None:
        rows.append(("time until a block is reused", f"p50 {gap.p50:,.1f}, p90 {gap.p90:,.1f} s"))
    largest = ", ".join(f"{one.share:.1%}" for one in reuse.families[:TOP_FAMILIES])
    rows.append(("families that begin alike", f"{len(reuse.families):,}, largest {largest or '-'}"))
    for row in rows:
        table.add_row(*row)
    return table


def live_table(figures: LiveFigures) -> Table:
    """Return a running mesh's figures."""
    traffic = figures.traffic
    table = _table(f"{counted(traffic.requests, 'request')} in the last ten minutes")
    usable = sum(one.usable for one in figures.workers)
    for name, value in (
        ("prefill tokens saved", f"{traffic.saved_tokens:,}, {percent(traffic.saved)} of prompts"),
        ("… worth", f"{traffic.saved_s:,.1f} engine-seconds"),
        ("… predicted, as engines do not say", percent(traffic.predicted_alone)),
        ("requests that named another policy, or a worker", f"{traffic.overridden:,}"),
        ("requests routed by cache, by the mesh's own policy", f"{traffic.own:,}"),
        ("… cached, engines say", percent(traffic.cached)),
        ("… predicted", percent(traffic.predicted)),
        ("… round robin would have found", percent(traffic.round_robin)),
        ("core prefix: beginnings shared", f"{traffic.core_breadth:,}"),
        ("core prefix depth", f"mean {traffic.core_depth:,.0f} tokens"),
        ("workers usable", f"{usable} of {len(figures.workers)}"),
    ):
        table.add_row(name, value)
    return table


def print_advice(advice: Sequence[Advice], console: Console) -> None:
    """Print each recommendation with its reason."""
    if not advice:
        console.print("Nothing to recommend.")
    for one in advice:
        console.print(Text.assemble("→ ", (one.what, "bold")), soft_wrap=True, highlight=False)
        console.print(Text(f"  {one.why}", "dim"), soft_wrap=True, highlight=False)


def _table(title: str) -> Table:
    table = Table(title=title, title_justify="left", box=SIMPLE_HEAD, show_header=False)
    table.add_column(style="dim")
    table.add_column()
    return table
