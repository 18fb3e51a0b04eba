"""What replicas hear of each other's prompts, against a model that compares whole prompts."""

from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.graded import grade, graded_count, graded_depth
from kvmesh.core.blocks.hashing import BlockHashes, sequence_hashes
from kvmesh.core.index.approx import new_approx

WORKERS = [WorkerId("w1"), WorkerId("w2")]
TRUNK = list(range(1500))
CUTS = (2, 30, 37, 100, 256, 300, 1030)
PATHS = [sequence_hashes([*TRUNK[:cut], *range(cut << 20, (cut << 20) + 90)], 1) for cut in CUTS]
PATHS.append(sequence_hashes(TRUNK, 1))

prompts = st.builds(
    lambda path, length: path[:length],
    st.sampled_from(PATHS),
    st.integers(0, 60) | st.sampled_from([*CUTS, 120, 128, 336, 1024, 1100, 1500]),
)
reported = st.lists(st.tuples(st.sampled_from(WORKERS), prompts), max_size=6)


def shared(one: list[int], other: list[int]) -> int:
    pairs = zip(one, other, strict=False)
    return next((at for at, (a, b) in enumerate(pairs) if a != b), min(len(one), len(other)))


def expected(prompt: list[int], hints: list[int]) -> int:
    """Return how far a prompt is found that somebody told the other one of."""
    common = shared(prompt, hints)
    if common == len(prompt) == len(hints):
        return common
    return graded_depth(graded_count(common))


@given(reported, st.lists(prompts, min_size=1, max_size=4))
def test_a_prompt_is_found_where_it_begins_like_what_was_told(
    hints: list[tuple[WorkerId, list[int]]], asked: list[list[int]]
) -> None:
    index = new_approx(graded=True)
    for worker, prompt in hints:
        index.record_graded(worker, grade(prompt, len(prompt)), len(prompt), 0.0, 5.0)

    for prompt in asked:
        depths = {
            worker: max((expected(prompt, one) for w, one in hints if w == worker), default=0)
            for worker in WORKERS
        }
        found = index.find_matches(BlockHashes.of(prompt, 1))
        assert found == {worker: depth for worker, depth in depths.items() if depth}
