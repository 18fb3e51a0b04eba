"""The simulator against life: the same requests through a real router and mockers, and simulated.

    python -m benchmarks.quality.bench_life --trace A_b512.jsonl.gz --slow 4

Without traces it plays three generated workloads and one of long answers. Arrivals are at 0.7 of
round robin's saturation; all of life is --slow times as slow as its profile says, so that what
HTTP, tokenizing and a busy machine add is small beside it. Times are told in the profile's.
"""

import argparse
import asyncio
import contextlib
import random
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from statistics import fmean
from typing import Final

import msgspec

from benchmarks.quality.bench_live_tuner import free_ports
from benchmarks.quality.grid import BLIND, Setting, fleet_of, load, perturb, saturate
from benchmarks.quality.phases import BLOCK as PHASE_BLOCK
from benchmarks.quality.phases import PHASES
from benchmarks.quality.workloads import BLOCK, WORKLOADS
from benchmarks.started import Started
from kvmesh.core.routing.policy import parse_policy
from kvmesh_lab.replay.command import run_replay
from kvmesh_lab.replay.options import ReplayOptions
from kvmesh_lab.report.statistics import RunSummary, Slo, summarize
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.traces.trace import TraceRequest

ENGINES: Final = 4
SEEDS: Final = 6
HITS: Final = 0.01
TIMES: Final = 0.1
"""What is allowed: a point of the hit rate, a tenth of p50 and p90 TTFT."""


class Seen(msgspec.Struct, frozen=True):
    """What came of one run; times in ms of the profile."""

    hit_rate: float
    ttft_ms_p50: float
    ttft_ms_p90: float


def write_trace(folder: Path, name: str, block: int, requests: Sequence[TraceRequest]) -> Path:
    """Write requests in Mooncake's format; the file's name tells the block size."""
    lines = [
        msgspec.json.encode(
            {
                "timestamp": one.timestamp_ms,
                "input_length": one.input_tokens,
                "output_length": one.output_tokens,
                "hash_ids": one.block_ids,
            }
            | ({"session_id": one.session} if one.session else {})
            | ({} if one.delay_ms is None else {"delay": one.delay_ms})
        )
        for one in requests
    ]
    path = folder / f"{name}_b{block}.jsonl"
    path.write_bytes(b"\n".join(lines))
    return path


def generated(folder: Path, requests: int) -> list[Path]:
    """Return what is played where no trace is named."""
    found = [write_trace(folder, name, BLOCK, make(requests)) for name, make in WORKLOADS.items()]
    long_answers = PHASES["decode-heavy"](requests, 10.0, 5)
    return [*found, write_trace(folder, "decode-heavy", PHASE_BLOCK, long_answers)]


def simulated(setting: Setting, speedup: float, slow: float) -> list[Seen]:
    """Play them in virtual time with several seeds, which delay each request by up to 10 ms; events
    and load reports are as late as they are in life.
    """
    sliced, found = load(setting.trace, setting.requests), []
    policy = parse_policy("kv", sliced.block_size)
    for seed in range(SEEDS):
        options = msgspec.structs.replace(
            fleet_of(setting, sliced.block_size),
            event_delay_s=setting.event_delay_ms / 1000.0 / slow,
            report_interval_s=1.0 / slow,
            seed=seed,
        )
        requests = perturb(sliced.requests, seed, speedup)
        fleet = SimulatedFleet(options, policy, requests, random.Random(seed), speedup=speedup)
        found.append(seen(summarize(fleet.run(), Slo()), 1.0))
    return found


def lived(setting: Setting, speedup: float, slow: float, folder: Path) -> Seen:
    """Play them through processes."""
    sliced = load(setting.trace, setting.requests)
    with mesh(setting, sliced.block_size, slow, folder) as url:
        options = ReplayOptions(
            Path(setting.trace),
            url=url,
            endpoint="completions",
            prompt_unit="token-ids",
            requests=setting.requests,
            speedup=speedup,
            time_scale=slow,
            progress=False,
        )
        summary = asyncio.run(run_replay(options)).runs[0].summary
    if summary.succeeded < setting.requests:
        print(f"{setting.trace}: {summary.succeeded} of {setting.requests} succeeded")
    return seen(summary, slow)


