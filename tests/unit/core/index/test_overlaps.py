from kvmesh._native import Approx
from kvmesh.core.blocks.events import ENDS, ROOT, Reuse, Stored, WorkerId
from kvmesh.core.blocks.graded import grade
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes
from kvmesh.core.index.approx import new_approx
from kvmesh.core.index.index import KvIndex
from kvmesh.core.index.overlaps import OverlapView

W1, W2, W3 = WorkerId("w1"), WorkerId("w2"), WorkerId("w3")
PROMPT = BlockHashes.of(range(1, 9), 16)


def make_view(
    index: KvIndex | None,
    routed: Approx | None,
    distrusted: frozenset[WorkerId] = frozenset(),
    predict_ttl_s: float = 5.0,
) -> OverlapView:
    ttls = {"predict_ttl_s": predict_ttl_s, "approx_ttl_s": 120.0}
    return OverlapView(index, routed, distrusted, block_size=16, **ttls)


def make_index(**held: int) -> KvIndex:
    index = KvIndex()
    for worker, blocks in held.items():
        index.store(WorkerId(worker), ROOT, pack_hashes(range(1, blocks + 1)))
    return index


def test_the_longer_of_both_views_counts() -> None:
    routed = new_approx()
    routed.record(W1, [1, 2], 0.0, ttl_s=5.0)
    routed.record(W2, [1, 2, 3, 4, 5, 6], 0.0, ttl_s=5.0)
    view = make_view(make_index(w1=4, w2=3, w3=1), routed)

    overlaps, groups = view.find_groups(PROMPT, now=1.0)

    assert overlaps == {W1: 4, W2: 6, W3: 1}
    depths = [depth for depth, _ in groups]
    assert (depths, groups[0]) == (sorted(depths, reverse=True), (6, (W2,)))
    assert {worker for _, workers in groups for worker in workers} == {W1, W2, W3}


def test_a_prediction_that_no_event_confirmed_ends() -> None:
    routed = new_approx()
    view = make_view(make_index(), routed)
    view.record(W1, PROMPT, now=0.0)

    assert view.find_groups(PROMPT, now=4.9)[0] == {W1: 8}
    assert view.find_groups(PROMPT, now=6.5)[0] == {}


def test_what_no_event_can_confirm_counts_for_longer() -> None:
    view = make_view(None, new_approx())
    view.record(W1, PROMPT, now=0.0)

    assert view.find_groups(PROMPT, now=100.0)[0] == {W1: 8}
    assert view.find_groups(PROMPT, now=123.0)[0] == {}


def test_a_prompt_is_kept_longer_where_no_event_tells_what_becomes_of_it() -> None:
    alone, told = make_view(None, new_approx()), make_view(make_index(), new_approx())
    for view in (alone, told):
        view.record(W1, PROMPT, 0.0, 300)

    assert alone.find_groups(PROMPT, now=299.0)[0] == {W1: 8}
    assert told.find_groups(PROMPT, now=10.0)[0] == {}


def test_slower_memory_lengthens_what_is_held_at_a_price() -> None:
    index = make_index(w1=2)
    for worker, blocks in (("w1", 6), ("w2", 4), ("w3", 4)):
        index.store(WorkerId(worker), ROOT, pack_hashes(range(1, blocks + 1)), tier=1)
    view = make_view(index, new_approx(), frozenset([W3]))
    view.record(W2, PROMPT, now=0.0)

    found = view.find(PROMPT, now=0.0)

    # w1: 4 of 6 in host memory at 0.75; w2 got it all lately; w3 is not believed.
    assert (found.overlaps, found.slower) == ({W1: 6, W2: 8}, {W1: {1: 4}})
    assert view.find_groups(PROMPT, now=0.0)[0] == {W1: 2, W2: 8}


def test_what_events_alone_tell_is_told_apart() -> None:
    view = make_view(make_index(w1=2), new_approx())
    view.record(W1, PROMPT, now=0.0)

    found = view.find(PROMPT, now=0.0)

    assert (found.reported, found.overlaps) == ([(2, (W1,))], {W1: 8})


def grouped_index(worker: WorkerId, chain: int, end: int) -> KvIndex:
    index = make_index(**{worker: chain})
    index.apply(worker, Reuse())
    index.apply(worker, Stored(ROOT, pack_hashes([end]), ENDS))
    return index


def test_of_a_grouped_worker_only_what_is_deeper_than_its_chain_is_believed() -> None:
    view = make_view(grouped_index(W1, chain=5, end=3), new_approx())
    view.record(W1, BlockHashes.of([1, 2, 3, 4], 16), now=0.0)
    view.record(W2, BlockHashes.of([1, 2, 3, 4], 16), now=0.0)
    reported = view.find(PROMPT, now=0.0)
    view.record(W1, BlockHashes.of([1, 2, 3, 4, 5, 6], 16), now=0.0)

    assert (reported.overlaps, reported.groups) == ({W1: 3, W2: 4}, [(4, (W2,)), (3, (W1,))])
    assert view.find(PROMPT, now=0.0).overlaps == {W1: 6, W2: 4}
    assert view.find(PROMPT, now=0.0).reported == [(3, (W1,))]


