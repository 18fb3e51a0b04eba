"""The index against a model that is too simple to be wrong: a set of blocks per worker and tier."""

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
)

from kvmesh.core.blocks.events import (
    ENDS,
    ROOT,
    Cleared,
    Event,
    Removed,
    Reuse,
    Stored,
    WorkerId,
)
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes, sequence_hashes
from kvmesh.core.index.freeze import FrozenIndex
from kvmesh.core.index.index import KvIndex
from kvmesh.core.index.snapshot_reading import decode_snapshot
from kvmesh.core.index.snapshot_writing import Position, encode_snapshot

WORKERS = [WorkerId(f"w{number}") for number in range(5)]
TIERS = 2
DEPTH = 5
BRANCHES = 2

Contents = dict[tuple[WorkerId, int], set[int]]

workers = st.sampled_from(WORKERS)
tiers = st.sampled_from([0, 0, 0, 1])
paths = st.lists(st.integers(0, BRANCHES - 1), min_size=1, max_size=DEPTH)
full_paths = st.lists(st.integers(0, BRANCHES - 1), min_size=DEPTH, max_size=DEPTH)


def chain(path: list[int]) -> list[int]:
    return sequence_hashes(path, 1)


def parents() -> dict[int, int]:
    known: dict[int, int] = {}
    level: list[list[int]] = [[]]
    for _ in range(DEPTH):
        level = [[*path, token] for path in level for token in range(BRANCHES)]
        for path in level:
            hashes = [ROOT, *chain(path)]
            known[hashes[-1]] = hashes[-2]
    return known


PARENT = parents()
LONG = sequence_hashes(range(3000), 1)
LEAVES = [chain([number >> bit & 1 for bit in range(DEPTH)]) for number in range(BRANCHES**DEPTH)]


def descendants(block: int, held: set[int]) -> list[int]:
    """Return the block and all held blocks behind it, leaves first."""
    found = [block]
    for one in found:
        found += [child for child in held if PARENT[child] == one]
    return found[::-1]


def contents(frozen: FrozenIndex) -> Contents:
    held: Contents = {}
    for tier, shard, part in frozen.parts():
        for key, mask in part.items():
            for one in frozen.workers:
                if mask & one.bit:
                    held.setdefault((one.worker, tier), set()).add(key << 8 | shard)
    return held


def depth(held: set[int], hashes: list[int]) -> int:
    count = 0
    while count < len(hashes) and hashes[count] in held:
        count += 1
    return count


def nonempty(held: Contents) -> Contents:
    return {key: blocks for key, blocks in held.items() if blocks}


