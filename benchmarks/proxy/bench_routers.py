"""The same conversations through every front door, over the same pretend engines.

Each candidate starts with empty caches, gets the same slice of a trace at the recorded pauses,
and is judged by its clients: time to the first token, and the share of prompt tokens that the
engines say they reused. The engines are `kvmesh mocker` processes in real time, with real sockets,
real KV events and a cache too small for everything.
"""

import argparse
import asyncio
import os
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib.util import find_spec
from pathlib import Path

import msgspec

from benchmarks.measure import Sample, compare, cpu_ns, parse_options, report
from benchmarks.proxy.dynamo import KV_BLOCKS
from benchmarks.proxy.peers import Peer, Running, all_peers, free_port
from benchmarks.quality.workloads import WORKLOADS
from benchmarks.started import Started
from kvmesh_lab.replay.command import ReplayOptions, run_replay
from kvmesh_lab.report.statistics import RunSummary
from kvmesh_lab.traces.trace import TraceRequest

ENGINES = 4
ENGINE_SPEED = 0.2
"""Slower than life, so that prefill, not this machine, is what clients wait for."""
MAX_INPUT_TOKENS = 8_000
OUTPUT_TOKENS = 48
LEFT_OUT = (
    "kvmesh plain",
    "kvmesh router (kv), tokenizer",
    "kvmesh router (round robin)",
    "kvmesh meta-router",
)
"""Peers of bench_proxy that do not route, or not otherwise than another."""


def follower(name: str, mode: str) -> Peer:
    """Return a kvmesh router that follows the engines' KV events itself, without NATS."""

    def command(port: int, workers: Sequence[str], _: Path) -> list[str]:
        named = [f"--worker=w{number}={url}" for number, url in enumerate(workers)]
        own = [f"--http-port={port}", "--log-level=warning", f"--router-mode={mode}"]
        return [sys.executable, "-m", "kvmesh", "router", *own, *named]

    return Peer(name, command)


def dynamo(port: int, workers: Sequence[str], _: Path) -> list[str]:
    return [sys.executable, "-m", "benchmarks.proxy.dynamo", str(port), *workers]


def front_doors() -> list[Peer]:
    """Return what is compared, the baseline first."""
    installed = find_spec("dynamo") is not None
    return [
        follower("round robin", "round-robin"),
        follower("kvmesh, KV events", "kv"),
        Peer("dynamo 1.6.1 selection", dynamo if installed else None, "pip install '.[bench]'"),
        *(peer for peer in all_peers() if peer.name not in LEFT_OUT),
    ]


@contextmanager
def fresh_engines(folder: Path) -> Iterator[list[str]]:
    """Run the pretend engines with empty caches, give their URLs."""
    folder.mkdir(parents=True, exist_ok=True)
    running: list[Started] = []
    try:
        for number in range(ENGINES):
            port = free_port()
            ports = ["--http-port", str(port), "--kv-events-port", "0", "--kv-replay-port", "0"]
            engine = [f"--num-gpu-blocks-override={KV_BLOCKS}", f"--speedup-ratio={ENGINE_SPEED}"]
            engine += ["--model=m", "--log-level=warning"]
            log = folder / f"engine{number}.log"
            running.append(Started(["kvmesh", "mocker", *ports, *engine], port, log))
        for started in running:
            started.wait(lambda one: bool(one.ask("/v1/models")))
        yield [f"http://127.0.0.1:{started.port}" for started in running]
    finally:
        for started in running:
            started.kill()


class Load(msgspec.Struct, frozen=True):
    """Which slice of which trace is sent, how fast, and on which processor the front door runs."""

    trace: Path
    requests: int
    speedup: float
    cpu: int


def serve(peer: Peer, load: Load) -> Sample:
    """Return what clients saw of one candidate; its engines start with empty caches."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with fresh_engines(folder) as urls:
            door = Running(peer, urls, folder / "door", load.cpu)
            try:
                before = sum(map(cpu_ns, door.pids))
                summary = asyncio.run(send(f"http://127.0.0.1:{door.port}", load))
                used_us = (sum(map(cpu_ns, door.pids)) - before) / 1000
            finally:
                door.stop()
    return figures(summary, used_us)


async def send(url: str, load: Load) -> RunSummary:
    options = ReplayOptions(
        load.trace,
        url=url,
        model="m",
        requests=load.requests,
        speedup=load.speedup,
        max_input_tokens=MAX_INPUT_TOKENS,
        output_tokens=OUTPUT_TOKENS,
        progress=False,
    )
    return (await run_replay(options)).runs[0].summary


def figures(summary: RunSummary, used_us: float) -> Sample:
    ttft = summary.ttft_ms
    assert ttft is not None, f"nothing succeeded: {summary.errors}"
    assert not summary.errors, f"some failed: {summary.errors}"
    return {
        "recomputed %": 100 * (1 - summary.hit_rate),
        "p50 ms": ttft.p50,
        "p90 ms": ttft.p90,
        "cpu us": used_us / summary.requests,
    }


def write_trace(requests: Sequence[TraceRequest], path: Path) -> Path:
    """Write a generated workload as a trace in Mooncake's format."""
    lines = (
        msgspec.json.encode(
            {
                "timestamp": one.timestamp_ms,
                "input_length": one.input_tokens,
                "output_length": one.output_tokens,
                "hash_ids": one.block_ids,
                "session_id": one.session,
                "delay": one.delay_ms,
            }
        )
        for one in requests
    )
    path.write_bytes(b"\n".join(lines))
    return path


def main() -> None:
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--trace", type=Path, help="a trace instead of the generated workloads")
    parser.add_argument("--requests", type=int, default=0, help="so many of its requests")
    parser.add_argument("--speedup", type=float, default=1.0, help="times the recorded speed")
    parser.add_argument("--only", default="", help="a part of the names of the front doors")
    found, rest = parser.parse_known_args()
    options = parse_options(f"{__doc__}\n{parser.format_help()}", rest)
    requests = found.requests or options.size(full=400, quick=60)
    peers = [peer for peer in front_doors() if found.only in peer.name]
    for peer in peers:
        if peer.command is None:
            print(f"left out: {peer.name}: {peer.missing}")
    with tempfile.TemporaryDirectory() as folder:
        traces = (
            {found.trace.name: found.trace}
            if found.trace
            else {
                name: write_trace(make(requests), Path(folder) / f"{number}_b64.jsonl")
                for number, (name, make) in enumerate(WORKLOADS.items())
            }
        )
        for name, trace in traces.items():
            load = Load(trace, requests, found.speedup, max(os.sched_getaffinity(0)))
            ways = {peer.name: partial(serve, peer, load) for peer in peers if peer.command}
            report(compare(f"{name}, {requests} requests", ways, options.rounds, 0), options)


if __name__ == "__main__":
    main()
