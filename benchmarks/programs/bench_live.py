"""Real coding agents' sessions through every front door, over the same pretend engines.

Closed loop: each session sends its next turn after its recorded pause, whatever the load. Engines
are `kvmesh mocker` processes in real time, with real sockets and KV events, of the timing of a 70B
model on two H100; all tokens are an eighth of the recorded ones (`small_trace`), and time runs
`--speed` times faster. Each candidate begins with empty caches and is judged by its clients and by
the engines' `cached_tokens`.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.measure import Comparison, Sample, compare, facts, parse_options, report
from benchmarks.programs.small_trace import BLOCK, TOKENS, choose, small_profile, write_small
from benchmarks.proxy.peers import Peer, Running, all_peers, free_port
from benchmarks.started import Started
from kvmesh_lab.replay.command import ReplayOptions, run_replay
from kvmesh_lab.report.outcome import RequestOutcome
from kvmesh_lab.report.statistics import ReplayReport

PEERS: Final = ("vllm-router 0.1.17 cache", "sglang-router 0.3.2 cache")
PROFILE: Final = "preble-70b"
KV_BLOCK: Final = 16
LONGEST_PAUSES_S: Final = 900.0


class Load(msgspec.Struct, frozen=True):
    """What is played. `cache_tokens`: of an engine, before they are divided; `live`: sessions at a
    time, all engines together.
    """

    trace: Path
    engines: int
    cache_tokens: int
    live: int
    speed: float


def follower(name: str, *flags: str) -> Peer:
    """Return a kvmesh router that follows the engines' KV events itself, without NATS."""

    def command(port: int, workers: Sequence[str], _: Path) -> list[str]:
        named = [f"--worker=w{number}={url}" for number, url in enumerate(workers)]
        own = [f"--http-port={port}", "--log-level=warning", *flags]
        return [sys.executable, "-m", "tests.fixed_flags", "router", *own, *named]

    return Peer(name, command)


def front_doors() -> list[Peer]:
    """Return what is compared, the baseline first: today's routing without turns."""
    peers = [peer for peer in all_peers() if peer.name in PEERS]
    return [
        follower("kvmesh, no turns", "--program-turns=off"),
        follower("kvmesh, turns", "--program-turns=on"),
        *peers,
    ]


@contextmanager
def fresh_engines(folder: Path, load: Load) -> Iterator[list[str]]:
    """Run the pretend engines with empty caches, give their URLs."""
    folder.mkdir(parents=True, exist_ok=True)
    running: list[Started] = []
    try:
        for number in range(load.engines):
            port = free_port()
            ports = ["--http-port", str(port), "--kv-events-port", "0", "--kv-replay-port", "0"]
            blocks = load.cache_tokens // TOKENS // KV_BLOCK
            engine = [f"--num-gpu-blocks-override={blocks}", f"--block-size={KV_BLOCK}"]
            engine += [f"--max-num-batched-tokens={8192 // TOKENS}"]
            engine += [f"--timing-profile={small_profile(PROFILE)}"]
            engine += [f"--speedup-ratio={load.speed}", "--model=m", "--log-level=warning"]
            log = folder / f"engine{number}.log"
            running.append(Started(["kvmesh", "mocker", *ports, *engine], port, log))
        for started in running:
            started.wait(lambda one: bool(one.ask("/v1/models")))
        yield [f"http://127.0.0.1:{started.port}" for started in running]
    finally:
        for started in running:
            started.kill()


