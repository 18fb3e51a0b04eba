"""The compiled bookings do what the pure ones do, to the last bit."""

import random
from typing import Any

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvmesh._native import Arrivals, Booking
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.graded import key_depth, sharing_keys
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.members.loads import LOCAL, MOST_TOKENS, Demand, new_sequences
from kvmesh.core.members.silent_growth import UnseenWork, grow_unseen
from tests.reference.workers import arrivals, loads, sequences

WORKERS = [WorkerId("w1"), WorkerId("w2"), WorkerId("w3")]
FIELDS = tuple(one.name for one in msgspec.structs.fields(loads.Booking))
SUMS = (
    "worker", "prefill_tokens", "prompt_tokens", "active_requests", "active_blocks",
    "expected_blocks", "silent", "unseen_requests", "unseen_blocks", "unseen_tokens", "progress_s",
    "shared", "waiting_requests", "booked_requests", "booked_blocks", "booked_tokens",
)  # fmt: skip

ids = st.integers(0, 12).map(lambda number: f"r{number}")
workers = st.sampled_from(WORKERS)
owners = st.sampled_from([LOCAL, "router-b", "router-c"])
amounts = st.integers(-3, 90) | st.sampled_from(
    [0, 400, 5000, 30_000, MOST_TOKENS, MOST_TOKENS + 1, 1 << 70, -(1 << 70)]
)
hashes = st.builds(
    lambda family, count: [family * 10000 + depth for depth in range(count)],
    st.integers(0, 2),
    st.integers(0, 30) | st.sampled_from([300, 1100, 1800]),
)  # fmt: skip


class Names(str):
    """Text, but not of the type itself."""

    __slots__ = ()


def seen(bookings: Booking | loads.Booking | list[Booking] | list[loads.Booking] | None) -> object:
    """Return what can be read of bookings."""
    if isinstance(bookings, list):
        return [seen(one) for one in bookings]
    return bookings and [getattr(bookings, name) for name in FIELDS]


