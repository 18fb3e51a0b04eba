"""The library's index under events in any order, against a model that keeps sets of blocks."""

from collections.abc import Sequence

from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.blocks.events import ROOT, Cleared, Removed, Stored
from kvmesh.core.blocks.hashing import pack_hashes, sequence_hashes
from kvmesh.library.indexer import KvIndexer

TRUNK = list(range(12))
CUTS = (0, 3, 4, 8)
CHAINS = [sequence_hashes([*TRUNK[:cut], *range(cut << 8, (cut << 8) + 6)], 1) for cut in CUTS]
CHAINS.append(sequence_hashes(TRUNK, 1))
BLOCKS = sorted({block for chain in CHAINS for block in chain})

pieces = st.tuples(st.sampled_from(CHAINS), st.integers(0, 11), st.integers(1, 12))
removals = st.lists(st.sampled_from(BLOCKS), min_size=1, max_size=4)
steps = st.tuples(
    st.sampled_from(["w1", "w2"]), pieces | removals | st.sampled_from(["clear", "go"])
)


def prefix(chain: Sequence[int], held: set[int]) -> int:
    return next((at for at, block in enumerate(chain) if block not in held), len(chain))


@given(st.lists(steps, max_size=60))
def test_a_worker_is_credited_with_what_it_holds_from_the_first_block_on(
    steps: list[tuple[str, tuple[list[int], int, int] | list[int] | str]],
) -> None:
    indexer, model = KvIndexer(16), dict[str, set[int]]()
    for worker, step in steps:
        held = model.setdefault(worker, set())
        if step == "clear":
            indexer.apply_event(worker, Cleared())
            held.clear()
        elif step == "go":
            indexer.remove_worker(worker)
            held.clear()
        elif isinstance(step, tuple):
            chain, start, count = step
            run = chain[start : start + count]
            parent = chain[start - 1] if 0 < start <= len(chain) else ROOT
            if not run:
                continue
            kept_out = indexer.apply_event(worker, Stored(parent, pack_hashes(run)))
            assert kept_out == (0 if prefix(chain[:start], held) == start else len(run))
            held.update(run)
        elif isinstance(step, list):
            indexer.apply_event(worker, Removed(pack_hashes(step)))
            held.difference_update(step)

        for chain in CHAINS:
            expected = {name: prefix(chain, blocks) for name, blocks in model.items()}
            found = indexer.find_matches(chain)
            assert found == {name: blocks for name, blocks in expected.items() if blocks}