def seen(summary: RunSummary, slow: float) -> Seen:
    assert summary.ttft_ms is not None
    return Seen(summary.hit_rate, summary.ttft_ms.p50 / slow, summary.ttft_ms.p90 / slow)


@contextlib.contextmanager
def mesh(
    setting: Setting,
    block: int,
    slow: float,
    folder: Path,
    blocks: int | None = None,
    log: Path | None = None,
) -> Iterator[str]:
    """Start mockers and a router; write the router's `log` and kill them at the end."""
    blocks = blocks or fleet_of(setting, block).engine.num_gpu_blocks
    ports = free_ports(3 * setting.engines + 1)
    with contextlib.ExitStack() as stack:
        started: list[Started] = []
        for number in range(setting.engines):
            port, events, again = ports[3 * number : 3 * number + 3]
            arguments = ["kvmesh", "mocker", "--http-port", str(port), "--block-size", str(block)]
            arguments += ["--kv-events-port", str(events), "--kv-replay-port", str(again)]
            arguments += ["--num-gpu-blocks-override", str(blocks)]
            arguments += ["--max-model-len", str(blocks * block), "--speedup-ratio", str(1 / slow)]
            one = Started(arguments, port, folder / f"engine-{number}.log")
            stack.callback(one.kill)
            started.append(one)
        for one in started:
            one.wait(lambda process: bool(process.ask("/v1/models")))
        arguments = ["kvmesh", "router", "--http-port", str(ports[-1])]
        arguments += [] if log is None else ["--auto-tune", "propose"]
        for one in started:
            arguments += ["--worker", f"http://127.0.0.1:{one.port}"]
        router = Started(arguments, ports[-1], folder / "router.log")
        stack.callback(router.kill)
        router.wait(lambda process: bool(process.ask("/ready").get("ready")))
        yield f"http://127.0.0.1:{router.port}"
        if log is not None:
            log.write_bytes(router.fetch("/admin/trace"))


def row(trace: str, live: Seen, virtual: Sequence[Seen]) -> str:
    """Return one line of the table; what is beyond the allowed is bold."""
    hits = [one.hit_rate for one in virtual]
    far = live.hit_rate - fmean(hits)
    shown = f"{fmean(hits):.1%} ({min(hits):.1%}-{max(hits):.1%})"
    cells = [f"{live.hit_rate:.1%}", shown, mark(f"{far * 100:+.1f}", abs(far) > HITS)]
    for one, others in (
        (live.ttft_ms_p50, [other.ttft_ms_p50 for other in virtual]),
        (live.ttft_ms_p90, [other.ttft_ms_p90 for other in virtual]),
    ):
        far = one / fmean(others) - 1.0
        shown = f"{fmean(others):.0f} ({min(others):.0f}-{max(others):.0f})"
        cells += [f"{one:.0f}", shown, mark(f"{far:+.0%}", abs(far) > TIMES)]
    return f"| {Path(trace).name.partition('.')[0]} | {' | '.join(cells)} |"


def mark(text: str, beyond: bool) -> str:
    return f"**{text}**" if beyond else text


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", action="append", default=[], help="default: generated ones")
    parser.add_argument("--requests", type=int, default=300)
    parser.add_argument("--load", type=float, default=0.7, help="of round robin's saturation")
    parser.add_argument("--slow", type=float, default=2.0, help="times as slow as the profile")
    found = parser.parse_args()
    print(
        "| trace | hits, live | simulated | points | p50 ms | simulated | | p90 ms | simulated | |"
    )
    print("|---|---|---|---|---|---|---|---|---|---|", flush=True)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for trace in found.trace or map(str, generated(folder, found.requests)):
            setting = Setting(trace, found.requests, ENGINES, found.load, 1, 5.0)
            speedup = found.load * saturate(trace, found.requests, ENGINES, BLIND)
            live = lived(setting, speedup, found.slow, folder)
            print(row(trace, live, simulated(setting, speedup, found.slow)), flush=True)


if __name__ == "__main__":
    main()
