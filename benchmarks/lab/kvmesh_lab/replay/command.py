"""`kvmesh replay`: send a trace to a live OpenAI endpoint, measure what comes back."""

import asyncio
import sys
from collections.abc import Coroutine, Sequence
from typing import Annotated

from rich.console import Console

from kvmesh.app.process.running import Stop, run
from kvmesh.bounds import counted
from kvmesh.errors import TransportError
from kvmesh.observe import configure_logging
from kvmesh.settings.types import Flat
from kvmesh.transport.http.upstream.client import UpstreamOptions, UpstreamPool
from kvmesh.version import VERSION
from kvmesh_lab.replay.client import ReplayClient
from kvmesh_lab.replay.options import ReplayOptions, check_options
from kvmesh_lab.replay.plan import RequestFactory, TraceSlice, load_slice, program_facts
from kvmesh_lab.replay.progress import show_progress
from kvmesh_lab.replay.run import ReplayPass
from kvmesh_lab.report.outcome import UNKNOWN
from kvmesh_lab.report.output import ReportFiles, check_plots, deliver_report
from kvmesh_lab.report.statistics import ReplayReport, ReplayRun, summarize
from kvmesh_lab.traces.trace import infinite_cache_hit_rate

__all__ = ["ReplayOptions", "ReplayReport", "replay", "run_replay"]

CONNECT_TIMEOUT_S = 10.0


async def replay(options: ReplayOptions, stop: Stop | None = None) -> int:
    """Run the replay, print and write its report. Returns the exit code: 1 if nothing succeeded.

    Raises `ConfigError` and `TransportError` before anything is sent.
    """
    report = await run_replay(options, console=Console(stderr=True), stop=stop)
    deliver_report(report, report_files(options), Console())
    return 0 if any(run.summary.succeeded for run in report.runs) else 1


async def run_replay(
    options: ReplayOptions, *, console: Console | None = None, stop: Stop | None = None
) -> ReplayReport:
    """Send the slice, once for each policy to compare, and return what was measured.

    When `stop` is set, open requests are given up and the report covers what had ended.
    Progress is shown on `console`. Raises `ConfigError`, and `TransportError` when the endpoint
    does not answer at the start.
    """
    check_options(options)
    check_plots(report_files(options))
    trace = load_slice(options)
    stop = stop or Stop()
    pool = UpstreamPool(
        options=UpstreamOptions(
            connect_timeout_s=min(CONNECT_TIMEOUT_S, options.timeout_s),
            first_byte_timeout_s=options.timeout_s,
            idle_timeout_s=options.timeout_s,
        ),
    )
    passes: list[tuple[str, ReplayPass]] = []
    try:
        client = ReplayClient(pool, options.url, options.timeout_s)
        model = options.model or await client.first_model(_authorization(options))
        for number, policy in enumerate(options.compare or ("",)):
            if stop.requested and passes:
                break
            if number:
                await _until(stop, asyncio.sleep(options.settle_s))
            await reset_engines(pool, options)
            factory = RequestFactory(options, trace, model, policy, f"{options.seed}/{number}")
            one = ReplayPass(client, factory, trace.requests)
            name = policy or "replay"
            passes.append((name, one))
            shown = show_progress(
                console or Console(quiet=True), name, one.progress, enabled=options.progress
            )
            async with shown:
                await _until(stop, one.run(options.concurrency))
    finally:
        await pool.close()
    return ReplayReport(
        trace=trace.source,
        facts=describe_replay(options, trace, model, interrupted=stop.requested),
        infinite_hit_rate=infinite_cache_hit_rate(trace.requests, trace.block_size),
        slo=options.slo(),
        runs=conclude(passes, options, trace),
    )


def conclude(
    passes: Sequence[tuple[str, ReplayPass]], options: ReplayOptions, trace: TraceSlice
) -> tuple[ReplayRun, ...]:
    """Return the named passes with their statistics; a worker seen in one is known to all."""
    known = {
        outcome.worker for _, one in passes for outcome in one.outcomes if not outcome.error
    } - {UNKNOWN}
    facts, slo = program_facts(trace), options.slo()
    return tuple(
        ReplayRun(name, summarize(one.outcomes, slo, known, facts), tuple(one.outcomes))
        for name, one in passes
    )


async def reset_engines(pool: UpstreamPool, options: ReplayOptions) -> None:
    """Empty the engines' prefix caches. Raises `TransportError` with the remedy."""
    for url in options.reset_engine:
        try:
            await ReplayClient(pool, url, options.timeout_s).fetch("POST", "/reset_prefix_cache")
        except TransportError as error:
            raise TransportError(
                f"{error} (vLLM has this call only with VLLM_SERVER_DEV_MODE=1; runs do not share "
                "prompts, so --reset-engine may be left out)"
            ) from error


async def _until(stop: Stop, work: Coroutine[object, object, None]) -> None:
    """Wait for `work`; cancel it when the process shall end."""
    working = asyncio.ensure_future(work)
    stopping = asyncio.ensure_future(stop.wait())
    try:
        await asyncio.wait({working, stopping}, return_when=asyncio.FIRST_COMPLETED)
        if working.done():
            working.result()
    finally:
        working.cancel()
        stopping.cancel()
        await asyncio.gather(working, stopping, return_exceptions=True)


def _authorization(options: ReplayOptions) -> list[tuple[bytes, bytes]]:
    return [(b"authorization", f"Bearer {options.api_key}".encode())] if options.api_key else []


def report_files(options: ReplayOptions) -> ReportFiles:
    """Return where the report shall be written."""
    return ReportFiles(json=options.json, csv=options.csv, html=options.html, plot=options.plot)


def describe_replay(
    options: ReplayOptions, trace: TraceSlice, model: str, *, interrupted: bool
) -> dict[str, str]:
    """Return what was run, in words, for the head of the report. No secrets."""
    requests = trace.requests
    mean_input = sum(request.input_tokens for request in requests) / len(requests)
    mean_output = sum(request.output_tokens for request in requests) / len(requests)
    loop = (
        f"open loop at x{options.speedup:g} of the recorded speed"
        if options.concurrency is None
        else f"closed loop, {counted(options.concurrency, 'session')} at a time"
    )
    facts = {
        "endpoint": f"{options.url} ({options.endpoint})",
        "model": model,
        "slice": f"{counted(len(requests), 'request')} after the first {options.skip:,}",
        "tokens": f"{mean_input:,.0f} in and {mean_output:,.0f} out on average, as "
        f"{options.prompt_unit}, blocks of {trace.block_size}",
        "load": loop,
        "SLO": f"TTFT {options.slo_ttft_ms:g} ms, per token {options.slo_itl_ms:g} ms",
        "seed": str(options.seed),
        "kvmesh": VERSION,
    }
    if options.bucket:
        by = f" by {options.bucket_by}" if options.bucket_by else ""
        facts["buckets"] = ", ".join(options.bucket) + by
    if interrupted:
        facts["interrupted"] = "yes: only requests that had ended are counted"
    return facts


def command(options: Annotated[ReplayOptions, Flat]) -> None:
    """Send a trace to a live endpoint and report hit rate and latency."""
    configure_logging("warning", "auto")
    codes: list[int] = []

    async def main(stop: Stop) -> None:
        codes.append(await replay(options, stop))

    run(main)
    sys.exit(codes[0])
