"""Fleets that get more than they can do: who waits, who is refused, what is served in time.

    python -m benchmarks.programs.bench_overload --trace A.jsonl.gz --trace B.jsonl.gz
        [--load 1.2,1.5] [--requests N] [--engines N] [--ttft-ms MS] [--tpot-ms MS] [--page FILE]
        [--capacity SPEEDUP,SPEEDUP]

Loads are relative to the rate at which the formula of seed 002 saturates. Every policy gets the
same requests at the same times. That rate is searched, some eight runs a trace, unless --capacity
tells it of each, as a multiple of the recorded one. With --page its part behind "## Measured" is
written anew. The last columns: mean and p99 TTFT, and requests in time, relative to a peer.
"""

import argparse
import random
from collections.abc import Callable, Sequence
from functools import partial
from itertools import pairwise
from math import inf
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.quality.grid import Slice, load
from kvmesh.core.admission.queue import QueuePolicy
from kvmesh.core.cost.targets import Targets, targets_of
from kvmesh.core.routing.choice.slo_judge import SloOptions
from kvmesh.core.routing.choice.slo_tracker import Result, SloTracker
from kvmesh.core.routing.policy import parse_policy
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.timing import DYNAMO_CAPACITY_TOKENS
from kvmesh_lab.report.statistics import Slo, summarize
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.load import backlog_share, find_saturation, largest_backlog

SEED_002: Final = "kv:prefill-decode"
DYNAMO: Final = "kv:dynamo:overlap_score_weight=8"
HOLD_MS: Final = 200.0
MEASURED: Final = "## Measured\n"
BINS: Final = (0.0, 0.05, 0.15, 0.3, 0.5, 0.7, 1.01)


class Way(msgspec.Struct, frozen=True):
    """How a fleet is routed. `held`: the order of held requests, None: nothing is held."""

    name: str
    policy: str = "kv"
    held: QueuePolicy | None = None
    targets: bool = False


PEERS: Final = (
    Way("seed 002", SEED_002),
    Way("Dynamo w = 8, held, wspt", DYNAMO, "wspt"),
)
WAYS: Final = (
    *PEERS,
    Way("kv"),
    Way("kv, held, wspt", held="wspt"),
    Way("kv, targets", targets=True),
    Way("kv, targets, held, wspt", held="wspt", targets=True),
)


class Played(msgspec.Struct, frozen=True):
    """What came of one way: times in s of the served, shares of all requests."""

    way: Way
    served: float
    mean_s: float
    p99_s: float
    good: float
    chances: tuple[tuple[float, bool], ...] = ()


def play(way: Way, sliced: Slice, speedup: float, engines: int, wanted: Targets) -> Played:
    """Play the requests at `speedup` times their rate."""
    options = fleet_of(way, sliced, engines, wanted)
    fleet = SimulatedFleet(
        options,
        parse_policy(way.policy, sliced.block_size),
        sliced.requests,
        random.Random(0),
        speedup=speedup,
    )
    chances: list[tuple[float, bool]] = []
    for router in fleet.routers:
        note_chances(router.scheduler.slo, chances)
    fleet.run()
    slo = Slo(wanted.ttft_ms or inf, wanted.tpot_ms or inf)
    summary = summarize(fleet.outcomes, slo)
    assert summary.ttft_ms is not None
    return Played(
        way,
        summary.succeeded / summary.requests,
        summary.ttft_ms.mean / 1000.0,
        summary.ttft_ms.p99 / 1000.0,
        summary.goodput_share,
        tuple(chances),
    )


def note_chances(slo: SloTracker, chances: list[tuple[float, bool]]) -> None:
    """Have the chance to miss kept with which each request was sent, and whether it did."""
    served: Callable[[str, int, float], Result | None] = slo.served

    def watched(request_id: str, output_tokens: int, now: float) -> Result | None:
        known = slo.open.get(request_id)
        forecast = None if known is None else known.forecast
        result = served(request_id, output_tokens, now)
        if forecast is not None and result is not None:
            chances.append((forecast.chance, result != "met"))
        return result

    slo.served = watched  # type: ignore[method-assign]  # what it answers is the same


def fleet_of(way: Way, sliced: Slice, engines: int, wanted: Targets) -> FleetOptions:
    """Return the fleet: as in bench_quality, with engines of a million KV tokens."""
    return FleetOptions(
        engines=engines,
        engine=EngineOptions(
            block_size=sliced.block_size,
            num_gpu_blocks=DYNAMO_CAPACITY_TOKENS // sliced.block_size,
        ),
        max_backlog_ms=HOLD_MS if way.held else 0.0,
        queue_policy=way.held or "fcfs",
        targets=wanted if way.targets else None,
        slo=SloOptions(),
    )


