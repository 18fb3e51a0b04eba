"""The compiled index of believed prefixes does what the naive one does, step by step.

Hashes may stand for two blocks, prompts may be none, time may go back.
"""

import random
from array import array
from math import inf
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.graded import grade
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes, sequence_hashes
from kvmesh.core.index.approx import new_approx
from tests.reference.overlap.approx import ApproxIndex

U64 = 2**64 - 1
EARLIER = [WorkerId(f"before{number}") for number in range(63)]
WORKERS = [WorkerId(f"w{number}") for number in range(4)]


def tree() -> list[list[int]]:
    """Return prompts that part from a trunk within its runs, at their ends and between them."""
    trunk = list(range(1400))
    tokens = [trunk]
    for cut in (1, 30, 64, 65, 128, 256, 271, 272, 300):
        tokens.append([*trunk[:cut], *range(1000 * cut, 1000 * cut + 90)])
        tokens.append([*tokens[-1][: cut + 40], *range(10**6 * cut, 10**6 * cut + 40)])
    return [sequence_hashes(one, 1) for one in tokens]


PATHS = tree()
lengths = st.sampled_from([0, 1, 31, 63, 64, 65, 128, 255, 256, 257, 272, 400, 1400]) | (
    st.integers(1, 400)
)
paths = st.builds(
    lambda number, length: PATHS[number][:length], st.integers(0, len(PATHS) - 1), lengths
)
collisions = st.lists(st.sampled_from([0, 1, 2, 3, 4, 5, U64]), max_size=9)
prompts = paths | paths | paths | collisions
workers = st.sampled_from(WORKERS)
ttls = st.sampled_from([None, 120.0, 5.0, 5.0, 0.7, 0.0, -1.0, 86_400.0])


