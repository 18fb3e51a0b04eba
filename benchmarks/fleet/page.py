"""`python -m benchmarks.fleet.page COSTS.jsonl FLEET.jsonl > docs/measured/fleet.md`.

The files are what `bench_replicas` and `bench_fleet` append with `--json`.
"""

import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.cost.page import Run, table
from benchmarks.fleet.bench_fleet import HEAD as FLEET_HEAD
from benchmarks.fleet.bench_fleet import Outcome, cells
from benchmarks.fleet.capacity import (
    USED,
    most_blocks_s,
    most_chunks_s,
    most_requests_s,
    most_workers,
)
from benchmarks.fleet.costs import PlaneCosts, RequestCosts, costs_from
from benchmarks.fleet.law import Costs, speed_up
from benchmarks.fleet.plane import Fleet

KINDS: Final = ("without KV events", "with KV events")
SIZES: Final = ("400 B", "4 KB", "100 KB")
REPLICAS: Final = (2, 4, 8)
GOALS: Final = {"400 B": (0.03, 150.0), "4 KB": (0.05, 500.0), "100 KB": (0.05, 2_000.0)}
"""Most that a sibling's share and the bytes of a request shall be."""

INTRODUCTION: Final = """# How large a fleet one bucket serves
Replicas of a bucket each hold the whole index and know all bookings, so that each decides as one
would. What does not divide among them is what each has to hear: its siblings' bookings, the
journal of all workers, heartbeats. This page says what that costs, and where it ends. Made by
`make bench-fleet`; [benchmarks/README.md](../../benchmarks/README.md) says how figures are made.
"""

CAPACITY: Final = """
## What a bucket serves
Requests a second at which {used:.0%} of each replica's processor is used, by its number of
replicas, for {workers:,} workers with KV events (sums of the costs below; answers that come whole,
bytes of bodies included). A replica forwards {chunks:,.0f} chunks of streams a second if that is
all it does; every chunk that a request brings comes on top of its cost. Replicas follow
{blocks:,.0f} blocks a second in batches of 64, and the heartbeats and records of {most:,.0f}
workers, whatever their number. Each holds the whole index: 18 to 24 bytes a (worker, block) pair,
so 500,000 blocks at each of {workers:,} workers take some 11 GB, beside 50 MB of its own.
"""

LAW: Final = """
## What a sibling pays
Processor time of one request, microseconds: at a router alone, at a replica that serves it and at
each other replica, which only hears of it; and its bytes on NATS. sigma is the sibling's share
of the replica's time: R replicas do R / (1 + sigma (R - 1)) times the work of one, and no number
of them more than 1 / sigma. Byte tokens, one process of each on one processor; a goal that is
met is bold. Left out: TLS, signatures, streams.
"""

PLANE: Final = """
## What the event plane costs a replica
Microseconds of a replica's processor, whoever serves the requests: a record of the journal (a
batch of one worker's events), each block in it, a worker's heartbeat.
"""

PLAN: Final = """
## A fleet in virtual time
Each replica is one processor that does one thing after another, the NATS server has two; every
message takes the processor time that was measured, a hop takes 0.2 ms. Each of 1,000 workers'
sidecars appends what its engine stored and removed 20 times a second; blocks have 16 tokens, half
of a prompt's are new. "late" is from a decision, or an engine's batch, until the last replica has
applied it. Costs of NATS are those of `benchmarks/fleet/costs.py`. Left out: snapshots, collisions
of several timers, the network's bandwidth, garbage collection.
"""

BENDS: Final = Path(__file__).with_name("bends.md")


def capacity_lines(sizes: Mapping[str, RequestCosts], plane: PlaneCosts) -> list[str]:
    """Return what a bucket serves, by its number of replicas."""
    fleet = Fleet()
    text = CAPACITY.format(
        used=USED,
        workers=fleet.workers,
        chunks=most_chunks_s(1, plane),
        blocks=most_blocks_s(plane),
        most=most_workers(fleet, plane),
    )
    fleets = [msgspec.structs.replace(fleet, replicas=count) for count in (1, *REPLICAS)]
    rows = [
        [size, *(f"{most_requests_s(one, request, plane):,.0f}" for one in fleets)]
        for size, request in sizes.items()
    ]
    head = ["request", *(f"{one.replicas} replicas" for one in fleets)]
    return [*text.splitlines(), "", *table(head, rows)]


def page(
    run: Run,
    outcomes: Sequence[Outcome],
    sizes: Mapping[str, RequestCosts],
    plane: PlaneCosts,
) -> str:
    """Return the whole page."""
    lines = INTRODUCTION.splitlines()
    for facts in run.facts[:1]:
        reported = ", ".join(f"{name} {value}" for name, value in facts.items())
        lines += ["", f"Recorded: {reported}."]
    lines += capacity_lines(sizes, plane)
    head = ["request", "alone", "replica", "sibling", "sigma", "bytes", *_times()]
    for kind in KINDS:
        rows = [row for size in SIZES if (row := law_row(run, kind, size))]
        lines += [
            *(LAW.splitlines() if kind == KINDS[0] else []),
            "",
            f"{kind[0].upper()}{kind[1:]}:",
            "",
        ]
        lines += table(head, rows)
    if titles := run.titles("processor time of what the event plane"):
        figures = run.figures(titles[0])
        values = [f"{run.median(titles[0], 'plane', one) or 0.0:.2f}" for one in figures]
        lines += [*PLANE.splitlines(), "", *table(figures, [values])]
    lines += [*PLAN.splitlines(), "", *table(FLEET_HEAD, map(cells, outcomes))]
    return "\n".join([*lines, "", BENDS.read_text()])


def law_row(run: Run, kind: str, size: str) -> list[str]:
    """Return what was measured of one size, and what follows for some replicas."""
    titles = run.titles(f"processor time a request, {kind}, {size},")
    if not titles:
        return []
    found = {name: run.median(titles[0], size, f"{name} us") for name in Costs.__struct_fields__}
    costs = Costs(**{name: us or 0.0 for name, us in found.items()})
    sent = run.median(titles[0], size, "bytes") or 0.0
    most_sigma, most_bytes = GOALS[size]
    return [
        size,
        *(f"{us:,.1f}" for us in (costs.alone, costs.replica, costs.sibling)),
        _goal(f"{costs.sigma:.3f}", met=costs.sigma <= most_sigma),
        _goal(f"{sent:,.0f}", met=sent <= most_bytes),
        *(f"{speed_up(costs.sigma, count):.2f}" for count in REPLICAS),
    ]


def _goal(shown: str, *, met: bool) -> str:
    return f"**{shown}**" if met else shown


def _times() -> list[str]:
    return [f"{count} replicas do" for count in REPLICAS]


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: python -m benchmarks.fleet.page COSTS.jsonl FLEET.jsonl")
    costs, fleet = (Path(name).read_bytes().splitlines() for name in sys.argv[1:])
    outcomes = [msgspec.json.decode(line, type=Outcome) for line in fleet if line.strip()]
    sys.stdout.write(page(Run(costs), outcomes, *costs_from(costs)))


if __name__ == "__main__":
    main()
