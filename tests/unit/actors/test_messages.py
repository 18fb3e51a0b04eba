from math import inf, nan

import pytest

from kvmesh.actors.messages import WorkerLoad


def test_cache_usage_is_a_fraction_and_zero_when_the_total_is_unknown() -> None:
    assert WorkerLoad(used_blocks=25, total_blocks=100).gpu_cache_usage_perc == 0.25
    assert WorkerLoad(used_blocks=25).gpu_cache_usage_perc == 0.0


@pytest.mark.parametrize(
    ("told", "share"), [(0.25, 0.25), (-1.0, 0.0), (1e25, 1.0), (nan, 0.0), (inf, 0.0)]
)
def test_what_no_engine_can_mean_is_not_passed_on(told: float, share: float) -> None:
    report = WorkerLoad(prefix_hit_rate=told, total_slots=-3).report()

    assert (report.prefix_hit_rate, report.total_slots) == (share, 0)
    assert WorkerLoad(total_slots=256).report().total_slots == 256


def test_the_share_of_cached_tokens_is_told_or_made_of_two_counts() -> None:
    counted = WorkerLoad(prefix_hit_rate=0.5, cache_queried_tokens=400, cache_hit_tokens=100)

    assert counted.report().prefix_hit_rate == 0.25
    assert WorkerLoad(cache_hit_tokens=3).report().prefix_hit_rate == 0.0
