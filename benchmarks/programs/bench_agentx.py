"""NVIDIA's aiperf as a judge: its agentic scenario through every front door.

aiperf replays agents' sessions (`weka`), tells what share of their blocks a cache without an end
would have had, and sums up the `cached_tokens` that engines report. Engines are `kvmesh mocker`
processes in real time, with real sockets and KV events; each door gets its own, with empty caches.
"""

import argparse
import asyncio
import os
import subprocess
import tempfile
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.faults.doors import (
    Door,
    Fleet,
    Ports,
    Site,
    all_doors,
    clear_environment,
    start_mocker,
    stop_all,
)
from benchmarks.faults.load import MODEL
from benchmarks.measure import Comparison, Sample, compare, parse_options, report
from benchmarks.programs.weka import make_agents, write_weka
from kvmesh.app.ops.nats_server import NatsServer
from tests.clients.client_venv import CLIENTS
from tests.unit.app.prompts.tokenizer_models import train, write_model

DOORS: Final = (
    "kvmesh alone",
    "kvmesh meta-router",
    "vllm-router 0.1.17 cache",
    "sglang-router 0.3.2 cache",
    "smg 1.13.0 cache",
)
AMPLE: Final = 16_384
PRESSED: Final = 768
"""KV blocks of an engine: all that agents ever write, and about half of what live ones hold."""

BYTES_ALONE: Final = 260
"""Size of a vocabulary in which a token is a byte, as it is to pretend engines."""

SPARE_S: Final = 300.0
"""How much longer than its phase aiperf may take: it starts some ten processes, and warms up."""


class Load(msgspec.Struct, frozen=True):
    """What is played; `lanes`: sessions at a time, `blocks`: of an engine's cache."""

    blocks: int
    engines: int = 4
    lanes: int = 24
    seconds: int = 45
    speed: float = 0.25
    agents: int = 64
    turns: int = 20


class Judged(msgspec.Struct, frozen=True):
    """An average or total of aiperf's export."""

    avg: float
    p50: float = 0.0
    p90: float = 0.0


class Export(msgspec.Struct, frozen=True):
    """What is read of `profile_export_aiperf.json`."""

    overall_usage_prompt_cache_read_pct: Judged
    theoretical_prefix_cache_hit: Judged
    time_to_first_token: Judged
    request_latency: Judged
    request_count: Judged
    request_error_rate: Judged | None = None


def aiperf() -> Path | None:
    """Return the Python that has aiperf, None where it is not installed."""
    (venv,) = (one for one in CLIENTS if one.name == "aiperf")
    return venv.python()


def command(url: str, load: Load, inputs: Path, out: Path) -> list[str]:
    """Return aiperf's command; `inputs` has the sessions and the tokenizer."""
    return [
        *(str(aiperf()), "-m", "aiperf", "profile", "--scenario", "inferencex-agentx-mvp"),
        *("--url", url, "--model", MODEL, "--endpoint-type", "chat", "--ui", "none"),
        *("--input-file", str(inputs / "weka"), "--custom-dataset-type", "weka_trace"),
        *("--tokenizer", str(inputs / "tokenizer"), "--use-server-token-count"),
        *("--concurrency", str(load.lanes), "--benchmark-duration", str(load.seconds)),
        # The scenario's results count for others from 900 s on.
        *("--unsafe-override", "--random-seed", "7", "--artifact-dir", str(out)),
    ]


def aiperf_environment() -> Mapping[str, str]:
    """Return an environment in which aiperf reads a tokenizer of a directory: offline it looks in
    the cache of downloads alone.
    """
    kept = {name: value for name, value in os.environ.items() if not name.endswith("_OFFLINE")}
    return {**kept, "AIPERF_SERVICE_REGISTRATION_TIMEOUT": "240"}


def judge(url: str, load: Load, inputs: Path, out: Path) -> Sample:
    """Return what aiperf found. Raises `RuntimeError` with its last words when it fails, or any
    request did.
    """
    done = subprocess.run(
        command(url, load, inputs, out),
        env=aiperf_environment(),
        capture_output=True,
        text=True,
        timeout=load.seconds + SPARE_S,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"aiperf ended with {done.returncode}: {done.stdout[-2000:]}")
    return figures((out / "profile_export_aiperf.json").read_bytes())


