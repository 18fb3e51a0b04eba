import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.block_sizes import MOST_BLOCK_SIZE, BlockSizes

A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")
SIZES = [0, 16, 32, 64, 48, MOST_BLOCK_SIZE + 1, 10**25, -16]

Step = tuple[WorkerId, int, bool] | WorkerId
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([A, B, C]), st.sampled_from(SIZES), st.booleans()),
        st.sampled_from([A, B, C]),
    )
)


def divides_all(reported: dict[WorkerId, tuple[int, bool]]) -> int | None:
    """The rule as it reads, the naive way."""
    possible = {one: two for one, two in reported.items() if 0 < two[0] <= MOST_BLOCK_SIZE}
    publishers = [size for size, events in possible.values() if events]
    sizes = publishers or [size for size, _ in possible.values()]
    common = [by for by in range(1, 65) if sizes and all(size % by == 0 for size in sizes)]
    return max(common, default=None)


@given(steps)
def test_the_size_divides_all_workers_whatever_came_before(taken: list[Step]) -> None:
    sizes, reported = BlockSizes(), dict[WorkerId, tuple[int, bool]]()

    for step in taken:
        before = sizes.size
        if isinstance(step, tuple):
            worker, size, events = step
            changed = sizes.receive(worker, size, events=events)
            reported[worker] = (size, events)
        else:
            changed = sizes.forget(step)
            reported.pop(step, None)
        told = {one: size for one, (size, events) in reported.items() if events and size > 0}
        odd = {one: size for one, size in told.items() if size > MOST_BLOCK_SIZE}
        assert (sizes.size, changed) == (divides_all(reported) or before, sizes.size != before)
        assert sizes.odd == odd
        others = set(told.values()) - set(odd.values()) - {sizes.size}
        assert sizes.others == tuple(sorted(others))
        assert sizes.followed == tuple(sorted({*others, sizes.size}))


def test_no_more_than_eight_sizes_are_followed_those_of_most_workers() -> None:
    sizes = BlockSizes()
    for number in range(10):
        sizes.receive(WorkerId(f"a{number}"), 16 * (number + 1), events=True)
    sizes.receive(WorkerId("b"), 160, events=True)

    assert sizes.followed == (16, 32, 48, 64, 80, 96, 112, 160)
    assert sizes.odd == {WorkerId("a7"): 128, WorkerId("a8"): 144}


@pytest.mark.parametrize(
    ("told", "size"), [((16, 17), 16), ((16, 24), 8), ((16, 36), 4), ((16, 34), 16), ((1, 16), 1)]
)
def test_sizes_that_have_little_in_common_are_counted_in_the_smallest(
    told: tuple[int, int], size: int
) -> None:
    sizes = BlockSizes()
    for worker, one in zip((A, B), told, strict=True):
        sizes.receive(worker, one, events=True)

    assert sizes.size == size
    assert {*told} <= {*sizes.followed}


@given(steps)
def test_a_size_that_was_given_holds_whatever_workers_say(taken: list[Step]) -> None:
    sizes = BlockSizes(8)

    for step in taken:
        if isinstance(step, tuple):
            assert not sizes.receive(step[0], step[1], events=step[2])
        else:
            assert not sizes.forget(step)

    assert (sizes.size, sizes.source) == (8, "given")


def test_workers_that_publish_no_events_decide_only_among_themselves() -> None:
    sizes = BlockSizes()
    for worker in (A, B):
        sizes.receive(worker, 64, events=False)
    alone = sizes.size

    sizes.receive(C, 32, events=True)

    assert (alone, sizes.size, sizes.odd) == (64, 32, {})
    sizes.forget(C)
    assert sizes.size == 64
