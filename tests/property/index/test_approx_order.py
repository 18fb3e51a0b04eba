"""The index of believed prompts against a model that knows of each block when and in which turn it
ends: what expires, is displaced, pruned and revoked, to the block.
"""

import os
import random
from array import array
from collections import Counter, defaultdict
from math import ceil, inf
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.graded import grade, graded_depth, graded_length
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes, sequence_hashes
from kvmesh.core.index.approx import new_approx

EARLIER = [WorkerId(f"before{number}") for number in range(63)]
WORKER = WorkerId("w")
TRUNK = list(range(1400))
CUTS = (1, 30, 64, 65, 128, 256, 271, 272, 300)
TOKENS = [TRUNK, *([*TRUNK[:cut], *range(1000 * cut, 1000 * cut + 90)] for cut in CUTS)]
TOKENS += [[*one[: cut + 40], *range(10**6 * cut, 10**6 * cut + 40)]
           for cut, one in zip(CUTS, TOKENS[1:], strict=True)]  # fmt: skip
PATHS = [sequence_hashes(one, 1) for one in TOKENS]
SLICE = 2048

lengths = st.sampled_from([0, 1, 31, 63, 64, 65, 128, 255, 256, 257, 272, 400, 1400]) | (
    st.integers(1, 400)
)
prompts = st.builds(
    lambda number, length: PATHS[number][:length], st.integers(0, len(PATHS) - 1), lengths
)
ttls = st.sampled_from([None, 120.0, 5.0, 5.0, 0.7, 0.0, -1.0, 86_400.0])


