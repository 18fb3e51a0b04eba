"""Replicas beside one, in small: `benchmarks.quality.bench_siblings` has it in large."""

import pytest
from rich.console import Console

from benchmarks.quality.bench_siblings import (
    Played,
    Setting,
    make_table,
    mean_ratio,
    play,
    ratios_of,
)

SETTING = Setting("multi-turn", 60, 2, 0.7)


def test_a_run_is_the_same_from_the_same_seed_and_hears_late() -> None:
    one, again = (play(SETTING, 2, 1, 4.0) for _ in range(2))
    blind = play(Setting("multi-turn", 60, 2, 0.7, events=False, block=16), 2, 1, 4.0)

    assert one == again
    assert 0.0 < one.hit_rate < 1.0
    assert blind.p90_ms > 0.0
    assert blind.setting.name == "multi-turn x2 0.7 no events 5ms"


def played(routers: int, seed: int, p90_ms: float) -> Played:
    return Played(SETTING, routers, seed, p90_ms, 0.5)


def test_runs_are_compared_with_one_replica_of_the_same_seed() -> None:
    runs = [played(1, 0, 100.0), played(1, 1, 200.0), played(4, 0, 110.0), played(4, 1, 198.0)]
    runs.append(played(4, 2, 500.0))

    ratios = ratios_of(runs)

    assert ratios == {(SETTING, 4): [1.1, 0.99]}
    ratio = mean_ratio(ratios[SETTING, 4])
    assert ratio.mean == pytest.approx((1.1 * 0.99) ** 0.5)
    assert ratio.error == pytest.approx(0.055, abs=0.001)
    assert mean_ratio([1.5]).error == 0.0


def test_the_table_has_a_row_for_each_setting_and_one_for_all() -> None:
    console = Console(width=120)
    with console.capture() as shown:
        console.print(make_table([played(1, 0, 100.0), played(4, 0, 110.0), played(8, 0, 90.0)]))

    text = shown.get()
    assert "multi-turn x2 0.7 5ms" in text
    assert text.count("1.100 ±0.000") == text.count("0.900 ±0.000") == 2