def test_events_of_distrusted_workers_do_not_count() -> None:
    routed = new_approx()
    view = make_view(make_index(w1=4, w2=3), routed, frozenset([W1, W3]))
    view.record(W1, BlockHashes.of([1, 2], 16), now=0.0)

    assert view.find_groups(PROMPT, now=60.0)[0] == {W1: 2, W2: 3}
    assert view.cached_blocks((W1, W2)) == [2, 3]


def test_either_view_may_be_missing() -> None:
    routed = new_approx()
    neither, exact, approximate = (
        make_view(None, None),
        make_view(make_index(w1=2), None),
        make_view(None, routed),
    )
    for view in (neither, exact, approximate):
        view.record(W2, PROMPT, now=0.0)

    assert neither.find_groups(PROMPT, now=60.0) == ({}, [])
    assert exact.find_groups(PROMPT, now=60.0) == ({W1: 2}, [(2, (W1,))])
    assert approximate.find_groups(PROMPT, now=60.0)[0] == {W2: 8}
    assert (neither.cached_blocks((W1,)), exact.cached_blocks((W1,))) == ([0], [2])
    assert approximate.cached_blocks((W2,)) == [8]


def test_prediction_can_be_off_and_empty_prompts_are_not_recorded() -> None:
    routed = new_approx()
    make_view(make_index(), routed, predict_ttl_s=0.0).record(W1, PROMPT, now=0.0)
    make_view(make_index(), routed).record(W1, BlockHashes.of([], 16), now=0.0)

    assert routed.workers() == []


def test_events_that_remove_a_block_end_the_prediction_too() -> None:
    index = make_index(w1=4)
    view = make_view(index, new_approx())
    view.record(W1, PROMPT, now=0.0)
    view.record(W2, PROMPT, now=0.0)

    index.remove(W1, pack_hashes([3, 4]))
    index.remove(W2, pack_hashes([5]), tier=1)

    assert view.find_groups(PROMPT, now=1.0)[0] == {W1: 2, W2: 8}


def test_what_was_not_served_is_believed_no_longer_but_what_was_known_before() -> None:
    view = make_view(make_index(), new_approx())
    view.record(W1, PROMPT, now=0.0)
    view.record(W2, PROMPT, now=0.0)

    view.retract(W1, PROMPT, known_blocks=3)

    assert view.find_groups(PROMPT, now=1.0)[0] == {W1: 3, W2: 8}
    view.retract(W2, PROMPT, known_blocks=8)
    assert view.find_groups(PROMPT, now=1.0)[0] == {W1: 3, W2: 8}
    view.retract(W2, PROMPT, known_blocks=0)
    assert view.find_groups(PROMPT, now=1.0)[0] == {W1: 3}


def test_without_a_view_of_decisions_there_is_nothing_to_retract() -> None:
    view = make_view(make_index(w1=4), None)

    view.retract(W1, PROMPT, known_blocks=0)

    assert view.find_groups(PROMPT, now=1.0)[0] == {W1: 4}


def listening(index: KvIndex | None, distrusted: frozenset[WorkerId] = frozenset()) -> OverlapView:
    view = make_view(index, new_approx(), distrusted)
    view.listen(new_approx(graded=True))
    return view


def receive(view: OverlapView, worker: WorkerId, blocks: int, now: float = 0.0) -> bytes:
    graded = grade(range(1, blocks + 1), blocks)
    view.receive(worker, graded, blocks, now)
    return pack_hashes(graded)


def test_what_other_replicas_routed_counts_beside_events_and_own_decisions() -> None:
    view = listening(make_index(w1=4, w2=3))
    view.record(W2, BlockHashes.of([1, 2, 3, 4, 5], 16), now=0.0)
    receive(view, W1, 8)
    receive(view, W2, 4)
    receive(view, W3, 6)

    found = view.find(PROMPT, now=0.0)

    assert found.overlaps == {W1: 8, W2: 5, W3: 4}
    depths = [depth for depth, _ in found.groups]
    assert (depths, found.reported) == (sorted(depths, reverse=True), [(4, (W1,)), (3, (W2,))])
    assert view.cached_blocks((W1, W3)) == [4, 0]


def test_what_a_worker_removes_or_leaves_with_ends_what_was_heard() -> None:
    index = make_index(w1=8)
    view = listening(index)
    for worker in (W1, W2, W3):
        receive(view, worker, 8)

    index.remove(W1, pack_hashes([7, 8]))
    view.remove_worker(W2)

    assert view.find_groups(PROMPT, now=1.0)[0] == {W1: 6, W3: 8}


def test_what_another_replica_saw_fail_is_believed_no_longer() -> None:
    view = listening(make_index())
    packed = [receive(view, worker, 8) for worker in (W1, W2, W3)]

    view.retract(W1, packed[0], known_blocks=7)
    view.retract(W2, packed[1], known_blocks=0)
    view.retract(W3, packed[2], known_blocks=8)
    view.retract(W3, packed[2], known_blocks=1 << 60)
    view.retract(W1, packed[0], known_blocks=5)

    assert view.find_groups(PROMPT, now=1.0)[0] == {W1: 4, W3: 8}


def test_who_listens_to_nobody_takes_nothing_from_others() -> None:
    view = make_view(make_index(w1=4), new_approx())

    packed = receive(view, W1, 8)
    view.retract(W1, packed, known_blocks=0)

    assert view.find_groups(PROMPT, now=1.0)[0] == {W1: 4}
