"""Workers whose blocks have other sizes than the router's, by what their events tell."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.blocks.events import ROOT, Stored, WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes, pack_tokens, sequence_hashes
from kvmesh.core.index.index import KvIndex
from kvmesh.core.members.block_sizes import MOST_SIZES
from kvmesh.core.members.worker_info import LoadReport, WorkerInfo
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.core.routing.scheduler import Scheduler
from tests.unit.core.routing.scheduling import NAMES, index_of, make_scheduler

W1 = NAMES[0]
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


def overlap_of(scheduler: Scheduler, hashes: BlockHashes) -> tuple[int, int]:
    """Return how much of a prompt is foreseen at W1: by the compiled choice, by the view."""
    request = RouteRequest("r", hashes, hashes.tokens_count + 1, pinned_worker=W1)
    decision = scheduler.explain(request, 1.0)
    found = scheduler.overlaps.find(hashes, 1.0)
    assert decision.best_overlap_blocks == decision.overlap_blocks
    return decision.overlap_blocks, found.overlaps.get(W1, 0)


@pytest.mark.parametrize(("own", "whole"), [(0, 6), (16, 6), (64, 4), (24, 6), (40, 5), (112, 0)])
def test_what_was_sent_to_a_worker_is_believed_in_whole_blocks_of_its_own(
    own: int, whole: int
) -> None:
    scheduler, hashes = make_scheduler(routed=True), hashes_of(list(range(100)), ROOT)
    scheduler.workers.describe(W1, WorkerInfo(block_size=own))
    scheduler.overlaps.record(W1, hashes, 0.0)

    assert overlap_of(scheduler, hashes) == (whole, whole)


def test_what_several_were_sent_is_cut_for_each() -> None:
    scheduler, hashes = make_scheduler(routed=True), hashes_of(list(range(100)), ROOT)
    scheduler.workers.describe(W1, WorkerInfo(block_size=64))
    for worker in NAMES:
        scheduler.overlaps.record(worker, hashes, 0.0)

    found = scheduler.overlaps.find(hashes, 0.0).overlaps

    assert found == {W1: 4, **dict.fromkeys(NAMES[1:], 6)}
    assert overlap_of(scheduler, hashes) == (4, 4)


def test_its_load_and_its_cache_are_counted_in_the_routers_blocks() -> None:
    scheduler = make_scheduler()
    workers, index = scheduler.workers, index_of(scheduler)
    workers.describe(W1, WorkerInfo(block_size=64, total_blocks=100))
    index.apply(W1, Stored(ROOT, pack_hashes(sequence_hashes(list(range(192)), 64))))
    told = workers.capacity_blocks(W1), scheduler.overlaps.cached_blocks((W1,))
    for _ in range(3):
        workers.report(W1, LoadReport(1, 0, used_blocks=10, total_blocks=50))

    state = workers.state(W1)
    assert told == (400, [12])
    assert (state.capacity_blocks, state.blank_blocks) == (200, 188)
    assert workers.used_blocks(W1) == state.loads.active_blocks == 40
    assert (
        scheduler.explain(RouteRequest("r", hashes_of([1], ROOT), 1), 0.0)
        .candidates[0]
        .cached_blocks
        == 12
    )

    scheduler.resize(32)
    assert scheduler.overlaps.cached_blocks((W1,)) == [6]
    assert (workers.capacity_blocks(W1), workers.used_blocks(W1)) == (100, 20)
    scheduler.resize(64)
    assert scheduler.overlaps.cached_blocks((W1,)) == [3]
    assert (workers.capacity_blocks(W1), workers.own_tokens) == (50, {})
    workers.describe(W1, WorkerInfo(block_size=10**25, total_blocks=10**25))
    assert workers.own_tokens == {}
    scheduler.remove_worker(W1)
    assert workers.own_tokens == {}


def test_what_lies_in_slower_memory_is_found_in_blocks_of_any_size() -> None:
    scheduler, prompt = make_scheduler(), list(range(200))
    scheduler.look_for((32,))
    index: KvIndex = index_of(scheduler)
    run = sequence_hashes(prompt, 32)
    index.store(W1, ROOT, pack_hashes(run[:2]))
    index.store(W1, ROOT, pack_hashes(run[:5]), tier=1)

    found = scheduler.overlaps.find(hashes_of(prompt, ROOT), 0.0)

    assert found.overlaps == {W1: 10}
    assert found.slower == {W1: {1: 6}}
    assert scheduler.overlaps.find(BlockHashes(prompt, BASE), 0.0).overlaps == {}


def test_as_many_sizes_are_looked_for_as_members_are_followed_by() -> None:
    sizes = tuple(range(1, MOST_SIZES + 1))

    make_scheduler().look_for(sizes)
    with pytest.raises(ValueError, match=f"a tuple of {MOST_SIZES} at most"):
        make_scheduler().look_for((*sizes, 100))