def figures(export: bytes) -> Sample:
    """Return the figures of an export. Raises `RuntimeError` if requests failed."""
    found = msgspec.json.decode(export, type=Export)
    if found.request_error_rate is not None and found.request_error_rate.avg:
        raise RuntimeError(f"{found.request_error_rate.avg} % of the requests failed")
    read, most = found.overall_usage_prompt_cache_read_pct, found.theoretical_prefix_cache_hit
    return {
        "read / theoretical": read.avg / most.avg,
        "read %": read.avg,
        "theoretical %": most.avg,
        "TTFT mean ms": found.time_to_first_token.avg,
        "TTFT p50 ms": found.time_to_first_token.p50,
        "TTFT p90 ms": found.time_to_first_token.p90,
        "latency mean ms": found.request_latency.avg,
        "requests": found.request_count.avg,
    }


async def serve(door: Door, load: Load, inputs: Path) -> Sample:
    """Return what aiperf found behind one door, over engines of its own with empty caches."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        nats = NatsServer(folder / "nats", log_path=folder / "nats.log")
        await nats.start()
        ports = Ports(os.getpid())
        cache = f"--num-gpu-blocks-override={load.blocks}"
        options = (cache, f"--speedup-ratio={load.speed}")
        started = [
            start_mocker(ports.take(), folder, number, *options) for number in range(load.engines)
        ]
        urls, engines = zip(*started, strict=True)
        site = Site(ports, 0, urls, folder, nats.url, "agentx")
        fleet = Fleet(door, site)
        try:
            client = await fleet.open()
            url = str(client.base_url).rstrip("/")
            return await asyncio.to_thread(judge, url, load, inputs, folder / "aiperf")
        finally:
            fleet.end()
            stop_all(engines)
            await nats.stop()


def write_inputs(load: Load, folder: Path) -> Path:
    """Write the sessions and their tokenizer."""
    write_weka(make_agents(load.agents, load.turns, seed=7), folder / "weka")
    write_model(folder / "tokenizer", tokenizer=train(BYTES_ALONE))
    return folder


def judge_doors(doors: Sequence[Door], load: Load, rounds: int) -> Comparison:
    """Let the doors take turns over engines of `load`."""
    clear_environment()
    with tempfile.TemporaryDirectory() as folder:
        inputs = write_inputs(load, Path(folder))
        ways = {door.name: partial(_serve, door, load, inputs) for door in doors}
        title = (
            f"{load.lanes} agents at a time, {load.engines} engines of {load.blocks:,} blocks, "
            f"{load.seconds} s"
        )
        return compare(title, ways, rounds, 0)


def _serve(door: Door, load: Load, inputs: Path) -> Sample:
    return asyncio.run(serve(door, load, inputs))


def judged_doors(part: str = "") -> tuple[list[Door], list[Door]]:
    """Return the doors that can be judged, and those whose program is missing."""
    found = [door for door in all_doors() if door.name in DOORS and part in door.name]
    return [one for one in found if not one.missing], [one for one in found if one.missing]


def main(arguments: Sequence[str]) -> None:
    """Judge the doors with ample caches, then under pressure."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--door", default="", help="a part of the doors' names")
    parser.add_argument("--blocks", type=int, action="append", help="of an engine; repeat")
    parser.add_argument("--lanes", type=int, default=24, help="agents at a time")
    parser.add_argument("--seconds", type=int, default=45, help="of each run")
    found, rest = parser.parse_known_args(arguments)
    options = parse_options(f"{__doc__}\n{parser.format_help()}", rest)
    doors, missing = judged_doors(found.door)
    for door in missing:
        print(f"left out: {door.name}: {door.missing}")
    for blocks in found.blocks or (AMPLE, PRESSED):
        load = Load(blocks, lanes=found.lanes, seconds=found.seconds)
        report(judge_doors(doors, load, options.rounds), options)