class TwinMachine(RuleBasedStateMachine):
    """Two indexes that are told the same."""

    @initialize(
        limits=st.sampled_from(
            [(1 << 20, 0.8, None), (500, 0.5, None), (900, 0.8, 150), (3, 0.0, 0)]
        ),
        keeps=st.sampled_from(["all", "thinned", "graded"]),
        earlier=st.booleans(),
    )
    def start(self, limits: tuple[int, float, int | None], keeps: str, *, earlier: bool) -> None:
        most, target, worker_blocks = limits
        self.graded = keeps == "graded"
        self.twins: list[Any] = [
            make(
                120.0,
                max_entries=most,
                prune_target=target,
                worker_blocks=worker_blocks,
                thinned=keeps == "thinned",
                graded=self.graded,
            )
            for make in (ApproxIndex, new_approx)
        ]
        self.now = 1000.0
        for worker in EARLIER if earlier else ():
            self.record(worker, PATHS[0][:2], 5.0, as_list=True)

    @rule(worker=workers, prompt=prompts, ttl_s=ttls, as_list=st.booleans())
    def record(
        self, worker: WorkerId, prompt: list[int], ttl_s: float | None, *, as_list: bool
    ) -> None:
        for twin in self.twins:
            twin.record(worker, prompt if as_list else array("Q", prompt), self.now, ttl_s)

    @rule(worker=workers, prompt=paths)
    def record_hashes(self, worker: WorkerId, prompt: list[int]) -> None:
        for twin in self.twins:
            twin.record(worker, BlockHashes.of(prompt, 1), self.now)

    @rule(worker=workers, prompt=prompts, ttl_s=ttls, known=st.integers(-1, 500))
    def record_graded(
        self, worker: WorkerId, prompt: list[int], ttl_s: float | None, known: int
    ) -> None:
        graded = grade(prompt, len(prompt))
        for twin in self.twins:
            if self.graded:
                twin.record_graded(worker, graded, known, self.now, ttl_s)
            else:
                with pytest.raises(ValueError, match="keeps no graded blocks"):
                    twin.record_graded(worker, graded, known, self.now, ttl_s)

    @rule(seconds=st.sampled_from([0.01, 0.3, 3.0, 8.0, 60.0, -5.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(budget=st.none() | st.integers(-1, 100))
    def expire(self, budget: int | None) -> None:
        pure, native = (twin.expire(self.now, budget) for twin in self.twins)

        assert native == pure

    @rule(worker=workers, prompts=st.lists(prompts, max_size=3), odd=st.binary(max_size=3))
    def revoke(self, worker: WorkerId, prompts: list[list[int]], odd: bytes) -> None:
        ends = [prompt[-1] for prompt in prompts if prompt]
        for twin in self.twins:
            twin.revoke(worker, pack_hashes(ends) + odd)

    @rule(worker=workers, start=st.integers(0, 300))
    def retract(self, worker: WorkerId, start: int) -> None:
        for twin in self.twins:
            twin.revoke(worker, pack_hashes(PATHS[0][start:]))

    @rule(worker=workers | st.sampled_from(EARLIER))
    def leave(self, worker: WorkerId) -> None:
        for twin in self.twins:
            twin.remove_worker(worker)

    @rule(budget=st.sampled_from([-1, 1, 200, 3000]))
    def sweep(self, budget: int) -> None:
        pure, native = (twin.sweep(budget) for twin in self.twins)

        assert native == pure

    @rule(prompt=prompts, lazy=st.booleans())
    def find(self, prompt: list[int], *, lazy: bool) -> None:
        hashes = BlockHashes(list(range(len(prompt))), 1) if lazy else BlockHashes.of(prompt, 1)
        pure, native = self.twins

        assert native.find_groups(hashes) == pure.find_groups(hashes)
        matches = native.find_matches(hashes)
        assert list(matches.items()) == list(pure.find_matches(hashes).items())

    @invariant()
    def they_are_alike(self) -> None:
        pure, native = self.twins
        assert native.next_end == pure.next_end
        assert native.statistics() == pure.statistics()
        assert native.workers() == pure.workers()
        assert native.sizes(WORKERS) == pure.sizes(WORKERS)
        for path in PATHS:
            groups = pure.find_groups(BlockHashes.of(path, 1))
            assert native.find_groups(BlockHashes.of(path, 1)) == groups

    def teardown(self) -> None:
        if hasattr(self, "twins"):
            while self.twins[0].next_end < inf:
                self.now += 100.0
                self.expire(37)
                self.they_are_alike()


def test_both_cores_believe_the_same_whatever_they_are_told() -> None:
    TwinMachine.TestCase.settings = settings(max_examples=20, stateful_step_count=30)
    TwinMachine.TestCase("runTest").runTest()


@pytest.mark.parametrize("seed", range(3))
def test_both_stay_alike_through_growth_and_shrinking(seed: int) -> None:
    rng = random.Random(seed)
    twins: list[Any] = [make(60.0, max_entries=16_000) for make in (ApproxIndex, new_approx)]
    known: list[list[int]] = [[]]
    most = 0
    for step in range(700):
        path = rng.choice(known[-40:])
        path = path[: rng.randrange(len(path) + 1)]
        path = [*path, *(rng.getrandbits(64) for _ in range(rng.choice([0, 1, 1, 70, 300])))]
        known.append(path)
        worker = WorkerId(f"w{rng.choice([0, 0, 0, 1])}")
        for twin in twins:
            twin.record(worker, path, step / 5)
        if step % 9 == 0 and path:
            block = pack_hashes([rng.choice(path)])
            for twin in twins:
                twin.revoke(worker, block)
        most = max(most, twins[1].blocks(WORKERS[0]))
        if step % 50 == 0:
            assert twins[1].statistics() == twins[0].statistics()
            for one in known[-40:]:
                found = twins[0].find_groups(BlockHashes.of(one, 1))
                assert twins[1].find_groups(BlockHashes.of(one, 1)) == found
    pure, native = (twin.expire(150.0) for twin in twins)
    assert native == pure
    assert twins[1].statistics() == twins[0].statistics()
    assert most > 8000
    assert twins[0].statistics().pruned > 100
