import pytest

from benchmarks.quality.grid import fraction, grid
from benchmarks.quality.workloads import BLOCK, WORKLOADS
from kvmesh_lab.traces.trace import infinite_cache_hit_rate


@pytest.mark.parametrize(
    ("name", "least", "most"),
    [("multi-turn", 0.7, 0.9), ("shared-prompt", 0.6, 0.8), ("related-queries", 0.4, 0.6)],
)
def test_a_workload_can_reuse_what_its_kind_is_known_for(
    name: str, least: float, most: float
) -> None:
    requests = WORKLOADS[name](800)

    assert least <= infinite_cache_hit_rate(requests, BLOCK) <= most
    assert requests == WORKLOADS[name](800)


def test_the_grid_has_every_setting_once_and_the_fraction_is_part_of_it() -> None:
    settings = grid(["a", "b"], 100)

    assert len(set(settings)) == len(settings) == 2 * 81
    part = fraction(["a", "b"], 100)
    assert set(part) <= set(settings)
    assert len(set(part)) == len(part) == 2 * 15
    nine = part[: 2 * 9]
    assert len({(one.engines, one.load) for one in nine}) == 9
    assert len({(one.routers, one.event_delay_ms) for one in nine}) == 9