class BothSequences(RuleBasedStateMachine):
    """The same requests, kept twice."""

    @initialize(size=st.sampled_from([1, 4, 16]))
    def begin(self, size: int) -> None:
        self.pure = sequences.ActiveSequences(size, lease_s=5.0)
        self.native = new_sequences(size, lease_s=5.0)
        self.now = 1000.0

    @property
    def twins(self) -> tuple[Any, Any]:
        return self.pure, self.native

    @rule(pause=st.floats(-2.0, 4.0) | st.sampled_from([0.0, 1e-3, 60.0]))
    def wait(self, pause: float) -> None:
        self.now += pause

    @rule(
        request_id=ids,
        worker=workers,
        owner=owners,
        tokens=st.tuples(amounts, amounts, amounts),
        known=hashes,
        flags=st.tuples(st.booleans(), st.booleans(), st.booleans()),
    )
    def add(
        self,
        *,
        request_id: str,
        worker: WorkerId,
        owner: str,
        tokens: tuple[int, int, int],
        known: list[int],
        flags: tuple[bool, bool, bool],
    ) -> None:
        streams, believed, turn = flags
        kept = BlockHashes.of(known, 4) if believed else None
        keys = tuple(sharing_keys(known))
        demand = Demand(*tokens, keys, streams=streams, hashes=kept, turn=turn)
        pure, native = (
            twin.add(request_id, worker, demand, self.now, owner=owner) for twin in self.twins
        )
        assert pure == native

    @rule(request_id=ids, tokens=amounts)
    def grow(self, request_id: str, tokens: int) -> None:
        for twin in self.twins:
            twin.grow(request_id, tokens, self.now)

    @rule(request_id=ids, text=st.sampled_from([str, Names]))
    def first_token(self, request_id: str, text: type[str]) -> None:
        pure, native = (twin.first_token(text(request_id), self.now) for twin in self.twins)
        assert seen(pure) == seen(native)

    @rule(request_id=ids, text=st.sampled_from([str, Names]))
    def finish(self, request_id: str, text: type[str]) -> None:
        pure, native = (twin.finish(text(request_id)) for twin in self.twins)
        assert seen(pure) == seen(native)

    @rule(speeds=st.tuples(*[st.floats(0.0, 1e3)] * 3))
    def settle(self, speeds: tuple[float, ...]) -> None:
        asked: list[list[WorkerId]] = []
        for twin in self.twins:
            asked.append([])

            def ms_per_token(worker: WorkerId, asked: list[WorkerId] = asked[-1]) -> float:
                asked.append(worker)
                return speeds[WORKERS.index(worker)]

            twin.settle(self.now, ms_per_token)
        assert asked[0] == asked[1]

    @rule(request_id=ids, blocks=st.integers(-9, 99))
    def foresee(self, request_id: str, blocks: int) -> None:
        for twin in self.twins:
            if request_id in twin.bookings:
                twin.foresee(twin.bookings[request_id], blocks)

    @rule(reported=st.dictionaries(workers, st.integers(0, 60)))
    def grow_unseen(self, reported: dict[WorkerId, int]) -> None:
        for twin in self.twins:
            grow_unseen(twin, UnseenWork(lambda _: 17.0, reported.get), self.now)

    @rule(worker=workers, figures=st.tuples(amounts, amounts, amounts))
    def correct(self, worker: WorkerId, figures: tuple[int, int, int]) -> None:
        requests, blocks, tokens = (max(0, one) for one in figures)
        for twin in self.twins:
            twin.correct(worker, requests, blocks, tokens)

    @rule(size=st.sampled_from([1, 4, 16, 64]))
    def resize(self, size: int) -> None:
        for twin in self.twins:
            twin.resize(size)

    @rule(request_ids=st.lists(ids, max_size=4))
    def renew(self, request_ids: list[str]) -> None:
        for twin in self.twins:
            twin.renew(iter(request_ids), self.now)

    @rule()
    def expire(self) -> None:
        pure, native = (twin.expire(self.now) for twin in self.twins)
        assert seen(pure) == seen(native)

    @rule(worker=workers)
    def remove_worker(self, worker: WorkerId) -> None:
        pure, native = (twin.remove_worker(worker) for twin in self.twins)
        assert seen(pure) == seen(native)

    @rule(owner=owners)
    def remove_owner(self, owner: str) -> None:
        pure, native = (twin.remove_owner(owner) for twin in self.twins)
        assert seen(pure) == seen(native)

    @invariant()
    def the_same(self) -> None:
        pure, native = self.twins
        assert list(pure.bookings) == list(native.bookings)
        assert seen([*pure.bookings.values()]) == seen([*native.bookings.values()])
        assert seen(pure.unseen()) == seen(native.unseen())
        for worker in WORKERS:
            ours, theirs = pure.loads(worker), native.loads(worker)
            assert [getattr(ours, name) for name in SUMS] == [
                getattr(theirs, name) for name in SUMS
            ]
            assert list(ours.prefilling) == list(theirs.prefilling)
            for later_s in (-1.0, 0.0, 0.7):
                asked = (0.0731, self.now + later_s, 12.5)
                assert ours.wait_ms(*asked) == theirs.wait_ms(*asked)
        for owner in (LOCAL, "router-b"):
            assert seen(pure.owned(owner)) == seen(native.owned(owner))
        assert pure.statistics() == native.statistics()
        assert pure.arrivals.per_ms(self.now) == native.arrivals.per_ms(self.now)
        for name in ("block_size", "lease_s", "generation"):
            assert getattr(pure, name) == getattr(native, name)


TestBothSequences = BothSequences.TestCase


@given(st.lists(st.floats(-1e6, 1e9) | st.floats(0.0, 60.0), max_size=30))
def test_arrivals_are_the_same_to_the_last_bit(moments: list[float]) -> None:
    twins = (arrivals.Arrivals(), Arrivals())

    for now in moments:
        for twin in twins:
            twin.fold(now)
        for asked in (now, now + 3.3, now - 1.0):
            assert twins[0].per_ms(asked) == twins[1].per_ms(asked)


names = st.text(max_size=9) | st.sampled_from(["w" * 250, "w" * 1000])


def test_many_requests_share_and_free_their_keys_in_any_order() -> None:
    twins = sequences.ActiveSequences(16), new_sequences(16)
    rng = random.Random(5)
    live: list[str] = []
    for number in range(3000):
        if live and rng.random() < (0.3 if number < 1500 else 0.7):
            name = live.pop(rng.randrange(len(live)))
            for twin in twins:
                twin.finish(name)
        else:
            live.append(f"r{number}")
            family, depth = rng.randrange(40) * 1000, rng.choice([1, 5, 40, 400])
            # Equal in their low or in their high bits, so that their places meet.
            keys = tuple((family + one) << (44 * (number & 1)) for one in range(depth))
            tokens = 16 * key_depth(depth)
            for twin in twins:
                twin.add(live[-1], WORKERS[0], Demand(tokens, 0, keys=keys), 0.0)
        if number % 100 == 0:
            assert twins[0].loads(WORKERS[0]).shared == twins[1].loads(WORKERS[0]).shared
    assert twins[0].loads(WORKERS[0]).active_blocks == twins[1].loads(WORKERS[0]).active_blocks
