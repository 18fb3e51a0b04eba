"""How good routing decisions are: ours against every rival, an oracle and what bounds them all.

    python -m benchmarks.quality.bench_quality --trace A.jsonl.gz --trace B.jsonl.gz
        [--grid | --troubled | --stressed] [--requests N] [--seeds N] [--json FILE] [--seconds S]

Each setting is played with several seeds, every policy with the same; the tables tell the means.
Without traces the generated workloads are played. With --json what FILE has is not played again,
and --seconds ends a slice of a long run: begin it again with the same FILE until all is played.
"""

import argparse
import time
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path

import msgspec
from rich.console import Console

from benchmarks.measure import TABLE_WIDTH
from benchmarks.quality.grid import (
    BLIND,
    OURS,
    POLICIES,
    SIMPLE,
    Played,
    Setting,
    fraction,
    grid,
    play,
    saturate,
    stressed,
    troubled,
)
from benchmarks.quality.peer import ROUTERS, Replayed, can_replay, replay
from benchmarks.quality.seeds import complete_runs, mean_of, seeded, seeds_table
from benchmarks.quality.tables import blind_table, dynamo_table, print_tables, regret_table
from benchmarks.quality.workloads import WORKLOADS

QUICK_REQUESTS = 400
REQUESTS = 2_000
SEEDS = 5


class Saturation(msgspec.Struct, frozen=True, tag=True):
    """Where a policy saturates."""

    trace: str
    requests: int
    engines: int
    speedup: float
    policy: str = BLIND


class Result(msgspec.Struct, frozen=True, tag=True):
    """One line of the results file."""

    played: Played


class Results:
    """What was played so far, in memory and in a file of JSON lines."""

    def __init__(self, path: Path | None) -> None:
        self.saturations: dict[tuple[str, int, int, str], float] = {}
        self.played: dict[tuple[Setting, str], Played] = {}
        self.replayed: dict[tuple[Setting, str], Replayed] = {}
        self._path = path
        lines = path.read_bytes().splitlines() if path is not None and path.exists() else []
        for line in lines:
            self._take(msgspec.json.decode(line, type=Saturation | Result | Replayed))

    def add(self, one: Saturation | Result | Replayed) -> None:
        """Keep one result."""
        self._take(one)
        if self._path is not None:
            with self._path.open("ab") as file:
                file.write(msgspec.json.encode(one) + b"\n")

    def _take(self, one: Saturation | Result | Replayed) -> None:
        if isinstance(one, Saturation):
            key = (one.trace, one.requests, one.engines, one.policy)
            self.saturations[key] = one.speedup
        elif isinstance(one, Replayed):
            self.replayed[one.setting, one.router] = one
        else:
            self.played[one.played.setting, one.played.cell.policy] = one.played


def find_saturations(
    settings: Sequence[Setting], results: Results, until: float, policies: Sequence[str]
) -> None:
    """Find where each fleet saturates that is not known yet."""
    wanted = dict.fromkeys(
        (one.trace, one.requests, one.engines, policy)
        for one in settings
        for policy in policies
        if policy == BLIND or one.trace in WORKLOADS
    )
    missing = [key for key in wanted if key not in results.saturations]
    with ProcessPoolExecutor() as pool:
        futures = {pool.submit(saturate, *key): key for key in missing}
        for future in as_completed(futures):
            trace, requests, engines, policy = futures[future]
            results.add(Saturation(trace, requests, engines, future.result(), policy))
            if time.monotonic() > until:
                pool.shutdown(cancel_futures=True)
                return


def play_all(
    settings: Sequence[Setting], results: Results, until: float, policies: Sequence[str]
) -> None:
    """Play every policy in every setting that is not played yet."""
    with ProcessPoolExecutor() as pool:
        futures = [
            pool.submit(play, one, policy, speedup)
            for one in settings
            for policy in policies
            if (one, policy) not in results.played
            and (speedup := results.saturations.get((one.trace, one.requests, one.engines, BLIND)))
        ]
        for future in as_completed(futures):
            results.add(Result(future.result()))
            if time.monotonic() > until:
                pool.shutdown(cancel_futures=True)
                return


def replay_all(settings: Sequence[Setting], results: Results, until: float) -> None:
    """Let Dynamo replay what it can of the settings, one second each."""
    for one in settings:
        if time.monotonic() > until or not can_replay(one):
            continue
        for router in ROUTERS:
            if (one, router) not in results.replayed:
                speedup = results.saturations[one.trace, one.requests, one.engines, BLIND]
                results.add(replay(one, speedup, router))


def read_options() -> argparse.Namespace:
    """Return what the command line says."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--trace", action="append", help="a trace file, or a workload's name")
    parser.add_argument("--grid", action="store_true", help="all 81 settings of each trace")
    parser.add_argument("--troubled", action="store_true", help="slow engines, late reports, ...")
    parser.add_argument("--stressed", action="store_true", help="the default's worst settings")
    parser.add_argument("--requests", type=int, help=f"of each trace; default {REQUESTS}")
    parser.add_argument("--seeds", type=int, help=f"runs of each setting; default {SEEDS}, quick 1")
    parser.add_argument("--json", type=Path, help="results so far, one JSON line each")
    parser.add_argument("--seconds", type=float, default=1e9, help="end about then")
    parser.add_argument("--quick", action="store_true", help="the workloads at one load")
    return parser.parse_args()


def main() -> None:
    found = read_options()
    requests = found.requests or (QUICK_REQUESTS if found.quick else REQUESTS)
    traces = found.trace or list(WORKLOADS)
    made = grid if found.grid else troubled if found.troubled else fraction
    settings = (stressed if found.stressed else made)(traces, requests)
    policies = (OURS, *SIMPLE) if found.stressed else POLICIES
    if found.quick:
        settings = [Setting(trace, requests, 4, 0.7, 1, 5.0) for trace in traces]
    results, until = Results(found.json), time.monotonic() + found.seconds
    find_saturations(settings, results, until, (BLIND,) if found.stressed else (BLIND, OURS))
    seeds = found.seeds or (1 if found.quick else SEEDS)
    play_all(seeded(settings, seeds), results, until, policies)
    runs = complete_runs(settings, policies, seeds, results.played)
    whole = list(dict.fromkeys(one for one, _ in runs))
    done = sum(len(runs[one, OURS]) for one in whole)
    console = Console(width=TABLE_WIDTH)
    console.print(f"{len(whole)} of {len(settings)} settings, {requests:,} requests each")
    console.print(f"{done} of {len(settings) * seeds} runs of each policy; figures are their means")
    if found.stressed:
        console.print(regret_table(runs))
        return
    replay_all(whole, results, until)
    if whole:
        means = {key: mean_of(some) for key, some in runs.items()}
        print_tables(list(means.values()), console)
        if seeds > 1:
            console.print(seeds_table(runs))
        console.print(blind_table(whole, means, results.saturations))
    replayed = [one for one in results.replayed.values() if one.setting in whole]
    if replayed:
        console.print(dynamo_table(replayed, results.played))
    else:
        console.print("Dynamo's own replay: not installed (make bench), or no trace it takes")


if __name__ == "__main__":
    main()
