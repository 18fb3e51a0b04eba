"""What one hop costs: processor time per request and per streamed chunk, latency, memory.

The proxy runs on one processor, load and pretend engines on another; its time comes from /proc, so
the load generator may be slow without changing the figure.
"""

import argparse
import asyncio
import contextlib
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from statistics import median
from typing import NamedTuple

import httpx
import msgspec
import uvloop

from benchmarks.measure import (
    BenchOptions,
    Candidate,
    Sample,
    compare,
    cpu_ns,
    facts,
    parse_options,
    python_build,
    report,
    resident_bytes,
)
from benchmarks.proxy.load import DEADLINE_S, WRK, Streams, drive, drive_open
from benchmarks.proxy.peers import BASELINE, Peer, Running, all_peers, environment
from kvmesh.transport.http.wire.sockets import raise_open_files_limit

WORKERS = 4
OPEN_RATE = 1_500
QUICK_PROXIES = ("kvmesh plain", "(kv), tokenizer", "(round robin)", "sglang-router")
MIB = 1024**2
SHORT = "400 B requests, 64 in flight"
MEDIUM = "4 KB requests, 64 in flight"
LONG = "100 KB requests, 16 in flight"
ALONE = "400 B requests, one at a time"
OPEN = f"400 B requests, {OPEN_RATE:,}/s in an open loop"
CHUNKS = "12,800 chunks/s: 256 streams"
SATURATED = "saturated: 256 streams, a chunk each 4 ms"
MEMORY = "memory of open streams"
LEAVING_CLIENTS = 20


@contextmanager
def engines(cpu: int) -> Iterator[list[str]]:
    """Run the pretend engines, give their URLs."""
    process = subprocess.Popen(
        ["taskset", "-c", str(cpu), sys.executable, "-m", "benchmarks.proxy.workers", str(WORKERS)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    assert process.stdin is not None
    try:
        yield [f"http://127.0.0.1:{port.decode()}" for port in process.stdout.readline().split()]
    finally:
        process.stdin.close()
        process.wait(5)


class Direct(NamedTuple):
    """No proxy: what the others add to."""

    port: int
    name: str = "no proxy"
    pids: tuple[int, ...] = ()


Way = Running | Direct


def used_ns(proxy: Way) -> int:
    """Return the processor time of all processes of a proxy so far."""
    return sum(map(cpu_ns, proxy.pids))


_sent: Counter[tuple[str, int]] = Counter()
"""Chats of each size that each proxy was sent so far: the next sample goes on behind them."""


def requests_sample(proxy: Way, size: int, connections: int, seconds: float) -> Sample:
    """Return what requests cost at `connections` in flight; 0: in an open loop."""
    first = _sent[proxy.name, size]
    before = used_ns(proxy)
    if connections:
        served = drive(proxy.port, size, connections, seconds, first)
    else:
        served = uvloop.run(drive_open(proxy.port, size, OPEN_RATE, seconds, first))
    _sent[proxy.name, size] += served.requests
    used_us = (used_ns(proxy) - before) / 1000
    return {
        "cpu us": used_us / served.requests,
        "p50 us": served.p50_us,
        "p99 us": served.p99_us,
        "req/s": served.requests / seconds,
    }


async def stream_sample(proxy: Way, streams: int, interval_ms: int, seconds: float) -> Sample:
    """Return what a chunk costs on streams that already run."""
    client = Streams()
    await client.open(proxy.port, streams, interval_ms)
    before, chunks, start = used_ns(proxy), client.chunks, time.monotonic()
    await asyncio.sleep(seconds)
    used_us, seen = (used_ns(proxy) - before) / 1000, client.chunks - chunks
    elapsed = time.monotonic() - start
    await client.close()
    return {"cpu us": used_us / seen, "chunks/s": seen / elapsed}


async def leaving_sample(engines: Sequence[str], proxy: Way) -> Sample:
    """Return how long after its client left a stream the engine sees the end of it."""
    took_ms: list[float] = []
    for _ in range(LEAVING_CLIENTS):
        client = Streams()
        await client.open(proxy.port, 1, 20)
        known = len(left_ns(engines))
        start = time.monotonic_ns()
        await client.close()
        deadline = time.monotonic() + DEADLINE_S
        while len(seen := left_ns(engines)) == known:
            if time.monotonic() > deadline:
                raise RuntimeError(f"{proxy.name}: the engine never saw a client leave")
            await asyncio.sleep(0.05)
        took_ms.append((max(seen) - start) / 1e6)
    return {"p50 ms": median(took_ms), "max ms": max(took_ms)}


def left_ns(engines: Sequence[str]) -> list[int]:
    """Return when streams were left, by the engines' clock, which is ours."""
    return [when for url in engines for when in httpx.get(f"{url}/left", timeout=10).json()]


async def memory_sample(start: Callable[[], Running], streams: int) -> Sample:
    """Return what open streams weigh in a proxy just started that has seen requests before."""
    proxy = start()
    try:
        drive(proxy.port, 400, 16, 3.0)
        before = sum(map(resident_bytes, proxy.pids))
        client = Streams()
        await client.open(proxy.port, streams, 1000)
        await asyncio.sleep(1.5)
        grown = sum(map(resident_bytes, proxy.pids)) - before
        await client.close()
    finally:
        proxy.stop()
    return {"MiB per 1,000 streams": grown / MIB * 1000 / streams, "MiB idle": before / MIB}


def run_cases(
    options: BenchOptions, proxies: Sequence[Way], engines: Sequence[str], only: str
) -> None:
    seconds = 1.0 if options.quick else 3.0

    def each(sample: Callable[[Way], Sample]) -> Mapping[str, Candidate]:
        return {proxy.name: partial(sample, proxy) for proxy in proxies}

    cases: list[tuple[str, Callable[[Way], Sample]]] = [
        (SHORT, lambda p: requests_sample(p, 400, 64, seconds)),
        (CHUNKS, lambda p: uvloop.run(stream_sample(p, 256, 20, seconds))),
    ]
    if only or not options.quick:
        cases += [
            (MEDIUM, lambda p: requests_sample(p, 4_000, 64, seconds)),
            (LONG, lambda p: requests_sample(p, 100_000, 16, seconds)),
            (ALONE, lambda p: requests_sample(p, 400, 1, seconds)),
            (OPEN, lambda p: requests_sample(p, 400, 0, seconds)),
            (SATURATED, lambda p: uvloop.run(stream_sample(p, 256, 4, seconds))),
            ("3,200 chunks/s: 64 streams", lambda p: uvloop.run(stream_sample(p, 64, 20, seconds))),
            ("clients leave streams", lambda p: uvloop.run(leaving_sample(engines, p))),
        ]
    for title, sample in cases:
        if only not in title:
            continue
        report(compare(title, each(sample), options.rounds), options)


def run_memory(
    options: BenchOptions, peers: Sequence[Peer], start: Callable[[Peer], Running]
) -> None:
    streams = options.size(full=1000, quick=300)
    candidates = {
        peer.name: lambda peer=peer: uvloop.run(memory_sample(lambda: start(peer), streams))
        for peer in peers
    }
    report(compare(MEMORY, candidates, 1 if options.quick else 3), options)


class Own(NamedTuple):
    """What this benchmark can be told besides: parts of the titles and of the names wanted, and
    whether other processes may disturb it.
    """

    only: str
    proxies: Sequence[str]
    polite: bool

    def wants(self, peer: Peer) -> bool:
        """Return whether a proxy takes part: the baseline and ours always do."""
        always = peer.name in {BASELINE, "kvmesh router (kv)"}
        return always or any(part in peer.name for part in self.proxies)


def parse_own() -> tuple[Own, list[str]]:
    """Return what is this benchmark's own and the arguments that every benchmark takes."""
    parser = argparse.ArgumentParser(add_help=False)
    parser.add_argument("--only", default="", help="a part of the titles of the tables to make")
    parser.add_argument("--proxy", action="append", help="a part of the names wanted; repeat")
    parser.add_argument("--polite", action="store_true", help="take no real-time priority")
    found, rest = parser.parse_known_args()
    proxies = found.proxy or (QUICK_PROXIES if "--quick" in rest else [""])
    return Own(found.only, proxies, found.polite), rest


def outrun_neighbours() -> bool:
    """Take real-time priority, where allowed: other processes then wait instead of disturbing."""
    with contextlib.suppress(PermissionError):
        os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))
        return True
    return False


