from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.block_sizes import MOST_BLOCK_SIZE, BlockSizes

A, B, C = WorkerId("a"), WorkerId("b"), WorkerId("c")
SIZES = [0, 16, 32, 64, MOST_BLOCK_SIZE + 1, 10**25, -16]

Step = tuple[WorkerId, int, bool] | WorkerId
steps = st.lists(
    st.one_of(
        st.tuples(st.sampled_from([A, B, C]), st.sampled_from(SIZES), st.booleans()),
        st.sampled_from([A, B, C]),
    )
)


def elect(reported: dict[WorkerId, tuple[int, bool]]) -> int | None:
    """The rule as it reads, the naive way."""
    possible = {one: two for one, two in reported.items() if 0 < two[0] <= MOST_BLOCK_SIZE}
    publishers = {one: size for one, (size, events) in possible.items() if events}
    voters = publishers or {one: size for one, (size, _) in possible.items()}
    sizes = list(voters.values())
    most = max((sizes.count(size) for size in sizes), default=0)
    return next((size for _, size in sorted(voters.items()) if sizes.count(size) == most), None)


@given(steps)
def test_most_workers_decide_whatever_came_before(taken: list[Step]) -> None:
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
        assert (sizes.size, changed) == (elect(reported) or before, sizes.size != before)
        odd = {w: s for w, (s, events) in reported.items() if events and s > 0 and s != sizes.size}
        assert sizes.odd == odd


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
