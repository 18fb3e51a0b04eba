"""What do more processors give a bucket?

Measures the processor time that a request takes of each kind of process, all pinned to one
processor: a router alone, a meta-router, a router of a bucket of two, and its sibling, which serves
nothing but hears of each booking over NATS. Once without KV events and once with them, when workers
are heard by their heartbeats. Then says how many requests a second 1 to 8 processes with a
processor each would serve, if nothing but that bounds them: replicas behind meta-routers, replicas
behind any balancer; R replicas do R / (1 + sigma (R - 1)) times one's work. What a journal record,
a block and a heartbeat cost a replica is measured beside: `bench_fleet` plays a fleet with it.
"""

import http.client
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from benchmarks.fleet.law import costs_of, modelled
from benchmarks.measure import (
    BenchOptions,
    Sample,
    compare,
    facts,
    parse_options,
    python_build,
    report,
)
from benchmarks.proxy.bench_proxy import engines, used_ns
from benchmarks.proxy.load import drive
from benchmarks.proxy.peers import Peer, Running, environment, free_port, meta_router, router
from kvmesh.app.ops.nats_server import find_nats_server
from kvmesh.transport.http.wire.sockets import raise_open_files_limit

SIZES: Final = {"400 B": (400, 64), "4 KB": (4_000, 64), "100 KB": (100_000, 16)}
RECORDS_S: Final = 5_000.0
FEW_BLOCKS: Final = 16
MANY_BLOCKS: Final = 256
CROWD: Final = 1_000
"""Workers whose heartbeats are timed."""


class Nats(NamedTuple):
    """A running server: what clients connect to, and where it tells what it counted."""

    url: str
    monitor: int

    def bytes_in(self) -> int:
        """Return the bytes that clients have sent so far."""
        connection = http.client.HTTPConnection("127.0.0.1", self.monitor, timeout=5)
        try:
            connection.request("GET", "/varz")
            return int(msgspec.json.decode(connection.getresponse().read())["in_bytes"])
        finally:
            connection.close()


def replica(
    port: int, workers: Sequence[str], folder: Path, *, url: str, name: str, events: bool
) -> list[str]:
    """Return the command of one replica of a bucket."""
    mesh = [f"--nats-url={url}", f"--bucket={bucket_of(events)}", f"--router-id={name}"]
    if not events:
        return [*router(port, workers, folder), *mesh]
    own = [f"--http-port={port}", "--log-level=warning", *mesh]
    return [sys.executable, "-m", "kvmesh", "router", *own]


def bucket_of(events: bool) -> str:
    """Return the bucket whose replicas follow events, or the other."""
    return "events" if events else "guesses"


