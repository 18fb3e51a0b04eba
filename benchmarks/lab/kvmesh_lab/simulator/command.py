"""`kvmesh simulate`: play a trace against simulated engines, policies side by side."""

import sys
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import msgspec
from rich.console import Console

from kvmesh.bounds import counted
from kvmesh.core.cost.catalogue import Formulas
from kvmesh.observe import configure_logging
from kvmesh.settings.types import Flat
from kvmesh.version import VERSION
from kvmesh_lab.replay.plan import TraceSlice, load_slice, program_facts
from kvmesh_lab.report.outcome import distribution
from kvmesh_lab.report.output import ReportFiles, check_plots, deliver_files
from kvmesh_lab.report.statistics import ReplayReport, ReplayRun, summarize
from kvmesh_lab.report.table import print_report
from kvmesh_lab.simulator.bars import Bars, draw_bars
from kvmesh_lab.simulator.capacity import Capacity, find_capacity
from kvmesh_lab.simulator.checks import check_simulation, check_times
from kvmesh_lab.simulator.comparison import Cell, measure
from kvmesh_lab.simulator.load import spread
from kvmesh_lab.simulator.membership import Changes, changes_of
from kvmesh_lab.simulator.options import LONG_RUN, SimulateOptions
from kvmesh_lab.simulator.sites.comparison import check_sites, made_up, simulate_sites
from kvmesh_lab.simulator.slices import Setting, Simulator, find_settings, is_closed
from kvmesh_lab.simulator.table import (
    capacity_table,
    print_changes,
    print_comparison,
    program_table,
)
from kvmesh_lab.simulator.tune import split_slice, tune_policy
from kvmesh_lab.traces.trace import infinite_cache_hit_rate


class SimulationResult(msgspec.Struct, frozen=True):
    """What was found: a report per setting, and the comparison's cells.

    `capacities`: what was searched instead with --capacity. `busy_s` is the processor time all of
    it took, without finding the settings. `changes`: what each run felt of engines that joined and
    left.
    """

    reports: tuple[tuple[Setting, ReplayReport], ...]
    cells: tuple[Cell, ...]
    busy_s: float
    capacities: tuple[Capacity, ...] = ()
    changes: tuple[Changes, ...] = ()


def simulate(options: SimulateOptions, console: Console, shown: Console) -> SimulationResult:
    """Run the simulation, print and write what was found; progress goes to `shown`.

    Raises `ConfigError` before anything is simulated.
    """
    check_simulation(options)
    if options.sites != 1:
        check_sites(options)
        simulate_sites(options, None if made_up(options) else _load(options), console, shown)
        return SimulationResult((), (), 0.0)
    files = _files(options)
    check_plots(files)
    trace = _load(options)
    with draw_bars(shown, enabled=options.progress) as bars:
        if options.tune is not None:
            train, trace = split_slice(trace, options.train_share)
            tuned = tune_policy(options, options.tune, train, bars, console)
            policies = dict.fromkeys((*options.policy, f"kv:{options.tune}", tuned))
            options = replace(options, policy=tuple(policies))
        simulator = Simulator(options, trace)
        if options.capacity:
            capacities = [
                find_capacity(options, simulator, one, bars) for one in simulator.variants()
            ]
            return _deliver_capacities(options, simulator, capacities, console)
        settings = find_settings(options, simulator, bars)
        check_times(simulator.fleet, simulator, settings)
        result = run_settings(options, simulator, settings, bars)
    _show(options, simulator, result, console)
    speed = len(trace.requests) * len(result.cells) / max(result.busy_s, 1e-9)
    shown.print(f"simulated {speed:,.0f} requests/s of processor time", highlight=False)
    _warn(simulator.formulas, console)
    if not options.fail:
        _warn_refused(result, console)
    _write(result, files, console)
    return result


def _show(
    options: SimulateOptions, simulator: Simulator, result: SimulationResult, console: Console
) -> None:
    """Print how the policies compare."""
    for _, report in result.reports if options.details else ():
        print_report(report, console)
    if not options.details:
        _print_facts(result.reports[0][1], simulator, console)
    print_comparison(result.cells, console, faulty=bool(options.fail))
    print_changes(result.changes, console)
    for setting, report in result.reports:
        if any(run.summary.programs for run in report.runs):
            console.print(program_table(setting.name, report.runs))


