from hypothesis import given
from hypothesis import strategies as st

from kvmesh_lab.mocker.model.block_pool import BlockPool, Handle
from tests.property.engines.naive_engine import Block, NaivePool

BLOCKS = 12

paths = st.lists(st.integers(0, 2), min_size=1, max_size=6)
actions = st.lists(
    st.one_of(
        st.tuples(st.just("run"), paths, st.integers(0, 3)),
        st.tuples(st.just("release"), st.integers(0, 10)),
        st.tuples(st.just("reset")),
    ),
    max_size=40,
)


def chain(path: list[int]) -> list[int]:
    """Hashes of a sequence of blocks; equal paths have equal hashes, prefixes shared."""
    hashes, parent = [], 0
    for step in path:
        parent = parent * 3 + step + 1
        hashes.append(parent)
    return hashes


@given(actions)
def test_the_pool_behaves_like_a_queue_of_block_objects(plan: list[tuple[object, ...]]) -> None:
    pool, naive = BlockPool(BLOCKS), NaivePool(BLOCKS)
    held: list[tuple[list[Handle], int, list[Block]]] = []
    for action in plan:
        match action:
            case ("run", list(path), int(blank)):
                hashes = chain(path)
                found, known = pool.find_cached(hashes, 5), naive.find(hashes, 5)
                assert len(found) == len(known)
                free_hits = pool.count_free(found)
                assert free_hits == sum(block.references == 0 for block in known)
                new = len(hashes) - len(found) + blank
                if free_hits + new > pool.free_blocks:
                    continue
                pool.hold(found)
                naive.touch(known)
                evicted = pool.take(new)
                taken, expected = naive.take(new)
                assert evicted == expected
                handles = found + pool.store(hashes[len(found) :])
                naive.store(taken[: new - blank], hashes[len(found) :])
                held.append((handles, blank, known + taken))
            case ("release", int(index)) if held:
                handles, blank, blocks = held.pop(index % len(held))
                pool.release(handles, blank)
                naive.release(blocks)
            case ("reset",):
                assert pool.reset() == naive.reset(pool.usable_blocks)
            case _:
                pass
        assert pool.free_blocks == len(naive.free)
        assert sorted(pool.hashes()) == naive.hashes()
        assert pool.cached_blocks == len(naive.hashes())
