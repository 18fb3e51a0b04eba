from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.overlap.tier_credit import DEFAULT_WEIGHTS, slower_parts

A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")


def test_blocks_count_by_the_tier_they_are_in() -> None:
    found = [{A: 4}, {A: 4, B: 8}, {A: 12, B: 8}]

    parts = slower_parts(found, DEFAULT_WEIGHTS)

    # a: 4 on the device, 8 on disk at a quarter; b: 8 in host memory at three quarters.
    assert parts == {A: (12, 6.0), B: (8, 2.0)}


def test_who_holds_all_of_it_on_the_device_loses_nothing() -> None:
    assert slower_parts([{A: 4}, {A: 4}], DEFAULT_WEIGHTS) == {}
    assert slower_parts([{}, {}], DEFAULT_WEIGHTS) == {}


def test_a_tier_without_a_weight_counts_for_nothing() -> None:
    assert slower_parts([{}, {C: 2}, {C: 6}], (1.0, 0.5)) == {C: (6, 5.0)}
