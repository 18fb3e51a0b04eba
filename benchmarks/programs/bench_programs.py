"""Agents' sessions on fleets whose caches are too small, simulated: with and without turns.

    python -m benchmarks.programs.bench_programs [--cells small,wide,tight,cheap,ease] [--wait-s S]
        [--trace claude_code_sessions.jsonl.gz] [--page FILE]

Every policy gets the same sessions. Made sessions are like those of mini-swe-agent: prompts that
grow by some hundred tokens a turn, pauses of about a second, open loop. With --trace recorded ones
are played, too: a number of programs at a time, pauses as recorded. No router is told how long an
answer will be, or which turn is the last. Ratios are to `kv` of the same cell. With --page the part
of that file behind "## Measured" is written anew.
"""

import argparse
import gzip
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Final

import msgspec

from kvmesh.core.programs.governor import GovernorOptions
from kvmesh.core.routing.policy import parse_policy
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.timing import PROFILES
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.fleet.request import make_requests
from kvmesh_lab.traces.sessions import (
    SessionTrace,
    SessionTurn,
    choose_programs,
    parse_sessions,
    requests_of,
)
from kvmesh_lab.traces.trace import TraceRequest

MEASURED: Final = "## Measured\n"
SYSTEM_TOKENS: Final = 1800
POLICIES: Final = (("kv", False), ("kv:lmetric", False), ("kv", True))


class Cell(msgspec.Struct, frozen=True):
    """Engines of `tokens` of cache, and what they are given: `sessions` made ones, `gap_s` apart
    in the mean, or with `live` above 0 so many recorded programs at a time.
    """

    title: str
    engines: int
    tokens: int
    sessions: int
    gap_s: float = 0.0
    live: int = 0
    profile: str = "preble-70b"
    block: int = 128


CELLS: Final = {
    "small": Cell("70B, 4 x 131k, made", 4, 131_072, 110, 2.0),
    "wide": Cell("70B, 8 x 131k, made", 8, 131_072, 200, 1.0),
    "tight": Cell("70B, 4 x 65k, made", 4, 65_536, 80, 3.0),
    "cheap": Cell("8B, 4 x 65k, made", 4, 65_536, 110, 0.8, profile="dynamo"),
    "ease": Cell("70B, 4 x 524k, made", 4, 524_288, 110, 2.0),
    "1M/8": Cell("70B, 2 x 1M, 8 live an engine", 2, 1 << 20, 40, live=16, block=2048),
    "1M/16": Cell("70B, 2 x 1M, 16 live an engine", 2, 1 << 20, 60, live=32, block=2048),
    "3M/8": Cell("70B, 2 x 3M, 8 live an engine", 2, 3 << 20, 40, live=16, block=2048),
}
RECORDED: Final = ("1M/8", "1M/16", "3M/8")


class Row(msgspec.Struct, frozen=True):
    """How a policy did: seconds, milliseconds of TTFT and of each token, millions of tokens."""

    session_s: float
    session_p90_s: float
    ttft_p50_ms: float
    ttft_p90_ms: float
    ttft_p99_ms: float
    tpot_p50_ms: float
    tpot_p90_ms: float
    computed: float
    turns_s: float
    hits: float
    held_s: float


def make_sessions(count: int, gap_s: float, seed: int = 1) -> list[SessionTrace]:
    """Return sessions like those of mini-swe-agent, the same for the same arguments."""
    rng = random.Random(seed)
    made: list[SessionTrace] = []
    start_s = 0.0
    for number in range(count):
        turns: list[SessionTurn] = []
        context, before = SYSTEM_TOKENS + int(rng.lognormvariate(6.0, 0.7)), SYSTEM_TOKENS
        for place in range(rng.randint(8, 40)):
            output = int(min(1500.0, max(25.0, rng.lognormvariate(4.7, 0.7))))
            pause_s = min(300.0, rng.lognormvariate(0.0, 1.3)) if place else 0.0
            shared = before if place else 0
            turns.append(SessionTurn(pause_s, context, output, shared, 0.0, "tool"))
            before, context = (
                context,
                context + output + int(min(8e3, rng.lognormvariate(5.9, 1.1))),
            )
        start_s += rng.expovariate(1.0 / gap_s)
        name = f"made-{number}"
        made.append(SessionTrace(name, tuple(turns), "", start_s, SYSTEM_TOKENS))
    return made


def infinite_tokens(requests: Sequence[TraceRequest], block: int) -> int:
    """Return the tokens that one cache without an end would compute."""
    seen: set[int] = set()
    computed = 0
    for request in requests:
        computed += request.input_tokens - block * sum(one in seen for one in request.block_ids)
        seen.update(request.block_ids)
    return computed


