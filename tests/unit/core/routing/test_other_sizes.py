"""Workers whose blocks have other sizes than the router's, by what their events tell."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.blocks.events import ROOT, Stored, WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes, pack_tokens, sequence_hashes
from kvmesh.core.routing.decision import RouteRequest
from tests.unit.core.routing.scheduling import NAMES, index_of, make_scheduler

BASE = 16
OTHERS = (24, 32, 64)
ROOTS = (ROOT, 7)

prompts = st.builds(
    lambda shared, own: list(range(shared)) + [1000 + one for one in range(own)],
    st.integers(0, 400),
    st.integers(0, 100),
)
held = st.lists(st.tuples(prompts, st.sampled_from((BASE, *OTHERS))), min_size=4, max_size=4)


def shared_tokens(one: list[int], other: list[int]) -> int:
    """Return how many tokens two prompts begin with alike."""
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def hashes_of(prompt: list[int], root: int) -> BlockHashes:
    ids = bytes(pack_tokens(prompt))
    return BlockHashes(memoryview(ids)[:-4], BASE, root, ids)


@given(held, prompts, st.sampled_from(ROOTS))
def test_each_worker_is_credited_what_it_holds_in_blocks_of_its_own_size(
    stored: list[tuple[list[int], int]], prompt: list[int], root: int
) -> None:
    scheduler, expected = make_scheduler(), dict[WorkerId, int]()
    scheduler.look_for(OTHERS)
    for worker, (tokens, size) in zip(NAMES, stored, strict=True):
        run = pack_hashes(sequence_hashes(tokens, size, root))
        index_of(scheduler).apply(worker, Stored(ROOT, run))
        kept = len(tokens) // size * size
        hit = min(shared_tokens(tokens, prompt), kept, max(0, len(prompt) - 1)) // size * size
        if hit // BASE:
            expected[worker] = hit // BASE
    hashes = hashes_of(prompt, root)

    decisions = [
        scheduler.explain(RouteRequest("r", hashes, len(prompt), pinned_worker=one), 0.0)
        for one in NAMES
    ]

    assert [one.overlap_blocks for one in decisions] == [expected.get(one, 0) for one in NAMES]
    assert scheduler.overlaps.find(hashes, 0.0).overlaps == expected


def test_without_token_ids_only_blocks_of_its_own_size_are_found() -> None:
    scheduler, tokens = make_scheduler(), list(range(65))
    scheduler.look_for((32,))
    for worker, size in zip(NAMES[:2], (BASE, 32), strict=True):
        run = pack_hashes(sequence_hashes(tokens, size))
        index_of(scheduler).apply(worker, Stored(ROOT, run))
    kept = BlockHashes(tokens, BASE)

    assert scheduler.overlaps.has_lookahead()
    assert scheduler.overlaps.find(kept, 0.0).overlaps == {NAMES[0]: 4}
    assert hashes_of(tokens, ROOT).by(32) is not None
    assert kept.by(32) is None


@pytest.mark.parametrize("sizes", [(0,), (10**25,), tuple(range(1, 10))])
def test_sizes_that_no_block_has_and_too_many_are_refused(sizes: tuple[int, ...]) -> None:
    with pytest.raises((ValueError, OverflowError)):
        make_scheduler().look_for(sizes)
