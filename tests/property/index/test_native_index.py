"""The compiled table and index against the pure ones: the same answers, counts, orders and bytes.

What is told here breaks every promise: holes, unknown parents, odd lengths, tiers that are none.
"""

import random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    Bundle,
    RuleBasedStateMachine,
    consumes,
    initialize,
    invariant,
    rule,
    run_state_machine_as_test,
)

from kvmesh._native import Table
from kvmesh.core.blocks.events import ENDS, ROOT, Cleared, Event, Removed, Reuse, Stored, WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, extend_hash, lookahead_digest, pack_hashes
from kvmesh.core.index.freeze import FrozenIndex
from kvmesh.core.index.index import KvIndex
from kvmesh.core.index.slots import Slots
from kvmesh.core.index.snapshot_reading import decode_snapshot
from kvmesh.core.index.snapshot_writing import Position, encode_snapshot
from tests.reference.index.table import NAIVE

U64 = 2**64 - 1
TABLES: list[type[Table]] = [NAIVE, Table]
EARLIER = [WorkerId(f"before{number}") for number in range(62)]
WORKERS = [*EARLIER[:1], *(WorkerId(f"w{number}") for number in range(5))]
BLOCKS = [1, 2, 255, 256, U64, 1 << 63, *(number << 8 | 7 for number in range(40))]

workers = st.sampled_from(WORKERS)
blocks = st.sampled_from(BLOCKS)
runs = st.lists(blocks, max_size=25).map(pack_hashes)
odd_runs = runs | st.binary(max_size=20)
parents = st.just(ROOT) | blocks | st.sampled_from([-1, 2**64, 2**70])
tiers = st.sampled_from([0, 0, 0, 0, 1, 3, -1, 4, ENDS, ENDS, ENDS + 1, ENDS + 4])
ids = st.sampled_from([None, b"\1\0\0\0" * 200, b"\1\0\0\0\2\0\0\0" * 6])
"""What of a prompt's tokens is known: nothing, all, or those of the first 12 blocks of one."""
KEYS = [
    extend_hash(block, lookahead_digest(behind))
    for block in BLOCKS[:12]
    for behind in (b"\1\0\0\0", b"\2\0\0\0", b"\1\0\0\0\2\0\0\0")
]
ends = st.lists(st.sampled_from([*BLOCKS[:12], *KEYS]), max_size=25).map(pack_hashes)
events = st.one_of(
    st.builds(Reuse, st.sampled_from([0, 0, 1, 2]), st.integers(0, 2)),
    st.builds(Stored, st.just(ROOT), ends, st.sampled_from([ENDS, ENDS + 1])),
    st.builds(Removed, ends, st.sampled_from([ENDS, ENDS + 1])),
    st.builds(Stored, parents, odd_runs, tiers),
    st.builds(Stored, st.just(ROOT), runs),
    st.builds(Removed, odd_runs, tiers),
    st.builds(Cleared),
)


def bytes_of(frozen: FrozenIndex) -> bytes:
    return b"".join(encode_snapshot(frozen, Position("s", 1)))