def play(
    cell: Cell, requests: Sequence[TraceRequest], policy: str, turns: GovernorOptions | None
) -> Row:
    """Return how a policy did."""
    engine = EngineOptions(
        block_size=cell.block,
        num_gpu_blocks=cell.tokens // cell.block + 1,
        timing=PROFILES[cell.profile],
    )
    options = FleetOptions(engines=cell.engines, engine=engine, tells_lengths=False, turns=turns)
    fleet = SimulatedFleet(
        options,
        parse_policy(policy, cell.block),
        make_requests(requests, cell.block, cell.block),
        random.Random(0),
        live=cell.live,
    )
    outcomes = [one for one in fleet.run() if one.ttft_ms is not None and not one.error]
    spans: dict[str, tuple[float, float]] = {}
    for one in outcomes:
        begin, end = spans.get(one.session, (one.sent_ms, 0.0))
        spans[one.session] = min(begin, one.sent_ms), max(end, one.sent_ms + one.latency_ms)
    sessions = sorted((end - begin) / 1000.0 for begin, end in spans.values())
    ttfts = sorted(one.ttft_ms for one in outcomes if one.ttft_ms is not None)
    tpots = sorted(fmean(one.itl_ms) for one in outcomes if one.itl_ms)
    prompts = sum(one.prompt_tokens for one in outcomes)
    computed = prompts - sum(one.cached_tokens or 0 for one in outcomes)
    ends = sorted(one.sent_ms + one.latency_ms for one in outcomes)
    governor = fleet.routers[0].governor
    held = 0.0
    if governor is not None:
        found = governor.statistics()
        held = found.waited_s / max(1, found.released)
    return Row(
        session_s=fmean(sessions),
        session_p90_s=_at(sessions, 0.9),
        ttft_p50_ms=_at(ttfts, 0.5),
        ttft_p90_ms=_at(ttfts, 0.9),
        ttft_p99_ms=_at(ttfts, 0.99),
        tpot_p50_ms=_at(tpots, 0.5),
        tpot_p90_ms=_at(tpots, 0.9),
        computed=computed / 1e6,
        # The last sessions run alone: the rate is that at which nine in ten turns were done.
        turns_s=0.9 * len(ends) / (_at(ends, 0.9) / 1000.0),
        hits=1.0 - computed / prompts,
        held_s=held,
    )


def _at(values: Sequence[float], share: float) -> float:
    return values[min(len(values) - 1, int(len(values) * share))]


HEAD: Final = (
    "| fleet | policy | session mean | session p90 | TTFT p50 / p90 / p99 s | TPOT p50 / p90 ms | "
    "computed | turns/s | hits | computed, infinite cache = 1 | mean hold s |\n" + "|---" * 11 + "|"
)


def lines(cell: Cell, requests: Sequence[TraceRequest], wait_s: float) -> list[str]:
    """Return a table's rows of a cell: absolute for the first policy, then ratios to it."""
    least = infinite_tokens(requests, cell.block) / 1e6
    made: list[str] = []
    first: Row | None = None
    for policy, governed in POLICIES:
        turns = GovernorOptions(max_wait_s=wait_s) if governed else None
        row = play(cell, requests, policy, turns)
        first = first or row
        name = f"{policy}, turns, at most {wait_s:g} s" if governed else policy
        ttfts = " / ".join(
            f"{one / 1000.0:.2f}" for one in (row.ttft_p50_ms, row.ttft_p90_ms, row.ttft_p99_ms)
        )
        tpots = f"{row.tpot_p50_ms:.0f} / {row.tpot_p90_ms:.0f}"
        columns = (
            cell.title,
            name,
            f"{row.session_s:,.0f} s ({row.session_s / first.session_s:.2f})",
            f"{row.session_p90_s:,.0f} s ({row.session_p90_s / first.session_p90_s:.2f})",
            ttfts,
            f"{tpots} ({row.tpot_p90_ms / first.tpot_p90_ms:.2f})",
            f"{row.computed:.1f} M ({row.computed / first.computed:.2f})",
            f"{row.turns_s:.2f} ({row.turns_s / first.turns_s:.2f})",
            f"{row.hits:.3f}",
            f"{row.computed / least:.2f}",
            f"{row.held_s:.1f}",
        )
        made.append("| " + " | ".join(columns) + " |")
        print(made[-1], flush=True)
    return made


def main(argv: Sequence[str] | None = None) -> None:
    """Play the cells that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", default="small,wide,tight,cheap,ease")
    parser.add_argument("--wait-s", type=float, default=GovernorOptions().max_wait_s)
    parser.add_argument("--trace", type=Path)
    parser.add_argument("--page", type=Path)
    options = parser.parse_args(argv)
    names = [name for name in options.cells.split(",") if name]
    recorded: list[SessionTrace] = []
    if options.trace is not None:
        recorded = parse_sessions(gzip.decompress(options.trace.read_bytes()).splitlines(), "trace")
    print(HEAD, flush=True)
    table = [HEAD]
    for name in names:
        cell = CELLS[name]
        if name in RECORDED:
            sessions = choose_programs(recorded, programs=cell.sessions)
        else:
            sessions = make_sessions(cell.sessions, cell.gap_s)
        table += lines(cell, requests_of(sessions, cell.block), options.wait_s)
    if options.page is not None:
        head, found, _ = options.page.read_text(encoding="utf-8").partition(MEASURED)
        assert found, f"{options.page} has no line {MEASURED!r}"
        options.page.write_text(f"{head}{found}\n" + "\n".join(table) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