def serve(peer: Peer, load: Load) -> Sample:
    """Return what clients saw of one candidate; its engines start with empty caches."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with fresh_engines(folder / "engines", load) as urls:
            door = Running(peer, urls, folder / "door", max(os.sched_getaffinity(0)))
            try:
                played = asyncio.run(send(f"http://127.0.0.1:{door.port}", load))
            finally:
                door.stop()
    return figures(played, load.speed)


async def send(url: str, load: Load) -> ReplayReport:
    options = ReplayOptions(
        load.trace,
        url=url,
        model="m",
        trace_block_size=BLOCK,
        time_scale=1.0 / load.speed,
        concurrency=load.live,
        endpoint="completions",
        timeout_s=3_000.0,
        session_headers="claude-code",
        progress=False,
    )
    return await run_replay(options)


def figures(played: ReplayReport, speed: float) -> Sample:
    """Return the figures of a run, all times as if it had run at the recorded speed."""
    (run,) = played.runs
    summary = run.summary
    ttft, itl = summary.ttft_ms, summary.itl_ms
    assert ttft is not None, f"nothing succeeded: {summary.errors}"
    assert itl is not None
    assert not summary.errors, f"some failed: {summary.errors}"
    computed = summary.prompt_tokens - summary.cached_tokens
    needed = summary.prompt_tokens * (1.0 - played.infinite_hit_rate)
    sessions = session_times(run.outcomes)
    return {
        "session mean s": speed * sum(sessions) / len(sessions),
        "session p90 s": speed * sorted(sessions)[int(0.9 * (len(sessions) - 1))],
        "turns/min": 60.0 * summary.requests_per_s / speed,
        "TTFT p50 s": speed * ttft.p50 / 1000.0,
        "TTFT p90 s": speed * ttft.p90 / 1000.0,
        "TTFT max s": speed * ttft.max / 1000.0,
        "per token p90 ms": speed * itl.p90 / TOKENS,
        "cached %": 100.0 * summary.hit_rate,
        "prefill / infinite cache": computed / max(1.0, needed),
    }


def session_times(outcomes: Sequence[RequestOutcome]) -> list[float]:
    """Return how long each session took from its first turn to its last answer, s."""
    spans: dict[str, tuple[float, float]] = {}
    for one in outcomes:
        end_ms = one.sent_ms + one.latency_ms
        first, last = spans.get(one.session, (one.sent_ms, end_ms))
        spans[one.session] = min(first, one.sent_ms), max(last, end_ms)
    return [(last - first) / 1000.0 for first, last in spans.values()]


def markdown(comparison: Comparison) -> str:
    """Return the table of docs/workloads/programs.md: medians and ratios to the first row."""
    about = facts()
    figures = comparison.figures()
    machine = f"{about['processors']} processors with a load of {about['load']}"
    lines = [
        f"{comparison.title}; {about['date']}, {about['commit']}, {machine}",
        "",
        f"| front door | {' | '.join(figures)} |",
        "|---|" + "---|" * len(figures),
    ]
    for name in comparison.samples:
        cells = [
            f"{comparison.median(name, one) or 0.0:,.3g} ({comparison.ratio(name, one) or 0.0:.2f})"
            for one in figures
        ]
        lines.append(f"| {name} | {' | '.join(cells)} |")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> None:
    """Play the sessions through each front door."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--trace", type=Path, required=True, help="a trace of sessions")
    parser.add_argument("--engines", type=int, default=2)
    parser.add_argument("--cache-tokens", type=int, default=500_000, help="of an engine")
    parser.add_argument("--live", type=int, default=16, help="sessions at a time")
    parser.add_argument("--programs", type=int, default=0, help="sessions; default 2 times --live")
    parser.add_argument("--turns", type=int, default=10, help="turns of each session")
    parser.add_argument("--speed", type=float, default=20.0, help="times faster than recorded")
    parser.add_argument("--only", default="", help="a part of the names of the front doors")
    found, rest = parser.parse_known_args(arguments)
    options = parse_options(f"{__doc__}\n{parser.format_help()}", rest)
    programs = found.programs or 2 * found.live
    peers = [peer for peer in front_doors() if found.only in peer.name]
    for peer in peers:
        if peer.command is None:
            print(f"left out: {peer.name}: {peer.missing}")
    most = int(0.9 * found.cache_tokens)
    sessions = choose(found.trace, programs, found.turns, LONGEST_PAUSES_S, most)
    with tempfile.TemporaryDirectory() as folder:
        trace = write_small(sessions, Path(folder) / "sessions.jsonl")
        load = Load(trace, found.engines, found.cache_tokens, found.live, found.speed)
        ways = {peer.name: partial(serve, peer, load) for peer in peers if peer.command}
        title = (
            f"{len(sessions)} sessions of {found.turns} turns, {found.live} at a time, "
            f"{found.engines} engines of {found.cache_tokens:,} tokens ({PROFILE}), "
            f"{found.speed:g} times the recorded speed, tokens / {TOKENS}"
        )
        found_out = compare(title, ways, options.rounds, 0)
    report(found_out, options)
    print(markdown(found_out))


if __name__ == "__main__":
    main()