def _warn(formulas: Formulas, console: Console) -> None:
    """Print which formulas of one's own failed: then others decided."""
    for formula in formulas.own():
        reported = formula.statistics()
        if reported.faults:
            off = " and was switched off" if reported.off else ""
            console.print(
                f"warning: {formula.name} failed in {reported.faults:,} of {reported.decisions:,} "
                f"decisions ({reported.last_fault}){off}; predicted-time decided",
                highlight=False,
                soft_wrap=True,
            )


def _deliver_capacities(
    options: SimulateOptions,
    simulator: Simulator,
    found: Sequence[Capacity],
    console: Console,
) -> SimulationResult:
    """Print what each policy bears, and write the runs there."""
    unit = "live sessions an engine" if is_closed(options, simulator.trace) else "requests/s"
    setting = Setting(f"capacity, {unit}: {options.capacity_share:.0%} of all requests within SLO")
    report = _report(options, simulator, setting, [one.run for one in found if one.run])
    _print_facts(report, simulator, console)
    console.print(capacity_table(f"{setting.name}; times in ms", found))
    result = SimulationResult(((setting, report),), (), 0.0, tuple(found))
    if report.runs:
        _write(result, _files(options), console)
    return result


def _warn_refused(found: SimulationResult, console: Console) -> None:
    """Print how many requests a healthy fleet did not answer, and why."""
    ended = [one for _, report in found.reports for run in report.runs for one in run.outcomes]
    failed = [one for one in ended if one.error]
    if failed:
        console.print(
            f"warning: {len(failed):,} of {len(ended):,} requests got no answer "
            f"({failed[0].detail or failed[0].error}); --max-input-tokens cuts prompts",
            highlight=False,
            soft_wrap=True,
        )


def run_settings(
    options: SimulateOptions, simulator: Simulator, settings: Sequence[Setting], bars: Bars
) -> SimulationResult:
    """Play every policy at every load."""
    trace = simulator.trace
    programs = program_facts(trace)
    reports: list[tuple[Setting, ReplayReport]] = []
    cells: list[Cell] = []
    changes: list[Changes] = []
    busy_s = 0.0
    for setting in settings:
        runs: list[ReplayRun] = []
        for variant in simulator.variants():
            watch = bars.watch(f"{setting.name} {variant.name}", len(trace.requests))
            began_s = time.process_time()
            fleet = simulator.play(variant.policy, setting, watch, variant.fleet)
            busy_s += time.process_time() - began_s
            workers = [engine.worker for engine in fleet.engines]
            summary = summarize(fleet.outcomes, options.slo(), workers, programs)
            runs.append(ReplayRun(variant.name, summary, tuple(fleet.outcomes)))
            busy = spread(fleet.busy_s)
            cells.append(
                measure(setting.name, variant.name, summary, fleet.outcomes, busy, fleet.retried)
            )
            changes.append(changes_of(setting.name, variant.name, fleet))
        reports.append((setting, _report(options, simulator, setting, runs)))
    return SimulationResult(tuple(reports), tuple(cells), busy_s, changes=tuple(changes))


def _report(
    options: SimulateOptions, simulator: Simulator, setting: Setting, runs: Sequence[ReplayRun]
) -> ReplayReport:
    trace = simulator.trace
    return ReplayReport(
        trace=trace.source,
        facts=describe_simulation(options, simulator, setting),
        infinite_hit_rate=infinite_cache_hit_rate(trace.requests, trace.block_size),
        slo=options.slo(),
        runs=tuple(runs),
        title="kvmesh simulate",
    )


def _files(options: SimulateOptions) -> ReportFiles:
    return ReportFiles(json=options.json, csv=options.csv, html=options.html, plot=options.plot)


