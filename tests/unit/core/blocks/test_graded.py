from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.blocks.graded import (
    grade,
    graded_count,
    graded_depth,
    graded_length,
    key_count,
    key_depth,
    keys_of_graded,
    sharing_keys,
)

_BLOCKS = st.integers(0, 5000)


def _is_graded(depth: int) -> bool:
    step = 4 if depth <= 32 else 16 if depth <= 256 else 64 if depth <= 1024 else 256
    return depth % step == 0


def _is_key(depth: int) -> bool:
    step = 16 if depth <= 256 else 64 if depth <= 1024 else 256
    return depth % step == 0


@given(_BLOCKS)
def test_counts_and_depths_are_those_of_the_naive_list(blocks: int) -> None:
    graded = [depth for depth in range(1, blocks + 1) if _is_graded(depth)]
    keys = [depth for depth in range(1, blocks + 1) if _is_key(depth)]

    assert graded_count(blocks) == len(graded)
    assert [graded_depth(number) for number in range(1, len(graded) + 1)] == graded
    numbers = range(1, len(keys) + 1)
    assert (key_count(blocks), [key_depth(number) for number in numbers]) == (len(keys), keys)


@given(_BLOCKS, st.integers(-300, 300))
def test_the_last_block_is_kept_where_it_is_known(known: int, more: int) -> None:
    blocks = max(0, known + more)
    hashes = list(range(1, known + 1))

    kept = list(grade(hashes, blocks))

    depths = [depth for depth in hashes[:blocks] if _is_graded(depth) or depth == blocks]
    assert kept == depths
    assert graded_length(known) == len(grade(hashes, known))


@given(_BLOCKS)
def test_sharing_keys_are_found_among_graded_blocks(blocks: int) -> None:
    hashes = list(range(1, blocks + 1))

    keys = list(sharing_keys(hashes))

    assert keys == [depth for depth in hashes if _is_key(depth)]
    assert list(keys_of_graded(grade(hashes, blocks), blocks)) == keys


def test_a_long_prompt_is_told_in_few_blocks() -> None:
    assert [len(grade(range(blocks), blocks)) for blocks in (25, 256, 6250)] == [7, 22, 55]
    assert key_depth(0) == 0
