"""Leases of runs against a model that knows for each block when, and in which turn, it ends."""

from itertools import count, pairwise
from math import inf

from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, rule

from kvmesh._native import Table
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes
from kvmesh.core.index.approx import new_approx
from tests.reference.overlap.leases import Leases

WORKER = WorkerId("w")
TRUNK = list(range(1, 201))
CUTS = [1, 30, 63, 64, 65, 128, 199]
PATHS = [TRUNK, list(range(9000, 9100))]
PATHS += [TRUNK[:cut] + [1000 * cut + number for number in range(150)] for cut in CUTS]
PATHS += [
    path[:cut] + [10**6 * cut + path[-1] + 500 + number for number in range(70)]
    for path in PATHS[2:5]
    for cut in (80, 130)
]
PARENTS = {block: parent for path in PATHS for parent, block in pairwise(path)}

lengths = st.sampled_from([1, 2, 29, 31, 63, 64, 65, 66, 127, 128, 129, 1000]) | st.integers(1, 200)
prompts = st.builds(lambda path, length: path[:length], st.sampled_from(PATHS), lengths)


class LeasesMachine(RuleBasedStateMachine):
    """Prompts of a tree that branches within runs and between them."""

    def __init__(self) -> None:
        super().__init__()
        self.leases = Leases(Table().admit(WORKER, 1))
        self.until: dict[int, float] = {}
        self.turn: dict[int, int] = {}
        self.turns = count()

    @rule(prompt=prompts, until=st.integers(1, 6).map(float))
    def extend(self, prompt: list[int], until: float) -> None:
        updates, _ = self.leases.extend(prompt, until)

        assert updates == pack_hashes([block for block in prompt if block not in self.until])
        for block in prompt:
            if self.until.get(block, -inf) < until:
                self.until[block], self.turn[block] = until, next(self.turns)

    @rule(most=st.integers(1, 150))
    def take(self, most: int) -> None:
        gone: list[int] = []
        while not gone and self.leases.earliest() is not None:
            gone = self.leases.take(most)

        end = min(self.until.values(), default=inf)
        due = [block for block, until in self.until.items() if until == end]
        due.sort(key=self.turn.__getitem__, reverse=True)
        assert gone == due[:most]
        for block in gone:
            del self.until[block]

    @rule(ends=st.lists(prompts, min_size=1, max_size=3))
    def revoke(self, ends: list[list[int]]) -> None:
        blocks = {prompt[-1] for prompt in ends}

        gone = self.leases.revoke(sorted(blocks))

        expected = {block for block in self.until if self.follows(block, blocks)}
        assert len(gone) == len(expected)
        assert set(gone) == expected
        for block in gone:
            del self.until[block]

    def follows(self, block: int | None, blocks: set[int]) -> bool:
        while block is not None and block not in blocks:
            block = PARENTS.get(block)
        return block is not None

    def teardown(self) -> None:
        while self.until:
            self.take(150)
        while self.leases.earliest() is not None:
            assert not self.leases.take(1)


TestLeases = LeasesMachine.TestCase
TestLeases.settings = settings(max_examples=40, stateful_step_count=25)


@given(
    st.lists(
        st.tuples(st.lists(st.integers(1, 6), min_size=1), st.integers(1, 9), st.integers(0, 6)),
        max_size=20,
    )
)
@example([([3, 2, 2, 1, 2], 1, 1), ([3, 2], 2, 2)])
@example([([3, 2, 2, 1, 2], 1, 1), ([3, 2], 2, 0)])
def test_hashes_that_stand_for_two_blocks_do_no_harm_beyond_themselves(
    steps: list[tuple[list[int], int, int]],
) -> None:
    index = new_approx()
    other = list(range(100, 200))
    index.record(WORKER, other, 0.0)

    for prompt, ttl_s, revoked in steps:
        index.record(WORKER, prompt, 0.0, float(ttl_s))
        index.revoke(WORKER, pack_hashes([revoked]))
        assert index.statistics().entries == index.blocks(WORKER) == index.statistics().blocks

    index.expire(10.0)
    assert index.find_matches(BlockHashes.of(other, 1)) == {WORKER: 100}
    index.expire(200.0)
    assert index.statistics().entries == index.statistics().blocks == 0