class IndexMachine(RuleBasedStateMachine):
    """Every kind of change, in any order."""

    frozen = Bundle("frozen")

    def __init__(self) -> None:
        super().__init__()
        self.index = KvIndex()
        self.held: Contents = {}
        self.orphans = self.missing = 0

    def of(self, worker: WorkerId, tier: int) -> set[int]:
        return self.held.setdefault((worker, tier), set())

    @rule(
        worker=workers, path=paths, start=st.integers(0, DEPTH - 1), tier=tiers, twice=st.booleans()
    )
    def store(self, worker: WorkerId, path: list[int], start: int, tier: int, twice: bool) -> None:
        hashes = [ROOT, *chain(path)]
        run = hashes[start + 1 :]
        held = self.of(worker, tier)
        parent = hashes[min(start, len(hashes) - 1)]
        known = parent == ROOT or parent in held
        event = Stored(parent, pack_hashes(run), tier)

        for _ in range(1 + twice):
            gap = self.index.apply(worker, event)

            assert gap == (0 if known else len(run))
            self.orphans += gap
        if known:
            held.update(run)

    @rule(worker=workers, tier=tiers, choice=st.data())
    def evict(self, worker: WorkerId, tier: int, choice: st.DataObject) -> None:
        held = self.of(worker, tier)
        if not held:
            return
        gone = descendants(choice.draw(st.sampled_from(sorted(held))), held)
        shuffled = choice.draw(st.permutations(gone))

        self.index.apply(worker, Removed(pack_hashes(shuffled), tier))

        held.difference_update(gone)

    @rule(worker=workers, tier=tiers, path=paths)
    def evict_what_is_not_held(self, worker: WorkerId, tier: int, path: list[int]) -> None:
        unheld = [block for block in chain(path) if block not in self.of(worker, tier)]

        self.index.apply(worker, Removed(pack_hashes(unheld), tier))

        self.missing += len(unheld)

    @rule(worker=workers)
    def clear(self, worker: WorkerId) -> None:
        assert self.index.apply(worker, Cleared()) == 0
        for tier in range(TIERS):
            self.of(worker, tier).clear()

    @rule(worker=workers)
    def leave(self, worker: WorkerId) -> None:
        self.index.remove_worker(worker)

        assert worker not in self.index.workers()
        for tier in range(TIERS):
            self.of(worker, tier).clear()

    @rule(budget=st.sampled_from([1, 300, 2000]))
    def sweep(self, budget: int) -> None:
        done = self.index.sweep(budget)

        assert done == (self.index.statistics().unclean == 0)

    @rule(target=frozen)
    def freeze(self) -> tuple[FrozenIndex, Contents]:
        return self.index.freeze(), {key: set(blocks) for key, blocks in self.held.items()}

    @rule(view=consumes(frozen))
    def a_frozen_view_shows_what_was(self, view: tuple[FrozenIndex, Contents]) -> None:
        frozen, held = view

        assert contents(frozen) == nonempty(held)

    @rule(view=consumes(frozen))
    def go_back_to_a_snapshot(self, view: tuple[FrozenIndex, Contents]) -> None:
        frozen, held = view
        data = b"".join(encode_snapshot(frozen, Position("s", 7)))
        snapshot = decode_snapshot(data)

        self.index.load(snapshot.image, snapshot.truncated)

        self.held = held

    @invariant()
    def answers_are_exact(self) -> None:
        for hashes in LEAVES:
            expected = {
                worker: found
                for worker in WORKERS
                if (found := depth(self.held.get((worker, 0), set()), hashes))
            }
            groups = self.index.find_groups(BlockHashes.of(hashes, 1))

            assert {worker: deep for deep, group in groups for worker in group} == expected
            depths = [deep for deep, _ in groups]
            assert depths == sorted(set(depths), reverse=True)

    @invariant()
    def tiers_are_read_as_held_there_or_nearer(self) -> None:
        for hashes in LEAVES[::7]:
            nearer = dict.fromkeys(WORKERS, 0)
            for tier, found in enumerate(self.index.find_tier_matches(BlockHashes.of(hashes, 1))):
                for worker in WORKERS:
                    here = depth(self.held.get((worker, tier), set()), hashes)
                    nearer[worker] = max(nearer[worker], here)
                assert found == {worker: deep for worker, deep in nearer.items() if deep}

    @invariant()
    def counts_and_digests_are_exact(self) -> None:
        digest = dict.fromkeys(WORKERS, 0)
        for (worker, tier), blocks in self.held.items():
            assert self.index.blocks(worker, tier) == len(blocks)
            digest[worker] += (2 * tier + 1) * sum(blocks)
        for worker in WORKERS:
            assert self.index.worker_digest(worker) == digest[worker] % 2**64
        statistics = self.index.statistics()
        assert statistics.entries == sum(map(len, self.held.values()))

    @rule()
    def the_digest_depends_on_contents_alone(self) -> None:
        other = KvIndex()
        for (worker, tier), blocks in sorted(self.held.items(), reverse=True):
            for block in sorted(
                blocks, key=lambda one: len(descendants(one, blocks)), reverse=True
            ):
                assert other.apply(worker, Stored(PARENT[block], pack_hashes([block]), tier)) == 0
        assert other.digest() == self.index.digest()

    def teardown(self) -> None:
        statistics = self.index.statistics()
        assert statistics.orphans == self.orphans
        assert statistics.missing == self.missing
        assert statistics.evicted == statistics.truncated_orphans == 0