def keep_facts(options: BenchOptions, *, priority: bool) -> None:
    """Write what the figures depend on where they will be written."""
    if options.json is not None:
        with options.json.open("ab") as file:
            file.write(
                msgspec.json.encode(
                    {"facts": {**facts(), "priority": "real-time" if priority else "usual"}}
                )
                + b"\n"
            )


def main() -> None:
    own, rest = parse_own()
    only = own.only
    options = parse_options(str(__doc__), rest)
    raise_open_files_limit()
    quiet = not own.polite and outrun_neighbours()
    cpus = sorted(os.sched_getaffinity(0))
    proxy_cpu, load_cpu = cpus[0], cpus[-1]
    os.sched_setaffinity(0, {load_cpu})
    print(python_build())
    print(f"proxy on processor {proxy_cpu}, load and engines on {load_cpu};", end=" ")
    print("real-time priority;" if quiet else "no real-time priority: others disturb;", end=" ")
    print(f"closed loops by {WRK or 'the Python client: wrk is not installed'}")
    keep_facts(options, priority=quiet)
    peers = [peer for peer in all_peers() if peer.command is not None and own.wants(peer)]
    peers.sort(key=lambda peer: peer.name != BASELINE)
    for peer in all_peers():
        if peer.missing:
            print(f"left out: {peer.name}: {peer.missing}")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        urls = stack.enter_context(engines(load_cpu))
        proxies: list[Running] = []

        def start(peer: Peer) -> Running:
            return Running(peer, urls, folder / peer.name.replace(" ", "-"), proxy_cpu)

        for peer in peers:
            proxies.append(start(peer))
            stack.callback(proxies[-1].stop)
        direct = Direct(int(urls[0].rpartition(":")[2]))
        run_cases(options, [*proxies, direct], urls, only)
        if only in MEMORY and not (options.quick and not only):
            run_memory(options, peers, start)


if __name__ == "__main__":
    main()
