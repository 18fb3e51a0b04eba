import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.graded import grade, graded_count, graded_depth, graded_length
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes, sequence_hashes
from kvmesh.core.index.approx import new_approx

A, B = WorkerId("a"), WorkerId("b")
WHOLE_BLOCKS, STRIDE = 128, 16
LONG = sequence_hashes(list(range(2000)), 1)


def of(hashes: list[int]) -> BlockHashes:
    return BlockHashes.of(hashes, 1)


def fork(depth: int, blocks: int) -> list[int]:
    tokens = [*range(depth), *range(10**6, 10**6 + blocks - depth)]
    return sequence_hashes(tokens, 1)


@pytest.mark.parametrize("depth", [0, 1, 200, 256, 257, 272, 500, 1999])
@pytest.mark.parametrize("recorded", [300, 512, 2000])
def test_a_longer_shorter_or_forking_prompt_is_found_to_less_than_a_stride(
    depth: int, recorded: int
) -> None:
    index = new_approx(thinned=True)
    index.record(A, LONG[:recorded], 0.0, 5.0)
    shared = min(depth, recorded)

    for prompt in (fork(depth, 2100), LONG[:depth]):
        found = index.find_matches(of(prompt)).get(A, 0)

        assert found <= shared
        assert shared - found < STRIDE
        assert found == shared or shared > WHOLE_BLOCKS


def test_what_was_removed_ended_or_left_is_believed_no_longer() -> None:
    index = new_approx(thinned=True)
    for worker in (A, B):
        index.record(worker, LONG, 0.0, 5.0)

    index.revoke(A, pack_hashes(LONG[543:560]))
    assert index.find_matches(of(LONG)) == {A: 528, B: 2000}

    index.remove_worker(B)
    assert index.find_matches(of(LONG)) == {A: 528}
    assert index.expire(10.0, 10_000)
    assert index.find_matches(of(LONG)) == {}


@pytest.mark.parametrize("blocks", [1, 3, 4, 37, 256, 257, 319, 1000, 1024, 1025, 2000])
def test_a_prompt_that_was_heard_of_is_found_whole(blocks: int) -> None:
    index = new_approx(graded=True)
    index.record_graded(A, grade(LONG, blocks), blocks, 0.0, 5.0)

    lazy = BlockHashes(list(range(blocks)), 1)

    assert index.find_matches(lazy) == {A: blocks}
    assert index.blocks(A) == graded_length(blocks)


@pytest.mark.parametrize("depth", [0, 3, 33, 200, 256, 257, 300, 500, 1999])
@pytest.mark.parametrize("hints", [30, 300, 512, 2000])
def test_a_longer_shorter_or_forking_prompt_is_found_to_less_than_a_grade(
    depth: int, hints: int
) -> None:
    index = new_approx(graded=True)
    index.record(A, LONG[:hints], 0.0, 5.0)
    shared = min(depth, hints)

    for prompt in (fork(depth, 2100), LONG[:depth]):
        found = index.find_matches(of(prompt)).get(A, 0)

        assert found in {shared, graded_depth(graded_count(shared))}
        assert found == shared or not len(prompt) == depth == hints


def test_more_than_a_prompt_can_have_does_not_count() -> None:
    index = new_approx(graded=True)

    index.record_graded(A, LONG[:9], 0, 0.0, 5.0)
    index.record_graded(A, LONG[:9], -5, 0.0, 5.0)
    assert index.blocks(A) == 0
    index.record_graded(A, LONG[:9], 9, 0.0, 5.0)
    assert index.blocks(A) == 3


def test_an_index_of_whole_prompts_takes_no_graded_ones() -> None:
    for index in (new_approx(), new_approx(thinned=True)):
        with pytest.raises(ValueError, match="keeps no graded blocks takes whole prompts"):
            index.record_graded(A, LONG[:9], 9, 0.0)
