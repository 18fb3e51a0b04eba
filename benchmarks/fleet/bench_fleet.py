"""How large a fleet does one bucket serve, and what bends first?

Plays a bucket in virtual time: replicas of one processor each, a NATS server, workers with their
sidecars and heartbeats, at the processor time that each message was measured to cost. Prints how
busy a replica and the server are, how long requests wait, how late bookings and events are, for
1,000 workers, 8 replicas and 20,000 requests/s, and for more and less of each. `--costs FILE` takes
the costs of a run of `bench_replicas --json FILE`.
"""

import argparse
from collections.abc import Mapping, Sequence
from pathlib import Path
from statistics import quantiles
from typing import Final

import msgspec
from rich.console import Console
from rich.table import Table

from benchmarks.fleet.costs import MEASURED, PlaneCosts, RequestCosts, costs_from
from benchmarks.fleet.plane import Fleet, Load, Plane

BENT: Final = 0.9
"""A processor that is busier than this has a queue that does not end."""

LATE_S: Final = 0.02
"""Bookings later than this make replicas send bursts to the same worker."""


class Case(msgspec.Struct, frozen=True):
    """One row: a fleet and the size of its requests."""

    name: str
    size: str
    fleet: Fleet


class Outcome(msgspec.Struct, frozen=True):
    """One row of the table, as it goes to a file."""

    case: str
    size: str
    fleet: Fleet
    work: Mapping[str, float]
    replica: float
    server: float
    megabytes_s: float
    wait_p99_ms: float
    booking_lag_ms: tuple[float, float]
    event_lag_ms: tuple[float, float]
    bends: str


PLAN: Final = Fleet()


def cases() -> list[Case]:
    """Return what is asked: the plan, and more and less of everything."""
    change = msgspec.structs.replace
    found = [Case("the plan", size, PLAN) for size in MEASURED]
    found += [
        Case(f"{rate:,} requests/s", "4 KB", change(PLAN, requests_s=float(rate)))
        for rate in (5_000, 10_000, 40_000, 60_000)
    ]
    found += [
        Case(f"{count} replicas", "4 KB", change(PLAN, replicas=count)) for count in (1, 2, 4, 16)
    ]
    found += [
        Case(f"{count:,} workers", "4 KB", change(PLAN, workers=count)) for count in (250, 4_000)
    ]
    found += [
        Case(f"streams of {chunks} chunks", "4 KB", change(PLAN, chunks=float(chunks)))
        for chunks in (20, 200)
    ]
    quarter = change(PLAN, workers=250, replicas=2, requests_s=5_000.0)
    found += [Case("one of four buckets, 2 replicas", size, quarter) for size in MEASURED]
    found.append(Case("no KV events", "4 KB", change(PLAN, events=False)))
    return found


def bends(load: Load) -> str:
    """Return what is no longer bounded, "" while everything is."""
    found: list[str] = []
    if load.replica >= BENT:
        most = max(load.work, key=load.work.__getitem__)
        found.append(f"replicas, most by {most}")
    if load.server >= BENT:
        found.append("NATS server")
    if not found and _percentile(load.booking_lags, 99) > LATE_S:
        found.append("bookings late")
    if not found and _percentile(load.event_lags, 99) > 10 * LATE_S:
        found.append("events late")
    return ", ".join(found)


def play(case: Case, request: RequestCosts, costs: PlaneCosts, seconds: float) -> Outcome:
    """Return one row."""
    load = Plane(case.fleet, request, costs).run(seconds)
    return Outcome(
        case=case.name,
        size=case.size,
        fleet=case.fleet,
        work=load.work,
        replica=load.replica,
        server=load.server,
        megabytes_s=load.bytes_s / 1e6,
        wait_p99_ms=1000 * _percentile(load.waits, 99),
        booking_lag_ms=_lags(load.booking_lags),
        event_lag_ms=_lags(load.event_lags),
        bends=bends(load),
    )


def table(outcomes: Sequence[Outcome]) -> Table:
    """Return all rows for a terminal."""
    made = Table(title="a bucket in virtual time: 1,000 workers, 8 replicas, 20,000 requests/s")
    for name in HEAD:
        made.add_column(name)
    for one in outcomes:
        made.add_row(*cells(one))
    return made


HEAD: Final = (
    "case",
    "request",
    "replica busy",
    "of it requests / siblings / events / heartbeats / chunks",
    "NATS busy",
    "MB/s",
    "wait p99 ms",
    "bookings late p50 / p99 ms",
    "events late p50 / p99 ms",
    "bends",
)


def cells(one: Outcome) -> list[str]:
    """Return one row as text."""
    kinds = ("requests", "siblings", "events", "heartbeats", "chunks")
    return [
        one.case,
        one.size,
        f"{one.replica:.0%}",
        " / ".join(f"{one.work.get(kind, 0.0):.0%}" for kind in kinds),
        f"{one.server:.0%}",
        f"{one.megabytes_s:,.0f}",
        f"{one.wait_p99_ms:,.1f}",
        " / ".join(f"{lag:,.1f}" for lag in one.booking_lag_ms),
        " / ".join(f"{lag:,.1f}" for lag in one.event_lag_ms),
        one.bends,
    ]


def _lags(lags: Sequence[float]) -> tuple[float, float]:
    return 1000 * _percentile(lags, 50), 1000 * _percentile(lags, 99)


def _percentile(values: Sequence[float], percent: int) -> float:
    return quantiles(values, n=100)[percent - 1] if len(values) > 1 else 0.0


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="play 0.5 s of each case, not 3")
    parser.add_argument("--costs", type=Path, help="JSON lines of bench_replicas")
    parser.add_argument("--json", type=Path, help="append one JSON line a case to this file")
    found, _ = parser.parse_known_args()
    lines = found.costs.read_bytes().splitlines() if found.costs is not None else []
    sizes, costs = costs_from(lines)
    seconds = 0.5 if found.quick else 3.0
    outcomes = [play(case, sizes[case.size], costs, seconds) for case in cases()]
    Console(width=200).print(table(outcomes))
    if found.json is not None:
        with found.json.open("ab") as file:
            for one in outcomes:
                file.write(msgspec.json.encode(one) + b"\n")


if __name__ == "__main__":
    main()
