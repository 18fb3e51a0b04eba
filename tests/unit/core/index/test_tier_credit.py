from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.index.tier_credit import slower_parts

A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")


def test_blocks_are_told_by_the_tier_they_are_in() -> None:
    parts = slower_parts([{A: 4}, {A: 4, B: 8}, {A: 12, B: 8}], {A: 4})

    # a: 4 on the device, 8 on disk; b: 8 in host memory.
    assert parts == {A: (12, {2: 8}), B: (8, {1: 8})}


def test_what_is_taken_to_be_on_the_device_is_not_brought() -> None:
    found = [{A: 2, B: 2}, {A: 8, B: 8}, {A: 12, B: 12}]

    assert slower_parts(found, {A: 6, B: 10}) == {A: (12, {1: 2, 2: 4}), B: (12, {2: 2})}


def test_who_holds_all_of_it_on_the_device_brings_nothing() -> None:
    assert (slower_parts([{A: 4}, {A: 4}], {A: 4}), slower_parts([{A: 4}, {A: 4}], {})) == ({}, {})
    assert slower_parts([{}, {}], {C: 3}) == {}