class OrderMachine(RuleBasedStateMachine):
    """One worker, whatever its prompts; the index keeps all of their blocks, or some."""

    @initialize(
        limits=st.sampled_from(
            [(1 << 20, 0.8, None), (500, 0.5, None), (900, 0.8, 150), (3, 0.0, 0)]
        ),
        keeps=st.sampled_from(["all", "thinned", "graded"]),
        earlier=st.booleans(),
    )
    def start(self, limits: tuple[int, float, int | None], keeps: str, *, earlier: bool) -> None:
        self.most, target, self.room = limits
        self.pruned_to, self.keeps = int(self.most * target), keeps
        self.index = new_approx(
            max_entries=self.most, prune_target=target, worker_blocks=self.room,
            thinned=keeps == "thinned", graded=keeps == "graded",
        )  # fmt: skip
        for worker in EARLIER if earlier else ():
            self.index.record(worker, PATHS[0][:2], 0.0)
            self.index.remove_worker(worker)
        self.now = 1000.0
        self.ends: dict[int, tuple[float, int]] = {}
        self.parents: dict[int, int] = {}
        self.turn = 0
        self.pruning = False
        before = self.index.statistics()
        self.gone = Counter({name: getattr(before, name) for name in self.COUNTS})

    COUNTS = ("expired", "pruned", "displaced", "revoked")

    def kept(self, prompt: list[int]) -> list[int]:
        """Return what is kept of a prompt."""
        if self.keeps == "graded":
            return [*grade(prompt, len(prompt))]
        if self.keeps == "all":
            return prompt
        places = enumerate(prompt, 1)
        return [one for at, one in places if at <= 128 or at % 16 == 0 or at == len(prompt)]

    def drop(self, why: str, most: int) -> None:
        """Give up so many blocks: those that end first, of these what was asked for last."""
        if most <= 0:
            return
        order = sorted(self.ends, key=lambda one: (self.ends[one][0], -self.ends[one][1]))
        for block in order[:most]:
            del self.ends[block]
            self.gone[why] += 1

    def due(self) -> int:
        return sum(until <= self.now for until, _ in self.ends.values())

    def believe(self, blocks: list[int], ttl_s: float | None) -> None:
        self.drop("expired", min(SLICE, self.due()))
        ttl_s = 120.0 if ttl_s is None else ttl_s
        if not blocks or ttl_s <= 0:
            return
        tick_s = min(ttl_s / 16, 8.0 if self.room is None else 1.0)
        until, before = ceil((self.now + ttl_s) / tick_s) * tick_s, len(self.ends)
        for parent, block in zip([0, *blocks], blocks, strict=False):
            self.turn += 1
            self.parents[block] = parent
            if self.ends.get(block, (-inf, 0))[0] < until:
                self.ends[block] = until, self.turn
        updates = len(self.ends) - before
        if updates and self.room is not None:
            self.drop("displaced", len(self.ends) - self.room)
        if self.pruning or len(self.ends) > self.most:
            excess, most = len(self.ends) - self.pruned_to, max(SLICE, updates * 2)
            self.drop("pruned", min(excess, most))
            self.pruning = excess > most

    @rule(prompt=prompts, ttl_s=ttls, form=st.sampled_from([list, lambda one: array("Q", one)]))
    def record(self, prompt: list[int], ttl_s: float | None, form: Any) -> None:
        self.index.record(WORKER, form(prompt), self.now, ttl_s)
        self.believe(self.kept(prompt), ttl_s)

    @rule(prompt=prompts)
    def record_hashes(self, prompt: list[int]) -> None:
        self.index.record(WORKER, BlockHashes.of(prompt, 1), self.now)
        self.believe(self.kept(prompt), None)

    @rule(prompt=prompts, ttl_s=ttls, known=st.integers(-1, 500))
    def record_graded(self, prompt: list[int], ttl_s: float | None, known: int) -> None:
        graded = grade(prompt, len(prompt))
        if self.keeps == "graded":
            self.index.record_graded(WORKER, graded, known, self.now, ttl_s)
            self.believe([*graded[: graded_length(max(0, known))]], ttl_s)
        else:
            with pytest.raises(ValueError, match="keeps no graded blocks"):
                self.index.record_graded(WORKER, graded, known, self.now, ttl_s)

    @rule(seconds=st.sampled_from([0.01, 0.3, 3.0, 8.0, 60.0, -5.0]))
    def wait(self, seconds: float) -> None:
        self.now += seconds

    @rule(budget=st.none() | st.integers(-1, 100))
    def expire(self, budget: int | None) -> None:
        done = self.index.expire(self.now, budget)

        self.drop("expired", self.due() if budget is None else min(budget, self.due()))
        assert done or budget is not None
        assert not (done and self.due())

    @rule(ends=st.lists(prompts, max_size=3), odd=st.binary(max_size=3))
    def revoke(self, ends: list[list[int]], odd: bytes) -> None:
        blocks = [prompt[-1] for prompt in ends if prompt]
        self.index.revoke(WORKER, pack_hashes(blocks) + odd)
        # What follows a block that is not believed is not believed either.
        children = defaultdict(list)
        for block in self.ends:
            children[self.parents[block]].append(block)
        for block in blocks:
            if self.ends.pop(block, None):
                self.gone["revoked"] += 1
                blocks += children[block]

    @rule()
    def leave(self) -> None:
        self.index.remove_worker(WORKER)
        self.ends.clear()

    @rule(budget=st.sampled_from([-1, 1, 200, 3000]))
    def sweep(self, budget: int) -> None:
        self.index.sweep(budget)

    @rule(prompt=prompts, lazy=st.booleans())
    def find(self, prompt: list[int], *, lazy: bool) -> None:
        hashes = BlockHashes.of(prompt, 1)
        if lazy and prompt:
            path = next(number for number, one in enumerate(PATHS) if one[: len(prompt)] == prompt)
            hashes = BlockHashes(TOKENS[path][: len(prompt)], 1)
        kept = self.kept(prompt)
        held = next((at for at, one in enumerate(kept) if one not in self.ends), len(kept))
        depth = held
        if self.keeps == "graded":
            depth = min(graded_depth(held), len(prompt))
        elif held and self.keeps == "thinned":
            depth = prompt.index(kept[held - 1]) + 1

        assert self.index.find_groups(hashes) == ([(depth, (WORKER,))] if depth else [])
        assert self.index.find_matches(hashes) == ({WORKER: depth} if depth else {})

    @invariant()
    def they_are_alike(self) -> None:
        statistics = self.index.statistics()
        assert statistics.entries == self.index.blocks(WORKER) == len(self.ends)
        assert self.index.sizes([WORKER]) == [len(self.ends)]
        assert Counter({name: getattr(statistics, name) for name in self.COUNTS}) == self.gone
        assert self.index.next_end <= min((end for end, _ in self.ends.values()), default=inf)
        for path in PATHS:
            self.find(path, lazy=False)

    def teardown(self) -> None:
        while self.ends:
            self.now += 100.0
            self.expire(37)
            self.they_are_alike()


TestOrder = OrderMachine.TestCase
WALKS = 10 if os.environ.get("HYPOTHESIS_PROFILE") == "mutants" else 40
TestOrder.settings = settings(max_examples=WALKS, stateful_step_count=30)


@pytest.mark.parametrize("seed", range(3))
def test_beliefs_that_grow_branch_and_shrink_for_long_end_in_order(seed: int) -> None:
    rng, machine = random.Random(seed), OrderMachine()
    machine.start((4_000, 0.8, None), "all", earlier=False)
    known: list[list[int]] = [[]]
    for step in range(700):
        path = rng.choice(known[-40:])
        path = path[: rng.randrange(len(path) + 1)]
        path = [*path, *(rng.getrandbits(64) for _ in range(rng.choice([0, 1, 1, 70, 300])))]
        known.append(path)
        machine.now = step / 5
        machine.record(path, 60.0, list)
        if step % 9 == 0 and path:
            machine.revoke([path[: rng.randint(1, len(path))]], b"")
        if step % 50 == 0:
            machine.they_are_alike()
            for one in known[-40:]:
                machine.find(one, lazy=False)
    assert machine.gone["pruned"] > 100
    machine.teardown()


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
