"""What do more processors give a bucket?

Measures the processor time that a request takes of each kind of process, all pinned to one
processor: a router alone, a meta-router, a router of a bucket of two, and its sibling, which serves
nothing but hears of each booking over NATS. Then says how many requests a second 1 to 8 processes
with a processor each would serve, if nothing but that bounds them: replicas behind meta-routers,
replicas behind any balancer.
"""

import os
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.measure import (
    BenchOptions,
    Comparison,
    Sample,
    compare,
    facts,
    parse_options,
    python_build,
    report,
)
from benchmarks.proxy.bench_proxy import engines, used_ns
from benchmarks.proxy.load import drive
from benchmarks.proxy.peers import Peer, Running, free_port, meta_router, router
from kvmesh.app.nats.server import find_nats_server

PROCESSES: Final = range(1, 9)
SIZES: Final = {400: 64, 4_000: 64, 100_000: 16}
US: Final = 1e6


class Costs(msgspec.Struct, frozen=True):
    """Processor time of one request, us: of a router `alone`, a `meta`-router, and in a bucket on
    NATS of who serves it (`replica`) and each other (`sibling`).
    """

    alone: float
    meta: float
    replica: float
    sibling: float


def replicas_rate(costs: Costs, replicas: int) -> float:
    """Return the requests a second of the replicas of a bucket, whoever spreads requests."""
    if replicas == 1:
        return US / costs.alone
    return US * replicas / (costs.replica + costs.sibling * (replicas - 1))


def mesh_rate(costs: Costs, processes: int) -> float:
    """Return the requests a second of the best split into replicas and meta-routers."""
    if processes == 1:
        return US / costs.alone
    return max(
        min(US * metas / costs.meta, replicas_rate(costs, processes - metas))
        for metas in range(1, processes)
    )


MODELS: Final[Mapping[str, Callable[[Costs, int], float]]] = {
    "replicas, meta-routers req/s": mesh_rate,
    "replicas, balancer req/s": replicas_rate,
}


def modelled(costs: Costs, of: str) -> Comparison:
    """Return the table of requests a second, a row for each number of processes."""
    rows: dict[str, Sequence[Sample]] = {
        f"{count} processors": [{name: rate(costs, count) for name, rate in MODELS.items()}]
        for count in PROCESSES
    }
    return Comparison(f"requests a second, modelled, {of}", next(iter(rows)), rows)


def replica(port: int, workers: Sequence[str], folder: Path, *, url: str, name: str) -> list[str]:
    """Return the command of one replica of a bucket."""
    mesh = [f"--nats-url={url}", "--bucket=bench", f"--router-id={name}"]
    return [*router(port, workers, folder), *mesh]


@contextmanager
def nats_server(folder: Path, cpu: int) -> Iterator[str]:
    """Run a nats-server with JetStream, give its URL."""
    port = free_port()
    own = [str(find_nats_server()), "-js", "-sd", str(folder), "-a", "127.0.0.1", "-p", str(port)]
    process = subprocess.Popen(
        ["taskset", "-c", str(cpu), *own], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )
    try:
        yield f"nats://127.0.0.1:{port}"
    finally:
        process.terminate()
        process.wait(10)


class Fleet:
    """All that is measured, started, on one processor."""

    def __init__(self, stack: ExitStack, folder: Path) -> None:
        cpus = sorted(os.sched_getaffinity(0))
        self._stack, self._folder, self._cpu = stack, folder, cpus[0]
        os.sched_setaffinity(0, {cpus[-1]})
        self._urls = stack.enter_context(engines(cpus[-1]))
        url = stack.enter_context(nats_server(folder / "nats", cpus[-1]))
        self.alone = self._start("alone", router)
        self.meta = self._start("meta", meta_router)
        self.replica = self._start("replica", partial(replica, url=url, name="r0"))
        self.sibling = self._start("sibling", partial(replica, url=url, name="r1"))
        self._sent = 0

    def _start(self, name: str, command: Callable[..., list[str]]) -> Running:
        running = Running(Peer(name, command), self._urls, self._folder / name, self._cpu)
        self._stack.callback(running.stop)
        return running

    def sample(self, size: int, seconds: float) -> Sample:
        """Return what a request of `size` bytes costs each of them, us."""
        replica, sibling = self._serve(self.replica, size, seconds, self.sibling)
        return {
            "alone us": self._serve(self.alone, size, seconds)[0],
            "meta us": self._serve(self.meta, size, seconds)[0],
            "replica us": replica,
            "sibling us": sibling,
        }

    def _serve(
        self, proxy: Running, size: int, seconds: float, other: Running | None = None
    ) -> tuple[float, float]:
        """Return the time of a proxy, and of the other beside what it takes while nobody asks for
        anything.
        """
        idle = before = 0
        if other is not None:
            idle = used_ns(other)
            time.sleep(seconds)
            before = used_ns(other)
            idle = before - idle
        own = used_ns(proxy)
        served = drive(proxy.port, size, SIZES[size], seconds, self._sent)
        self._sent += served.requests
        spent = used_ns(proxy) - own
        beside = 0 if other is None else max(0, used_ns(other) - before - idle)
        return spent / served.requests / 1000, beside / served.requests / 1000


def costs_of(comparison: Comparison, name: str) -> Costs:
    """Return the medians of what was measured."""
    found = {figure: comparison.median(name, figure) or 0.0 for figure in comparison.figures()}
    return Costs(**{figure.removesuffix(" us"): value for figure, value in found.items()})


def measure_costs(fleet: Fleet, options: BenchOptions) -> None:
    """Print what a request costs each kind of process, and what follows of it."""
    seconds = 1.0 if options.quick else 3.0
    for size, connections in SIZES.items():
        name = f"{size:,} B, {connections} in flight"
        measured = compare(
            f"processor time a request, {name}",
            {name: partial(fleet.sample, size, seconds)},
            options.rounds,
        )
        report(measured, options)
        report(modelled(costs_of(measured, name), name), options)


def main() -> None:
    options = parse_options(str(__doc__))
    print(python_build())
    if options.json is not None:
        with options.json.open("ab") as file:
            file.write(msgspec.json.encode({"facts": facts()}) + b"\n")
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        measure_costs(Fleet(stack, folder), options)


if __name__ == "__main__":
    main()