TestIndex = IndexMachine.TestCase
TestIndex.settings = settings(max_examples=30, stateful_step_count=30)


class CappedMachine(RuleBasedStateMachine):
    """An index too small for what it is told."""

    MAX_BLOCKS = 16

    def __init__(self) -> None:
        super().__init__()
        self.index = KvIndex(self.MAX_BLOCKS)
        self.reported: Contents = {}
        self.now: Contents = {}

    def settle(self) -> None:
        self.now = contents(self.index.freeze())

    @initialize(history=st.lists(st.tuples(workers, full_paths), min_size=3, max_size=8))
    def fill(self, history: list[tuple[WorkerId, list[int]]]) -> None:
        for worker, path in history:
            self.store(worker, path, 0, 0)

    @rule(worker=workers, path=full_paths, start=st.integers(0, 2), tier=tiers)
    def store(self, worker: WorkerId, path: list[int], start: int, tier: int) -> None:
        hashes = [ROOT, *chain(path)]
        start = min(start, len(path) - 1)
        parent, run = hashes[start], hashes[start + 1 :]
        reported = self.reported.setdefault((worker, tier), set())
        if parent == ROOT or parent in reported:
            reported.update(run)

        gap = self.index.apply(worker, Stored(parent, pack_hashes(run), tier))

        if gap:
            assert not self.index.truncated(worker)
            assert parent not in self.now.get((worker, tier), set())
        self.settle()

    @rule(worker=workers, tier=tiers, choice=st.data())
    def evict(self, worker: WorkerId, tier: int, choice: st.DataObject) -> None:
        reported = self.reported.setdefault((worker, tier), set())
        if reported:
            gone = descendants(choice.draw(st.sampled_from(sorted(reported))), reported)
            self.index.apply(worker, Removed(pack_hashes(gone), tier))
            reported.difference_update(gone)
            self.settle()

    @rule(worker=workers)
    def clear(self, worker: WorkerId) -> None:
        self.index.apply(worker, Cleared())

        for tier in range(TIERS):
            self.reported.pop((worker, tier), None)
        assert not self.index.truncated(worker)
        self.settle()

    @rule(leaf=st.sampled_from(LEAVES), budget=st.integers(0, 600))
    def match_and_tidy_up(self, leaf: list[int], budget: int) -> None:
        found = self.index.find_matches(BlockHashes.of(leaf, 1))

        expected = {worker: depth(self.now.get((worker, 0), set()), leaf) for worker in WORKERS}
        assert found == {worker: deep for worker, deep in expected.items() if deep}
        before = self.now
        self.index.sweep(budget)
        self.settle()
        assert self.now == before

    @rule()
    def restart(self) -> None:
        truncated = [worker for worker in WORKERS if self.index.truncated(worker)]
        data = b"".join(encode_snapshot(self.index.freeze(), Position()))
        snapshot = decode_snapshot(data)

        self.index.load(snapshot.image, snapshot.truncated)

        before = self.now
        self.settle()
        assert self.now == before
        assert [worker for worker in WORKERS if self.index.truncated(worker)] == truncated

    @invariant()
    def what_is_held_is_part_of_what_was_told(self) -> None:
        for (worker, tier), reported in self.reported.items():
            held = self.now.get((worker, tier), set())
            assert held <= reported
            if held < reported:
                assert self.index.truncated(worker)

    @invariant()
    def every_worker_stays_prefix_closed(self) -> None:
        for blocks in self.now.values():
            assert all(PARENT[block] == ROOT or PARENT[block] in blocks for block in blocks)

    @invariant()
    def memory_is_bounded(self) -> None:
        assert self.index.statistics().blocks <= self.MAX_BLOCKS

    @invariant()
    def counts_and_digests_are_exact(self) -> None:
        for worker in WORKERS:
            digest = 0
            for tier in range(TIERS):
                blocks = self.now.get((worker, tier), set())
                assert self.index.blocks(worker, tier) == len(blocks)
                digest += (2 * tier + 1) * sum(blocks)
            assert self.index.worker_digest(worker) == digest % 2**64


