"""Agents' sessions on fleets whose caches are too small, simulated: with and without turns.

    python -m benchmarks.programs.bench_programs [--cells small,wide,…] [--seeds 1,2,3]
        [--routers N] [--trace claude_code_sessions.jsonl.gz] [--page FILE]

Every policy gets the same sessions. Made sessions are like those of mini-swe-agent: prompts that
grow by some hundred tokens a turn, pauses of about a second, open loop; beside them, in the cell
mixed, chats of no program. In the cell aiperf it plays the agents of `bench_agentx`, 24 at a time,
on four engines at a quarter of their speed. With --trace recorded ones are played, too: a number of
programs at a time, pauses as recorded. No router is told how long an answer will be, or which turn
is the last.
`infinite` are engines that evict nothing. With --page the part of that file behind "## Measured" is
written anew.
"""

import argparse
import gzip
import random
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean
from typing import Final

import msgspec

from benchmarks.programs.thunder import Homes, ThunderAgent
from benchmarks.programs.weka import BLOCK, make_agents
from kvmesh.core.programs.held import GovernorOptions
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
INFINITE: Final = 1 << 27
THUNDER: Final = "ThunderAgent"
HOMES: Final = "each at home"
POLICIES: Final = (
    "kv",
    "kv:lmetric",
    "kv:preble",
    "kv:sglang",
    "kv:overlap-load",
    THUNDER,
    HOMES,
    "kv, turns",
    "infinite",
)


class Cell(msgspec.Struct, frozen=True):
    """Engines of `tokens` of cache, and what they are given: `sessions` made ones, `gap_s` apart
    in the mean, or with `live` above 0 so many recorded programs at a time; beside them `chats_s`
    chats a second.
    """

    title: str
    engines: int
    tokens: int
    sessions: int
    gap_s: float = 0.0
    live: int = 0
    profile: str = "preble-70b"
    block: int = 128
    chats_s: float = 0.0
    speed: float = 1.0


CELLS: Final[dict[str, Cell]] = {
    "small": Cell("70B, 4 x 131k, made", 4, 131_072, 110, 2.0),
    "wide": Cell("70B, 8 x 131k, made", 8, 131_072, 200, 1.0),
    "mixed": Cell("70B, 4 x 131k, made, and 10 chats/s", 4, 131_072, 110, 1.0, chats_s=10.0),
    "tight": Cell("70B, 4 x 65k, made", 4, 65_536, 80, 3.0),
    "cheap": Cell("8B, 4 x 65k, made", 4, 65_536, 110, 0.8, profile="dynamo"),
    "ease": Cell("70B, 4 x 524k, made", 4, 524_288, 110, 2.0),
    "1M/8": Cell("70B, 2 x 1M, 8 live an engine", 2, 1 << 20, 40, live=16, block=2048),
    "1M/16": Cell("70B, 2 x 1M, 16 live an engine", 2, 1 << 20, 60, live=32, block=2048),
    "3M/8": Cell("70B, 2 x 3M, 8 live an engine", 2, 3 << 20, 40, live=16, block=2048),
}
AIPERF: Final = "aiperf"
CELLS[AIPERF] = Cell("aiperf's agents", 4, 12_288, 64, 0.0, 24, "dynamo", BLOCK, speed=0.25)
RECORDED: Final = ("1M/8", "1M/16", "3M/8")
SKIPPED: Final = (0, 10, 20, 40, 75)
"""What is played of a recorded trace: the programs behind so many."""


class Row(msgspec.Struct, frozen=True):
    """How a policy did. `waits_s`: the latencies of a session's turns together, by session; then
    seconds of TTFT of turns and of chats, ms of each token, and tokens computed.
    """

    waits_s: dict[str, float]
    ttfts_s: tuple[float, float, float, float]
    chat_p99_s: float
    tpot_p90_ms: float
    computed: int
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


