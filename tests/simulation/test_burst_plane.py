from statistics import mean

from tests.simulation.planes.burst_plane import BurstPlane

SEEDS = range(8)


def test_four_replicas_route_a_burst_as_well_as_one() -> None:
    alone = [BurstPlane(seed, 1) for seed in SEEDS]
    shared = [BurstPlane(seed, 4) for seed in SEEDS]

    assert mean(map(BurstPlane.hits, alone)) > 0.65
    assert mean(map(BurstPlane.hits, shared)) > 0.96 * mean(map(BurstPlane.hits, alone))
    assert mean(map(BurstPlane.imbalance, shared)) < 1.1 * mean(map(BurstPlane.imbalance, alone))