def capacity(sliced: Slice, engines: int) -> float:
    """Return the speedup at which the formula of seed 002 saturates."""
    options = fleet_of(PEERS[0], sliced, engines, Targets())
    policy = parse_policy(SEED_002, sliced.block_size)

    def backlog_at(speedup: float) -> float:
        fleet = SimulatedFleet(options, policy, sliced.requests, random.Random(0), speedup=speedup)
        return backlog_share(fleet.run())

    allowed = largest_backlog(len(sliced.requests), engines)
    return find_saturation(backlog_at, 3.0, allowed, tolerance=0.05)


def rows(name: str, ratio: float, played: Sequence[Played]) -> list[str]:
    """Return a line of the table for each way."""
    first, second = played[: len(PEERS)]
    lines = []
    for one in played:
        against = [
            f"{one.mean_s / peer.mean_s:.2f} / {one.p99_s / peer.p99_s:.2f} / "
            f"{one.good / max(peer.good, 1e-9):.2f}"
            for peer in (first, second)
        ]
        lines.append(
            f"| {name} x {ratio:g} | {one.way.name} | {one.served:.1%} | {one.mean_s:.2f} | "
            f"{one.p99_s:.2f} | {one.good:.1%} | {against[0]} | {against[1]} |"
        )
    return lines


def calibration(played: Sequence[Played]) -> list[str]:
    """Return how many of those sent with some chance to miss their targets missed them."""
    chances = [one for run in played for one in run.chances]
    lines = ["| foretold chance to miss | requests | foretold | missed |", "|---|---|---|---|"]
    for low, high in pairwise(BINS):
        some = [one for one in chances if low <= one[0] < high]
        if some:
            predicted = sum(one for one, _ in some) / len(some)
            missed = sum(late for _, late in some) / len(some)
            name = f"{low:g} to {min(high, 1.0):g}"
            lines.append(f"| {name} | {len(some):,} | {predicted:.2f} | {missed:.2f} |")
    return lines


def write_page(path: Path, lines: Sequence[str]) -> None:
    """Write the part behind `MEASURED` anew, up to the next heading."""
    before, found, behind = path.read_text().partition(MEASURED)
    if not found:
        raise SystemExit(f"{path} has no line {MEASURED.strip()!r}: write one")
    rest = behind.partition("\n## ")
    path.write_text(before + found + "\n".join(lines) + "\n" + "".join(rest[1:]))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", action="append", required=True)
    parser.add_argument("--load", default="1.2,1.5")
    parser.add_argument("--requests", type=int, default=3_000)
    parser.add_argument("--engines", type=int, default=4)
    parser.add_argument("--ttft-ms", type=float, default=5_000.0)
    parser.add_argument("--tpot-ms", type=float, default=0.0)
    parser.add_argument("--capacity", help="speedups, in the order of the traces")
    parser.add_argument("--page", type=Path)
    found = parser.parse_args()
    wanted = targets_of(found.ttft_ms, found.tpot_ms) or Targets()
    lines = [
        "| trace, load | way | served | mean TTFT, s | p99, s | in time | / seed 002 | / Dynamo |",
        "|---|---|---|---|---|---|---|---|",
    ]
    print("\n".join(lines), flush=True)
    everything: list[Played] = []
    known = [float(one) for one in found.capacity.split(",")] if found.capacity else []
    for place, trace in enumerate(found.trace):
        sliced = load(trace, found.requests)
        speedup = known[place] if known else capacity(sliced, found.engines)
        name = Path(trace).name.partition(".")[0]
        print(f"{name}: seed 002 saturates at {speedup:.2f} times the recorded rate", flush=True)
        for ratio in (float(one) for one in found.load.split(",")):
            one_of = partial(
                play,
                sliced=sliced,
                speedup=ratio * speedup,
                engines=found.engines,
                wanted=wanted,
            )
            played = [one_of(way) for way in WAYS]
            everything += played
            lines += rows(name, ratio, played)
            print("\n".join(lines[-len(WAYS) :]), flush=True)
    table = calibration(everything)
    print("\n".join(table))
    if found.page is not None:
        write_page(found.page, [*lines, "", *table])


if __name__ == "__main__":
    main()
