from io import StringIO

import msgspec
import pytest
from rich.console import Console

from benchmarks.quality.grid import (
    BLIND,
    JITTER_MS,
    OURS,
    POLICIES,
    RIVALS,
    Played,
    Setting,
    load,
    perturb,
)
from benchmarks.quality.seeds import complete_runs, mean_of, seeds_table
from benchmarks.quality.tables import best_rival
from kvmesh_lab.simulator.comparison import Cell

ALONE = Setting("related-queries", 40, 2, 0.5, 1, 5.0)


def run_of(policy: str, p90: float, seed: int = 0, hits: float = 0.5) -> Played:
    setting = msgspec.structs.replace(ALONE, seed=seed)
    cell = Cell(setting.name, policy, p90 / 2, p90, p90 * 2, 10.0, hits, 1.0, 0.1)
    return Played(setting, cell, 50.0, 0.9, p90 / 3, 0.8)


def test_a_seed_delays_each_request_by_a_little_that_is_the_same_each_time() -> None:
    requests = load("related-queries", 40).requests

    first, again, other = (perturb(requests, seed, 2.0) for seed in (1, 1, 2))

    assert perturb(requests, 0, 2.0) == requests
    assert first == again != other
    late = [
        (a.trace.timestamp_ms - b.trace.timestamp_ms) / 2.0
        for a, b in zip(first, requests, strict=True)
    ]
    assert 0.0 <= min(late) < max(late) <= JITTER_MS
    assert [one.hashes for one in first] == [one.hashes for one in requests]


def test_means_are_over_the_seeds_that_every_policy_has_played() -> None:
    played = {
        (one.setting, one.cell.policy): one
        for one in (
            run_of(OURS, 100.0), run_of(BLIND, 300.0),
            run_of(OURS, 140.0, 1, hits=0.7), run_of(BLIND, 500.0, 1),
            run_of(OURS, 9.0, 2),
        )
    }  # fmt: skip
    other = msgspec.structs.replace(ALONE, engines=4)

    runs = complete_runs([ALONE, other], (OURS, BLIND), 3, played)

    assert {key: len(some) for key, some in runs.items()} == {(ALONE, OURS): 2, (ALONE, BLIND): 2}
    mean = mean_of(runs[ALONE, OURS])
    assert mean.setting == ALONE
    assert mean.cell.policy == OURS
    assert mean.cell.ttft_ms_p90 == pytest.approx(120.0)
    assert mean.cell.ttft_ms_p99 == pytest.approx(240.0)
    assert mean.cell.hit_rate == pytest.approx(0.6)
    assert mean.waitless_p90_ms == pytest.approx(40.0)


def test_the_best_rival_is_the_one_with_the_best_mean() -> None:
    runs = {(ALONE, name): [run_of(name, 900.0, seed) for seed in (0, 1)] for name in POLICIES}
    runs[ALONE, OURS] = [run_of(OURS, 80.0), run_of(OURS, 120.0, 1)]
    lucky, steady = RIVALS[:2]
    runs[ALONE, lucky] = [run_of(lucky, 60.0), run_of(lucky, 300.0, 1)]
    runs[ALONE, steady] = [run_of(steady, 100.0), run_of(steady, 100.0, 1)]
    out = StringIO()

    best = best_rival({name: mean_of(runs[ALONE, name]).cell for name in POLICIES})
    Console(file=out, width=140).print(seeds_table(runs))

    assert best.policy == steady
    assert out.getvalue().split("\n")[-3].split()[-6:] == [
        steady.removeprefix("kv:"), "2", "1.00", "0.20", "0.80", "1.20",
    ]  # fmt: skip