def make_chats(rate_s: float, until_s: float, first: int, block: int) -> list[TraceRequest]:
    """Return chats of some 1,000 tokens that share nothing, until so many seconds."""
    rng, at_s, made = random.Random(first), 0.0, list[TraceRequest]()
    while (at_s := at_s + rng.expovariate(rate_s)) < until_s:
        tokens = int(min(6000.0, max(100.0, rng.lognormvariate(6.5, 0.9))))
        output = int(min(800.0, max(20.0, rng.lognormvariate(5.0, 0.7))))
        begin = (1 << 40) + 1000 * len(made)
        ids = tuple(range(begin, begin + tokens // block))
        made.append(TraceRequest(first + len(made), 1000.0 * at_s, tokens, output, ids))
    return made


def play(cell: Cell, requests: Sequence[TraceRequest], policy: str, routers: int = 1) -> Row:
    """Return how a policy did."""
    tokens = INFINITE if policy == "infinite" else cell.tokens
    engine = EngineOptions(
        block_size=cell.block,
        num_gpu_blocks=tokens // cell.block + 1,
        timing=PROFILES[cell.profile],
        speedup_ratio=cell.speed,
    )
    turns = GovernorOptions() if policy.endswith("turns") else None
    by = "kv" if policy in ("kv, turns", "infinite", THUNDER, HOMES) else policy
    fleet = SimulatedFleet(
        FleetOptions(
            engines=cell.engines,
            engine=engine,
            tells_lengths=False,
            tells_final=policy == THUNDER,
            turns=turns,
            routers=routers,
        ),
        parse_policy(by, cell.block),
        make_requests(requests, cell.block, cell.block),
        random.Random(0),
        live=cell.live,
    )
    rule = {THUNDER: ThunderAgent, HOMES: Homes}.get(policy)
    if rule is not None:
        for router in fleet.routers:
            router.govern(GovernorOptions(), rule)
    outcomes = [one for one in fleet.run() if one.ttft_ms is not None and not one.error]
    waits: dict[str, float] = {}
    for one in outcomes:
        if one.session:
            waits[one.session] = waits.get(one.session, 0.0) + one.latency_ms / 1000.0
    ttfts = sorted((one.ttft_ms or 0.0) / 1000.0 for one in outcomes if one.session)
    chats = sorted((one.ttft_ms or 0.0) / 1000.0 for one in outcomes if not one.session)
    tpots = sorted(fmean(one.itl_ms) for one in outcomes if one.itl_ms)
    found = [one.governor.statistics() for one in fleet.routers if one.governor is not None]
    return Row(
        waits_s=waits,
        ttfts_s=(_at(ttfts, 0.5), _at(ttfts, 0.9), _at(ttfts, 0.99), ttfts[-1]),
        chat_p99_s=_at(chats, 0.99) if chats else 0.0,
        tpot_p90_ms=_at(tpots, 0.9),
        computed=sum(
            one.prompt_tokens - (one.cached_tokens or 0) for one in outcomes if one.session
        ),
        held_s=sum(one.waited_s for one in found) / max(1, sum(one.released for one in found)),
    )


def fairness(row: Row, best: Row) -> float:
    """Return Jain's index of how fast sessions went, each against an infinite cache."""
    speeds = [best.waits_s[name] / waited_s for name, waited_s in row.waits_s.items()]
    return sum(speeds) ** 2 / (len(speeds) * sum(one * one for one in speeds))


def _at(values: Sequence[float], share: float) -> float:
    return values[min(len(values) - 1, int(len(values) * share))]


HEAD: Final = (
    "| fleet | policy | waiting of a session, s | share won | TTFT p50 / p90 / p99 / longest, s "
    "| TPOT p90, ms | computed, infinite = 1 | Jain | chats' TTFT p99, s | mean hold, s |\n"
    + "|---" * 10
    + "|"
)


def lines(cell: Cell, seeds: Sequence[Sequence[TraceRequest]], routers: int) -> list[str]:
    """Return a table's rows of a cell, means over `seeds`: the share of the waiting between the
    first policy and the last that each has won of all seeds, and of the worst and the best.
    """
    rows = {name: [play(cell, one, name, routers) for one in seeds] for name in POLICIES}
    waits = {name: [fmean(one.waits_s.values()) for one in found] for name, found in rows.items()}
    most_s, least_s, best = waits[POLICIES[0]], waits[POLICIES[-1]], rows[POLICIES[-1]]
    at_ease = sum(most_s) <= 1.01 * sum(least_s)
    made: list[str] = []
    for name, found in rows.items():
        saved_s = [high - one for high, one in zip(most_s, waits[name], strict=True)]
        gaps_s = [high - low for high, low in zip(most_s, least_s, strict=True)]
        won = "-"
        if not at_ease:
            won = f"{sum(saved_s) / sum(gaps_s):.2f}"
            shares = [one / gap for one, gap in zip(saved_s, gaps_s, strict=True)]
            if shares[1:]:
                won += f" ({min(shares):.2f} to {max(shares):.2f})"
        pairs = list(zip(found, best, strict=True))
        ttfts = (fmean(one) for one in zip(*(one.ttfts_s for one in found), strict=True))
        columns = (
            cell.title,
            name,
            f"{fmean(waits[name]):,.0f}",
            won,
            " / ".join(f"{one:.1f}" for one in ttfts),
            f"{fmean(one.tpot_p90_ms for one in found):.0f}",
            f"{fmean(one.computed / other.computed for one, other in pairs):.2f}",
            f"{fmean(fairness(one, other) for one, other in pairs):.2f}",
            f"{fmean(one.chat_p99_s for one in found):.1f}" if cell.chats_s else "-",
            f"{fmean(one.held_s for one in found):.1f}",
        )
        made.append("| " + " | ".join(columns) + " |")
        print(made[-1], flush=True)
    return made


def main(argv: Sequence[str] | None = None) -> None:
    """Play the cells that are asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--cells", default="small,wide,mixed,tight,cheap,ease")
    parser.add_argument("--seeds", default="1,2,3", help="of made sessions")
    parser.add_argument("--routers", type=int, default=1)
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
        cell, seeds = CELLS[name], list[list[TraceRequest]]()
        if name in RECORDED:
            for skip in SKIPPED:
                sessions = choose_programs(recorded, skip, cell.sessions)
                seeds.append(list(requests_of(sessions, cell.block)))
        else:
            for seed in map(int, options.seeds.split(",")):
                if name == AIPERF:
                    made = make_agents(cell.sessions, 20, seed)
                else:
                    made = make_sessions(cell.sessions, cell.gap_s, seed)
                requests = list(requests_of(made, cell.block))
                if cell.chats_s:
                    last_s = max(one.timestamp_ms for one in requests) / 1000.0 + 120.0
                    requests += make_chats(cell.chats_s, last_s, len(requests), cell.block)
                    requests.sort(key=lambda one: one.timestamp_ms)
                seeds.append(requests)
        table += lines(cell, seeds, options.routers)
    if options.page is not None:
        head, found, _ = options.page.read_text(encoding="utf-8").partition(MEASURED)
        assert found, f"{options.page} has no line {MEASURED!r}"
        options.page.write_text(f"{head}{found}\n" + "\n".join(table) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