TestCappedIndex = CappedMachine.TestCase
TestCappedIndex.settings = settings(max_examples=25, stateful_step_count=40)


blocks = st.integers(0, 3) | st.sampled_from([255, 256, 2**63, 2**64 - 1])
runs = st.lists(blocks, max_size=5).map(pack_hashes) | st.binary(max_size=40)
places = st.sampled_from([0, 0, 1, 3, -1, 4, ENDS, ENDS + 1, ENDS + 4])
events = st.one_of(
    st.builds(Stored, blocks | st.sampled_from([ROOT, -1, 2**64, -(2**70), 2**70]), runs, places),
    st.builds(Removed, runs, places),
    st.builds(Reuse, st.integers(0, 2), st.integers(0, 2)),
    st.builds(Cleared),
)


@given(st.lists(st.tuples(workers, events), max_size=40))
@settings(max_examples=50)
def test_nonsense_neither_raises_nor_falsifies_the_counts(
    history: list[tuple[WorkerId, Event]],
) -> None:
    index = KvIndex(max_blocks=16)
    asked = [1, 2, 3, 0]

    for worker, event in history:
        index.apply(worker, event)
        for ids in (None, b"\1\0\0\0" * 9):
            index.find_hits(BlockHashes.of(asked, 1, ids))
            index.find_tier_matches(BlockHashes.of(asked, 1, ids))
    again = decode_snapshot(b"".join(encode_snapshot(index.freeze(), Position("s", 1))))

    held = contents(index.freeze())
    restored = KvIndex(max_blocks=16)
    restored.load(again.image, again.truncated)
    assert restored.digest() == index.digest()
    for worker in index.workers():
        found = [held.get((worker, tier), set()) for tier in range(4)]
        assert [index.blocks(worker, tier) for tier in range(4)] == [len(one) for one in found]
        digest = sum((2 * tier + 1) * sum(blocks) for tier, blocks in enumerate(found))
        if not index.grouped:
            assert index.worker_digest(worker) == digest % 2**64


@given(
    st.lists(st.integers(0, 3000), min_size=1, max_size=130),
    st.integers(0, 3000) | st.sampled_from([1, 15, 16, 17, 63, 64, 65]),
)
@settings(max_examples=30)
def test_long_prefixes_of_many_workers_are_found_to_the_block(held: list[int], asked: int) -> None:
    index = KvIndex()
    for number, blocks in enumerate(held):
        index.apply(WorkerId(f"w{number}"), Stored(ROOT, pack_hashes(LONG[:blocks])))
        if number % 3 == 0:
            index.remove_worker(WorkerId(f"w{number // 2}"))
            held[number // 2] = 0

    depths = {WorkerId(f"w{one}"): min(blocks, asked) for one, blocks in enumerate(held)}

    for hashes in (BlockHashes.of(LONG[:asked], 1), BlockHashes([*range(asked)], 1)):
        found = index.find_matches(hashes)
        assert found == {worker: depth for worker, depth in depths.items() if depth}
    view = index.current_view()
    for slot, (name, size) in enumerate(zip(view.names, view.sizes(), strict=True)):
        assert size == (held[int(name[1:])] if view.live >> slot & 1 else 0)


@given(
    st.lists(st.tuples(workers, paths), min_size=1, max_size=12),
    st.lists(st.tuples(workers, paths), min_size=1, max_size=12),
)
def test_digests_are_equal_exactly_when_contents_are(
    first: list[tuple[WorkerId, list[int]]], second: list[tuple[WorkerId, list[int]]]
) -> None:
    indexes = []
    for history in (first, second):
        index = KvIndex()
        for worker, path in history:
            index.apply(worker, Stored(ROOT, pack_hashes(chain(path))))
        indexes.append(index)

    same = contents(indexes[0].freeze()) == contents(indexes[1].freeze())

    assert (indexes[0].digest() == indexes[1].digest()) == same
