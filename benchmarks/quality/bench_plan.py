"""`kvmesh plan` beside the truth: every number of engines tried, and live mockers.

    python -m benchmarks.quality.bench_plan search A_b512.jsonl.gz --slo ttft=4s,tpot=60ms
    python -m benchmarks.quality.bench_plan live A_b512.jsonl.gz --slo ttft=600ms --load 3 --slow 8

search plays each number of engines from 1 to --most with all seeds to the end. live plays the
plan's answer through processes, --slow times as slow as the profile, then plans from the router's
log.
"""

import argparse
import asyncio
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from benchmarks.quality.bench_life import mesh
from benchmarks.quality.grid import Setting
from kvmesh.core.insight.trace_ring import KEY_TOKENS
from kvmesh_lab.plan.judge import Load, Run, quantile
from kvmesh_lab.plan.options import PlanOptions
from kvmesh_lab.plan.planning import Basis, find_basis, find_fleets, new_judge
from kvmesh_lab.plan.record import errors_of
from kvmesh_lab.plan.targets import FIGURES, Figure, figure_ms, parse_targets
from kvmesh_lab.plan.workload import Workload, read_workload
from kvmesh_lab.replay.command import run_replay
from kvmesh_lab.replay.options import ReplayOptions

LIVE_MOST = 16
EVENT_DELAY_S = 0.005


def read(options: PlanOptions) -> tuple[Workload, Basis, Load]:
    workload = read_workload(options.reading())
    return workload, find_basis(options, workload), Load(options.load, options.live, options.seeds)


def searched(options: PlanOptions) -> str:
    """Return a row: the search's answer, that of exhaustive search, and what each played."""
    workload, basis, load = read(options)
    targets = parse_targets(options.slo)
    judge = new_judge(workload, basis, targets, load)
    judge.errors = errors_of(())
    answer, sure = find_fleets(judge, workload, load)
    plays = judge.plays
    every = new_judge(workload, basis, targets, load)
    every.errors = judge.errors
    holds: list[bool] = []
    surely: list[bool] = []
    for count in range(1, options.most + 1):
        verdicts = every.verdicts((count,))
        holds.append(all(one.holds for one in verdicts))
        surely.append(all(one.surely for one in verdicts))
    least = next((n for n, one in enumerate(holds, 1) if one), None)
    least_sure = next((n for n, one in enumerate(surely, 1) if one), None)
    pattern = "".join(
        "+" if both else "-" if one else "." for one, both in zip(holds, surely, strict=True)
    )
    cells = [f"{options.log.name.partition('.')[0]}", options.slo, str(answer and answer[0])]
    cells += [str(least), str(sure and sure[0]), str(least_sure), str(plays), str(every.plays)]
    return f"| {' | '.join(cells)} | {pattern} |"


def lived(options: PlanOptions, slow: float, folder: Path) -> Iterator[str]:
    """Yield rows: the plan's times at its answer beside those of live mockers, from the profile
    and from the log of the router that served them; ms of the profile.
    """
    workload, basis, load = read(options)
    fleet = msgspec.structs.replace(
        basis.fleet, event_delay_s=EVENT_DELAY_S / slow, report_interval_s=1.0 / slow
    )
    judge = new_judge(
        workload, Basis(fleet, basis.kinds, basis.policy), parse_targets(options.slo), load
    )
    answer, _ = find_fleets(judge, workload, load)
    assert answer is not None, "nothing holds"
    setting = Setting(str(options.log), len(workload.trace.requests), answer[0], 1.0, 1, 5.0)
    block = workload.trace.block_size
    engine = basis.kinds[0].engine
    log = folder / f"log_b{max(1, KEY_TOKENS // block) * block}.jsonl"
    with mesh(setting, block, slow, folder, engine.num_gpu_blocks, log) as url:
        replay = ReplayOptions(
            options.log,
            url=url,
            endpoint="completions",
            prompt_unit="token-ids",
            requests=options.requests,
            max_input_tokens=options.max_input_tokens,
            speedup=options.load,
            time_scale=slow,
            progress=False,
        )
        outcomes = asyncio.run(run_replay(replay)).runs[0].outcomes
    good = [one for one in outcomes if not one.error and one.index in judge.counted]
    tokens = sum(one.prompt_tokens for one in good)
    live = {
        name: quantile(sorted(ms for one in good if (ms := figure_ms(one, name)) is not None), 0.9)
        for name in FIGURES
    }
    hits = sum(one.cached_tokens for one in good) / tokens
    name = f"{options.log.name.partition('.')[0]} | {answer[0]} | {len(good)}"
    yield row(f"{name} | profile", live, hits, judge.runs(answer), slow, 1.0)
    logged = PlanOptions(log, slo="ttft=1000s")
    workload, basis, load = read(logged)
    measured = workload.measured()
    whole = {name: quantile(sorted(measured[name]), 0.9) for name in FIGURES}
    hits = sum(one.cached_tokens for one in workload.went.values()) / sum(
        one.input_tokens for one in workload.trace.requests
    )
    judge = new_judge(workload, basis, parse_targets(logged.slo), load)
    yield row(f"{name} | log", whole, hits, judge.runs(answer), slow, slow)


def row(
    name: str,
    live: Mapping[Figure, float],
    hits: float,
    runs: Sequence[Run],
    slow: float,
    simulated_slow: float,
) -> str:
    cells = [name, f"{hits:.1%}", f"{sum(one.hit_rate for one in runs) / len(runs):.1%}"]
    for figure in FIGURES:
        values = [one.times[figure][1] / simulated_slow for one in runs]
        mean, seen = sum(values) / len(values), live[figure] / slow
        cells += [f"{seen:.0f}", f"{mean:.0f} ({min(values):.0f}-{max(values):.0f})"]
        cells.append(f"{seen / mean - 1.0:+.0%}")
    return f"| {' | '.join(cells)} |"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("what", choices=("search", "live"))
    parser.add_argument("trace", nargs="+")
    parser.add_argument("--slo", required=True)
    parser.add_argument("--model-profile")
    parser.add_argument("--requests", type=int)
    parser.add_argument("--max-input-tokens", type=int)
    parser.add_argument("--load", type=float, default=1.0)
    parser.add_argument("--live", type=int, default=0, help="live sessions in all")
    parser.add_argument("--sessions", type=int)
    parser.add_argument("--most", type=int, default=24)
    parser.add_argument("--slow", type=float, default=8.0)
    found = parser.parse_args()
    for trace in found.trace:
        options = PlanOptions(
            Path(trace),
            slo=found.slo,
            model_profile=found.model_profile,
            requests=found.requests,
            max_input_tokens=found.max_input_tokens,
            load=found.load,
            live=found.live,
            sessions=found.sessions,
            most=found.most if found.what == "search" else LIVE_MOST,
        )
        if found.what == "search":
            print(searched(options), flush=True)
            continue
        with tempfile.TemporaryDirectory() as folder:
            for line in lived(options, found.slow, Path(folder)):
                print(line, flush=True)


if __name__ == "__main__":
    main()
