"""The approximate index against a model: per worker, block -> until when it is believed."""

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes, sequence_hashes
from kvmesh.core.index.approx import new_approx

WORKERS = [WorkerId(f"w{number}") for number in range(3)]
DEPTH = 5
TTLS = [5.0, 120.0]
LEAVES = [
    sequence_hashes([number >> bit & 1 for bit in range(DEPTH)], 1) for number in range(1 << DEPTH)
]

workers = st.sampled_from(WORKERS)
prompts = st.tuples(st.sampled_from(LEAVES), st.integers(1, DEPTH)).map(
    lambda one: one[0][: one[1]]
)


class ApproxMachine(RuleBasedStateMachine):
    """Prompts, time, removals; no limits on size."""

    def __init__(self) -> None:
        super().__init__()
        self.index = new_approx()
        self.now = 1000.0
        self.since: dict[WorkerId, dict[int, float]] = {worker: {} for worker in WORKERS}

    @rule(worker=workers, prompt=prompts, ttl=st.sampled_from(TTLS))
    def route(self, worker: WorkerId, prompt: list[int], ttl: float) -> None:
        self.index.record(worker, prompt, self.now, ttl)
        for block in prompt:
            until = self.now + ttl
            self.since[worker][block] = max(self.since[worker].get(block, 0.0), until)

    @rule(worker=workers, prompt=prompts)
    def revoke(self, worker: WorkerId, prompt: list[int]) -> None:
        self.index.revoke(worker, pack_hashes(prompt[-1:]))

        for leaf in LEAVES:
            if leaf[: len(prompt)] == prompt:
                for block in leaf[len(prompt) - 1 :]:
                    self.since[worker].pop(block, None)
                found = self.index.find_matches(BlockHashes.of(leaf, 1)).get(worker, 0)
                assert found < len(prompt)

    @rule(seconds=st.sampled_from([0.01, 0.5, 3.0, 60.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(budget=st.integers(1, 10))
    def expire_a_little(self, budget: int) -> None:
        self.index.expire(self.now, budget)

    @rule()
    def expire(self) -> None:
        assert self.index.expire(self.now)
        for worker in WORKERS:
            for leaf in LEAVES:
                found = self.index.find_matches(BlockHashes.of(leaf, 1)).get(worker, 0)
                ends = [self.since[worker].get(block, 0.0) for block in leaf[:found]]
                assert all(end + max(TTLS) / 16 >= self.now for end in ends)

    @rule(worker=workers)
    def leave(self, worker: WorkerId) -> None:
        self.index.remove_worker(worker)
        self.since[worker].clear()

    @rule(budget=st.sampled_from([10, 1000]))
    def sweep(self, budget: int) -> None:
        self.index.sweep(budget)

    @invariant()
    def nothing_is_forgotten_early_or_made_up(self) -> None:
        for leaf in LEAVES:
            found = self.index.find_matches(BlockHashes.of(leaf, 1))
            for worker in WORKERS:
                since = self.since[worker]
                depth = found.get(worker, 0)
                assert all(block in since for block in leaf[:depth])
                believed = [since.get(block, 0.0) > self.now for block in leaf]
                assert depth >= (believed.index(False) if False in believed else DEPTH)

    @invariant()
    def counts_are_those_of_prefix_closed_sets(self) -> None:
        entries = 0
        for worker in WORKERS:
            held = set()
            for leaf in LEAVES:
                depth = self.index.find_matches(BlockHashes.of(leaf, 1)).get(worker, 0)
                held.update(leaf[:depth])
            assert self.index.blocks(worker) == len(held)
            entries += len(held)
        assert self.index.statistics().entries == entries


TestApprox = ApproxMachine.TestCase
TestApprox.settings = settings(max_examples=30, stateful_step_count=30)


class BoundedMachine(RuleBasedStateMachine):
    """The same within a cap and a capacity per worker."""

    def __init__(self) -> None:
        super().__init__()
        self.index = new_approx(max_entries=25, worker_blocks=12)
        self.now = 0.0

    @rule(worker=workers, prompt=prompts, ttl=st.sampled_from(TTLS))
    def route(self, worker: WorkerId, prompt: list[int], ttl: float) -> None:
        # Each in a tick of its own: of prompts that end together the latest is displaced first.
        self.now += 1.1
        self.index.record(worker, prompt, self.now, ttl)

        found = self.index.find_matches(BlockHashes.of(prompt, 1)).get(worker, 0)
        # What ends first is displaced first: only the longest-lived prompt is safe at once.
        shorter = ttl < max(TTLS)
        assert found == len(prompt) or self.index.statistics().pruned or shorter

    @rule(worker=workers)
    def leave(self, worker: WorkerId) -> None:
        self.index.remove_worker(worker)

    @invariant()
    def limits_and_prefixes_hold(self) -> None:
        assert self.index.statistics().entries <= 25
        for worker in WORKERS:
            held = set()
            for leaf in LEAVES:
                depth = self.index.find_matches(BlockHashes.of(leaf, 1)).get(worker, 0)
                held.update(leaf[:depth])
            assert self.index.blocks(worker) == len(held) <= 12


TestBoundedApprox = BoundedMachine.TestCase
TestBoundedApprox.settings = settings(max_examples=30, stateful_step_count=30)