def describe_simulation(
    options: SimulateOptions, simulator: Simulator, setting: Setting
) -> dict[str, str]:
    """Return what was simulated, in words, for the head of the report."""
    requests, fleet = simulator.trace.requests, simulator.fleet
    mean_input = sum(request.input_tokens for request in requests) / len(requests)
    mean_output = sum(request.output_tokens for request in requests) / len(requests)
    engine, size = fleet.engine, options.size()
    speeds = "" if set(fleet.speed_ratios) == {1.0} else f", speeds {fleet.speed_ratios}"
    held = f", held above {fleet.max_backlog_ms:g} ms of backlog, {fleet.queue_policy}"
    facts = {
        "simulated": f"{counted(fleet.engines, 'engine')} ({size.name}, {size.timing}{speeds}), "
        f"{counted(fleet.routers, 'router')}"
        f"{held if fleet.max_backlog_ms else ''}",
        "engine": f"{engine.num_gpu_blocks:,} blocks of {engine.block_size} tokens "
        f"({engine.num_gpu_blocks * engine.block_size:,} tokens), "
        f"{engine.max_num_batched_tokens:,} tokens a step, {engine.max_num_seqs} requests at once",
        "slice": _slice_words(options, simulator.trace),
        "tokens": f"{mean_input:,.0f} in and {mean_output:,.0f} out on average",
        "load": setting.name
        if setting.live or options.capacity
        else f"{setting.name}, x{setting.speedup:.3g} of the recorded speed",
        "routers": f"told of output lengths: {'yes' if fleet.tells_lengths else 'no'}",
        "delays": f"events {options.event_delay_ms:g} ms, bookings {options.sync_delay_ms:g} ms",
        "SLO": f"TTFT {options.slo_ttft_ms:g} ms, per token {options.slo_itl_ms:g} ms",
        "seed": str(options.seed),
        "kvmesh": VERSION,
    }
    if members := options.timetable().words():
        facts["members"] = members
    if options.fail:
        flapping = f", flapping {options.flap} s" if options.flap else ""
        facts["faults"] = (
            f"{' '.join(options.fail)}{flapping}; up to {options.retries} retries, clients wait "
            f"{options.client_timeout_ms:g} ms"
        )
    return facts


def _print_facts(report: ReplayReport, simulator: Simulator, console: Console) -> None:
    console.print(f"trace      {report.trace}", soft_wrap=True, highlight=False)
    for name, value in report.facts.items():
        if name != "load":
            console.print(f"{name:10} {value}", soft_wrap=True, highlight=False)
    console.print(f"one infinite cache would hit {report.infinite_hit_rate:.1%}", highlight=False)
    least = distribution(simulator.alone_ttfts_ms())
    assert least is not None
    console.print(
        f"TTFT alone on an idle engine that has it: p50 {least.p50:,.0f} ms, p90 {least.p90:,.0f} "
        f"ms, p99 {least.p99:,.0f} ms; no routing answers sooner",
        soft_wrap=True,
        highlight=False,
    )


def _write(found: SimulationResult, files: ReportFiles, console: Console) -> None:
    """Write the data of all loads into one file each, pages and pictures one per load."""
    first = found.reports[0][1]
    several = len(found.reports) > 1
    runs = [
        msgspec.structs.replace(run, name=f"{run.name} @ {setting.name}" if several else run.name)
        for setting, report in found.reports
        for run in report.runs
    ]
    whole = msgspec.structs.replace(first, runs=tuple(runs))
    deliver_files(whole, ReportFiles(json=files.json, csv=files.csv), console)
    for number, (_, report) in enumerate(found.reports, start=1):
        html, plot = (
            _numbered(path, number) if several else path for path in (files.html, files.plot)
        )
        deliver_files(report, ReportFiles(html=html, plot=plot), console)


def _numbered(path: Path | None, number: int) -> Path | None:
    return None if path is None else path.with_stem(f"{path.stem}-{number}")


def _slice_words(options: SimulateOptions, trace: TraceSlice) -> str:
    requests = counted(len(trace.requests), "request")
    if trace.programs:
        return (
            f"{counted(trace.programs, 'program')} of {requests}, after the first {options.skip:,}"
        )
    again = f", of them {trace.repeated:,} repeated with fresh prompts" if trace.repeated else ""
    return f"{requests} after the first {options.skip:,}{again}"


def _load(options: SimulateOptions) -> TraceSlice:
    """Read the slice; longer than the trace where it is to be played above its capacity."""
    wanted = options.reading()
    trace = load_slice(wanted)
    loaded = not (options.rate or options.live or trace.programs) and max(options.load) > 1.0
    long = loaded or (options.capacity and not is_closed(options, trace))
    if options.requests is None and long and len(trace.requests) < LONG_RUN:
        trace = load_slice(replace(wanted, requests=LONG_RUN))
    return trace


def command(options: Annotated[SimulateOptions, Flat]) -> None:
    """Play a trace against simulated engines and compare routing policies."""
    configure_logging("warning", "auto")
    simulate(options, Console(), Console(stderr=True))
    sys.exit(0)
