"""KV events through the whole mesh: from an engine's ZMQ socket until both replicas applied them.

One engine, its sidecar, one nats-server (file storage), two routers, each a process. A batch is
4 runs of 16 new blocks of 16 tokens, or one run of one block. Dynamo's standalone indexers listen
to the engine's socket themselves, with no log in between: two processes, as two replicas would.
Run as root, what is timed at once goes before other sessions of the machine, half a second a round.
"""

import asyncio
import tempfile
import time
from collections.abc import Callable, Coroutine, Sequence
from functools import partial
from itertools import accumulate
from pathlib import Path
from statistics import quantiles
from typing import Any, Final

import uvloop

from benchmarks.events.dynamo import dynamo_throughput
from benchmarks.events.mesh import (
    Batch,
    Shape,
    ahead_of_others,
    less,
    make_batches,
    publish,
    running_mesh,
    until,
)
from benchmarks.index.peers import PEER, find_dynamo
from benchmarks.measure import (
    BenchOptions,
    Candidate,
    Comparison,
    Sample,
    compare,
    parse_options,
    quiet_collector,
    report,
)
from kvmesh.observe import configure_logging

PACES: Final = ((20, Shape()), (200, Shape()), (1_000, Shape()), (200, Shape(1, 1)))
IDLE_S: Final = 2.0


async def throughput(batches: Sequence[Batch], shape: Shape, shares: list[Sample]) -> Sample:
    """Publish everything at once; stop the clock when both replicas have the last run.

    `shares` gets what each process spent.
    """
    blocks = len(batches) * shape.size()
    with tempfile.TemporaryDirectory(prefix="kvmesh-bench-", ignore_cleanup_errors=True) as name:
        async with running_mesh(Path(name)) as mesh:
            with ahead_of_others():
                before, start = mesh.spent_us(), time.perf_counter()
                await publish(mesh.engine, batches, 0)
                await until(lambda: mesh.stored() >= blocks)
                took_s = time.perf_counter() - start
                spent = less(mesh.spent_us(), before)
    shares.append({f"{role} us/block": each / blocks for role, each in spent.items()})
    total = sum(spent.values()) + spent["replica"]
    return {"blocks/s": blocks / took_s, "cpu us/block": total / blocks}


async def paced(
    batches: Sequence[Batch], shape: Shape, shares: list[Sample], *, per_second: float
) -> Sample:
    """How long after the engine published a batch have both replicas applied it?

    `shares` gets what each process spends a batch, and how much a second without any.
    """
    counts = list(accumulate(shape.size() for _ in batches))
    with tempfile.TemporaryDirectory(prefix="kvmesh-bench-", ignore_cleanup_errors=True) as name:
        async with running_mesh(Path(name)) as mesh:
            before, start = mesh.spent_us(), time.perf_counter()
            await asyncio.sleep(IDLE_S)
            idle_us = less(mesh.spent_us(), before)
            waited_s = time.perf_counter() - start
            before, start = mesh.spent_us(), time.perf_counter()
            sent = await publish(mesh.engine, batches, per_second)
            await until(lambda: mesh.stored() >= counts[-1])
            spent = less(mesh.spent_us(), before)
            took_s = time.perf_counter() - start
            applied = [notes.applied_ns(counts) for notes in mesh.notes]
    late_ms = [(max(both) - at) / 1e6 for at, *both in zip(sent, *applied, strict=True)]
    idle = {role: each / waited_s for role, each in idle_us.items()}
    own = {role: spent[role] - idle[role] * took_s for role in spent}
    share = {f"{role} us/batch": each / len(batches) for role, each in own.items()}
    shares.append(share | {f"{role} idle ms/s": each / 1e3 for role, each in idle.items()})
    cuts = quantiles(late_ms, n=100)
    total = (sum(own.values()) + own["replica"]) / counts[-1]
    return {"p50 ms": cuts[49], "p99 ms": cuts[98], "max ms": max(late_ms), "cpu us/block": total}


def main() -> None:
    configure_logging("warning", "console")
    options = parse_options("KV events from an engine's socket until both replicas applied them.")
    count = options.size(full=4_000, quick=1_000)
    report_throughput(make_batches(count, 1, Shape()), options)
    for per_second, shape in PACES:
        batches = make_batches(per_second * options.size(full=10, quick=4), 2, shape)
        title = (
            f"From ZMQ to applied by both replicas, {per_second:,} batches/s,"
            f" {per_second * shape.size():,} blocks/s"
        )
        shares: list[Sample] = []
        work = partial(paced, batches, shape, shares, per_second=per_second)
        report(compare(title, {"kvmesh": partial(go, work)}, options.rounds), options)
        report_shares(shares, options)


def report_throughput(batches: Sequence[Batch], options: BenchOptions) -> None:
    shares: list[Sample] = []
    ways: dict[str, Candidate] = {
        "kvmesh, stored": partial(go, partial(throughput, batches, Shape(), shares))
    }
    missing = find_dynamo()
    if isinstance(missing, str):
        print(missing)
    else:
        ways[f"{PEER} indexers"] = partial(go, partial(dynamo_throughput, batches, Shape()))
    blocks = len(batches) * Shape().size()
    title = f"From ZMQ to applied by both of two replicas, {blocks:,} blocks at once"
    report(compare(title, ways, options.rounds), options)
    report_shares(shares, options)


def report_shares(shares: Sequence[Sample], options: BenchOptions) -> None:
    """Print what each process spent; the first round warms up and does not count."""
    report(Comparison("Who spends it", "kvmesh", {"kvmesh": shares[1:]}), options)


def go(work: Callable[[], Coroutine[Any, Any, Sample]]) -> Sample:
    with quiet_collector():
        return uvloop.run(work())


if __name__ == "__main__":
    main()