class TwinMachine(RuleBasedStateMachine):
    """Two indexes that are told the same."""

    views = Bundle("views")

    @initialize(max_blocks=st.sampled_from([16, 40, 4096]), earlier=st.booleans())
    def start(self, max_blocks: int, earlier: bool) -> None:
        self.twins = [KvIndex(max_blocks, new_table=new) for new in TABLES]
        for worker in EARLIER if earlier else ():
            self.tell(worker, Stored(ROOT, pack_hashes(BLOCKS[:2])))

    @rule(worker=workers, event=events)
    def tell(self, worker: WorkerId, event: Event) -> None:
        pure, native = (index.apply(worker, event) for index in self.twins)

        assert pure == native

    @rule(worker=workers, run=odd_runs, tier=tiers)
    def remove(self, worker: WorkerId, run: bytes, tier: int) -> None:
        pure, native = (index.remove(worker, run, tier) for index in self.twins)

        assert pure == native

    @rule(worker=workers)
    def leave(self, worker: WorkerId) -> None:
        for index in self.twins:
            index.remove_worker(worker)

    @rule(budget=st.sampled_from([1, 300, 3000]))
    def sweep(self, budget: int) -> None:
        pure, native = (index.sweep(budget) for index in self.twins)

        assert pure == native

    @rule(asked=st.lists(blocks | st.just(0), max_size=200), ids=ids)
    def find(self, asked: list[int], ids: bytes | None) -> None:
        prompt = BlockHashes.of(asked, 1, ids)
        pure, native = self.twins

        assert native.find_hits(prompt) == pure.find_hits(prompt)
        assert native.find_groups(prompt) == pure.find_groups(prompt)
        assert native.find_matches(prompt) == pure.find_matches(prompt)
        assert native.find_tier_matches(prompt) == pure.find_tier_matches(prompt)

    @rule()
    def look_at_the_view(self) -> None:
        pure, native = (index.current_view() for index in self.twins)

        assert (native.names, native.live, native.sizes()) == (pure.names, pure.live, pure.sizes())
        held = dict.fromkeys(native.names, 0)
        for slot, size in enumerate(native.sizes()):
            if native.live >> slot & 1:
                held[native.names[slot]] = size
        assert list(held.values()) == [self.twins[1].blocks(worker) for worker in held]

    @rule(target=views)
    def freeze(self) -> list[FrozenIndex]:
        return [index.freeze() for index in self.twins]

    @rule(pair=consumes(views))
    def read(self, pair: list[FrozenIndex]) -> None:
        assert bytes_of(pair[1]) == bytes_of(pair[0])

    @rule(pair=consumes(views))
    def read_as_dicts(self, pair: list[FrozenIndex]) -> None:
        pure, native = (
            [(*place, list(held.items())) for *place, held in one.parts()] for one in pair
        )

        assert native == pure

    @rule(pair=consumes(views), reads=st.integers(0, 300))
    def give_up_half_way(self, pair: list[FrozenIndex], reads: int) -> None:
        for one in pair:
            parts = one.parts()
            for _ in range(reads):
                next(parts, None)
            one.close()

    @rule(pair=consumes(views), swapped=st.booleans())
    def go_back(self, pair: list[FrozenIndex], swapped: bool) -> None:
        reported = [bytes_of(one) for one in pair]
        for index, data, new in zip(self.twins, reported, TABLES, strict=True):
            snapshot = decode_snapshot(data, NAIVE if swapped else new)
            index.load(snapshot.image, snapshot.truncated)

    @invariant()
    def they_are_alike(self) -> None:
        pure, native = self.twins
        assert native.statistics() == pure.statistics()
        assert native.digest() == pure.digest()
        assert native.workers() == pure.workers()
        for worker in WORKERS:
            assert [native.blocks(worker, tier) for tier in range(4)] == [
                pure.blocks(worker, tier) for tier in range(4)
            ]

    def teardown(self) -> None:
        assert bytes_of(self.twins[1].freeze()) == bytes_of(self.twins[0].freeze())


def test_both_cores_do_the_same_whatever_they_are_told() -> None:
    run_state_machine_as_test(
        TwinMachine, settings=settings(max_examples=40, stateful_step_count=30)
    )


@pytest.mark.parametrize("seed", range(4))
def test_two_tables_stay_alike_through_growth_and_churn(seed: int) -> None:
    rng, slots = random.Random(seed), Slots()
    tables = [NAIVE(), Table()]
    bits = [slots.assign(WorkerId(f"w{number}")) for number in range(130)]
    busy = rng.sample(range(130), 5)
    known = [rng.getrandbits(64) & ~255 | rng.randrange(3) for _ in range(3000)]
    for step in range(600):
        number = rng.choice(busy)
        run = pack_hashes(rng.sample(known, rng.choice([1, 3, 60])))
        kind = rng.random()
        for table in tables:
            holding = table.admit(WorkerId(f"w{number}"), bits[number])
            if kind < 0.6 - 0.4 * (step > 400):
                table.store(holding, run)
            else:
                table.remove(holding, run)
        if step % 50 == 0:
            dead = bits[rng.choice(busy)] | bits[rng.randrange(130)]
            assert len({table.clear_bits(1, dead, 0) for table in tables}) == 1
        pure, native = (table.admit(WorkerId(f"w{number}"), bits[number]) for table in tables)
        assert (native.bit, native.digest) == (pure.bit, pure.digest & U64)
        assert native.blocks == pure.blocks
        if step % 50 != 0:
            continue
        frozen = [table.freeze() for table in tables]
        for shard in range(4):
            pure_items, native_items = (list(one.take(shard).items()) for one in frozen)
            assert native_items == pure_items
    assert tables[0].size() == tables[1].size() > 0
