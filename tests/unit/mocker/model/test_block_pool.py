import pytest

from kvmesh.errors import ConfigError
from kvmesh_lab.mocker.model.block_pool import BlockPool


def fill(pool: BlockPool, hashes: list[int]) -> None:
    """Hold, store and release one sequence."""
    pool.take(len(hashes))
    pool.release(pool.store(hashes), 0)


def test_one_block_of_the_pool_is_never_usable() -> None:
    assert BlockPool(10).usable_blocks == 9
    with pytest.raises(ConfigError, match="num_gpu_blocks is 1"):
        BlockPool(1)


def test_equal_hashes_within_one_call_are_copies_too() -> None:
    pool = BlockPool(4)
    pool.take(2)

    handles = pool.store([1, 1])

    assert len(set(handles)) == 2
    assert pool.hashes() == [1, 1]


def test_reset_forgets_everything_unless_a_block_is_held() -> None:
    pool = BlockPool(4)
    fill(pool, [1, 2])
    held = pool.find_cached([1], 1)
    pool.hold(held)
    assert not pool.reset()

    pool.release(held, 0)

    assert pool.reset()
    assert pool.cached_blocks == 0
    assert pool.take(3) == []