@contextmanager
def nats_server(folder: Path, cpu: int) -> Iterator[Nats]:
    """Run a nats-server with JetStream."""
    port, monitor = free_port(), free_port()
    own = [str(find_nats_server()), "-js", "-sd", str(folder), "-a", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(
        ["taskset", "-c", str(cpu), *own, "-m", str(monitor)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        yield Nats(f"nats://127.0.0.1:{port}", monitor)
    finally:
        process.terminate()
        process.wait(10)


@contextmanager
def sidecars(
    url: str, cpu: int, named: Sequence[str], *, records: float = 0.0, blocks: int = FEW_BLOCKS
) -> Iterator[None]:
    """Have workers heard by their heartbeats and journal records."""
    own = [f"--nats-url={url}", f"--bucket={bucket_of(True)}", f"--records={records}"]
    process = subprocess.Popen(
        [
            *("taskset", "-c", str(cpu), sys.executable, "-m", "benchmarks.fleet.source", *own),
            *(f"--blocks={blocks}", *(f"--worker={one}" for one in named)),
        ],
        stdout=subprocess.PIPE,
        env=environment(),
    )
    assert process.stdout is not None
    try:
        if not process.stdout.readline().startswith(b"ready"):
            raise RuntimeError("the pretend sidecars did not start")
        yield
    finally:
        process.terminate()
        process.wait(10)


class Fleet:
    """All that is measured, started, on one processor."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        cpus = sorted(os.sched_getaffinity(0))
        self._stack, self._folder, self._cpu = stack, folder, cpus[0]
        self._other_cpu = cpus[-1]
        os.sched_setaffinity(0, {cpus[-1]})
        self._urls = stack.enter_context(engines(cpus[-1]))
        self.nats = stack.enter_context(nats_server(folder / "nats", cpus[-1]))
        self.named = [f"w{number}={url}" for number, url in enumerate(self._urls)]
        stack.enter_context(sidecars(self.nats.url, cpus[-1], self.named))
        self.alone = self._start("alone", router)
        self.meta = self._start("meta", meta_router)
        self.pairs = {
            events: [
                self._start(
                    f"{name}-{bucket_of(events)}",
                    partial(replica, url=self.nats.url, name=name, events=events),
                )
                for name in ("r0", "r1")
            ]
            for events in (False, True)
        }
        self._sent = 0

    def _start(self, name: str, command: Callable[..., list[str]]) -> Running:
        running = Running(Peer(name, command), self._urls, self._folder / name, self._cpu)
        self._stack.callback(running.stop)
        return running

    def sample(self, size: str, seconds: float, *, events: bool) -> Sample:
        """Return what a request of a size costs each of them, us, and its bytes on NATS."""
        first, second = self.pairs[events]
        own, sibling, sent = self._serve(first, size, seconds, second)
        return {
            "alone us": self._serve(self.alone, size, seconds)[0],
            "meta us": self._serve(self.meta, size, seconds)[0],
            "replica us": own,
            "sibling us": sibling,
            "bytes": sent,
        }

    def _serve(
        self, proxy: Running, size: str, seconds: float, other: Running | None = None
    ) -> tuple[float, float, float]:
        """Return the time of a proxy, and of the other beside what it takes while nobody asks for
        anything, and the bytes beside those of such a time.
        """
        idle = before = quiet = sent = 0
        if other is not None:
            idle, quiet = used_ns(other), self.nats.bytes_in()
            time.sleep(seconds)
            before, sent = used_ns(other), self.nats.bytes_in()
            idle, quiet = before - idle, sent - quiet
        own = used_ns(proxy)
        begun = time.monotonic()
        bytes_each, connections = SIZES[size]
        served = drive(proxy.port, bytes_each, connections, seconds, self._sent)
        longer = (time.monotonic() - begun) / seconds
        self._sent += served.requests
        spent = used_ns(proxy) - own
        beside = 0.0 if other is None else max(0.0, used_ns(other) - before - idle * longer)
        reported = 0.0 if other is None else max(0.0, self.nats.bytes_in() - sent - quiet * longer)
        if not (count := served.requests):
            raise RuntimeError(
                f"{proxy.name} answered nothing within {seconds} s: is the machine busy?"
            )
        return spent / count / 1000, beside / count / 1000, reported / count

    def plane(self, seconds: float) -> Sample:
        """Return what a record of the journal, a block of it and a heartbeat cost a replica, us.

        From what it takes with records of few and of many blocks, and with a crowd of workers.
        """
        few = self._idle_us(seconds, records=RECORDS_S, blocks=FEW_BLOCKS)
        many = self._idle_us(seconds, records=RECORDS_S, blocks=MANY_BLOCKS)
        none = self._idle_us(seconds)
        crowd = self._idle_us(seconds, workers=CROWD)
        # A record stores as many blocks as it removes.
        block = max(0.0, many - few) / RECORDS_S / 2 / (MANY_BLOCKS - FEW_BLOCKS)
        return {
            "block us": block,
            "record us": max(0.0, (few - none) / RECORDS_S - 2 * FEW_BLOCKS * block),
            "worker beat us": max(0.0, (crowd - none) / CROWD),
        }

    def _idle_us(
        self, seconds: float, *, workers: int = 1, records: float = 0.0, blocks: int = FEW_BLOCKS
    ) -> float:
        """Return a replica's processor time a second, us, while nobody asks for anything."""
        url = self._urls[0]
        named = [f"crowd{number}={url}" for number in range(workers)]
        proxy = self.pairs[True][1]
        source = sidecars(self.nats.url, self._other_cpu, named, records=records, blocks=blocks)
        with source:
            time.sleep(3.0)  # Until a crowd has joined.
            before, begun = used_ns(proxy), time.monotonic()
            time.sleep(seconds)
            return (used_ns(proxy) - before) / 1000 / (time.monotonic() - begun)


def measure_costs(fleet: Fleet, options: BenchOptions) -> None:
    """Print what a request costs each kind of process, and what follows of it."""
    seconds = 1.0 if options.quick else 3.0
    for events in (False, True):
        kind = "with KV events" if events else "without KV events"
        for size, (_, connections) in SIZES.items():
            measured = compare(
                f"processor time a request, {kind}, {size}, {connections} in flight",
                {size: partial(fleet.sample, size, seconds, events=events)},
                options.rounds,
            )
            report(measured, options)
            report(modelled(costs_of(measured, size), f"{kind}, {size}"), options)
    plane = compare(
        "processor time of what the event plane brings a replica",
        {"plane": partial(fleet.plane, seconds)},
        1 if options.quick else 3,
        warm_up=0,
    )
    report(plane, options)


def main() -> None:
    options = parse_options(str(__doc__))
    print(python_build())
    raise_open_files_limit()
    if options.json is not None:
        with options.json.open("ab") as file:
            file.write(msgspec.json.encode({"facts": facts()}) + b"\n")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        measure_costs(Fleet(stack, folder), options)


if __name__ == "__main__":
    main()
