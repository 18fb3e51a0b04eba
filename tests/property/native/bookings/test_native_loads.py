"""The compiled sums, speeds and costs do what the pure ones do, to the last bit."""

from math import inf, nextafter
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvmesh._native import Booking, Loads, Ratio
from kvmesh.core.cost.formulas import COSTS, score_of
from kvmesh.core.cost.quick import QUICK_COSTS, pure_costs, pure_find_ties
from kvmesh.core.cost.terms import NO_FLEET
from tests.property.native.bookings.two_fleets import TwoFleets, W, make_bookings
from tests.reference.workers import loads as model
from tests.reference.workers import relative_speed

SUMS = (
    "prefill_tokens", "prompt_tokens", "active_requests", "active_blocks", "expected_blocks",
    "silent", "unseen_requests", "unseen_blocks", "unseen_tokens", "progress_s", "shared",
    "worker", "waiting_requests", "booked_requests", "booked_blocks", "booked_tokens",
)  # fmt: skip
counts = st.integers(0, 3000)


class BothLoads(RuleBasedStateMachine):
    """One worker's life, kept twice."""

    @initialize()
    def begin(self) -> None:
        self.twins: tuple[Any, Any] = (model.Loads(W), Loads(W))
        self.live: dict[str, tuple[model.Booking, Booking]] = {}
        self.now = 0.0

    @rule(tokens=counts, uncached=counts, keys=st.integers(0, 40), streams=st.booleans())
    def book(self, *, tokens: int, uncached: int, keys: int, streams: bool) -> None:
        self.now += 0.25
        name = f"r{self.now}"
        self.live[name] = make_bookings(name, tokens, uncached, keys, streams=streams)
        for twin, booking in zip(self.twins, self.live[name], strict=True):
            twin.begin(booking, self.now)

    @rule(number=st.integers(0, 50))
    def end_prefill(self, number: int) -> None:
        waiting = list(self.twins[0].prefilling)
        bookings = self.live[waiting[number % len(waiting)]] if waiting else ()
        for twin, booking in zip(self.twins, bookings, strict=False):
            twin.end_prefill(booking)

    @rule(number=st.integers(0, 50))
    def end(self, number: int) -> None:
        done = [one for one in self.live if one not in self.twins[0].prefilling]
        bookings = self.live.pop(done[number % len(done)]) if done else ()
        for twin, booking in zip(self.twins, bookings, strict=False):
            twin.end(booking)

    @rule(blocks=counts, expected=counts)
    def grow(self, blocks: int, expected: int) -> None:
        for twin in self.twins:
            twin.grow(blocks, expected)

    @rule(requests=counts, blocks=counts, tokens=counts)
    def correct(self, requests: int, blocks: int, tokens: int) -> None:
        for twin in self.twins:
            twin.correct(requests, blocks, tokens, 16)

    @rule(keys=st.integers(0, 40), overlap=st.integers(-1, 5000), later=st.floats(-1.0, 3.0))
    def ask(self, keys: int, overlap: int, later: float) -> None:
        pure, native = self.twins
        known = list(range(keys))
        assert pure.shared_blocks(known, overlap) == native.shared_blocks(known, overlap)
        for step_tokens in (0.0, 12.5):
            asked = (0.0731, self.now + later, step_tokens)
            assert pure.wait_ms(*asked) == native.wait_ms(*asked)
        assert pure.wait_ms(0.5, self.now) == native.wait_ms(0.5, self.now)

    @invariant()
    def the_same(self) -> None:
        pure, native = self.twins
        assert [getattr(pure, name) for name in SUMS] == [getattr(native, name) for name in SUMS]
        assert list(pure.prefilling) == list(native.prefilling)
        assert list(native.prefilling.values()) == [self.live[one][1] for one in pure.prefilling]


TestBothLoads = BothLoads.TestCase


@given(st.lists(st.tuples(st.floats(0.001, 1e6), st.floats(0.1, 1e6)), max_size=20))
def test_ratios_are_the_same_to_the_last_bit(samples: list[tuple[float, float]]) -> None:
    twins = (relative_speed.Ratio(), Ratio())

    for number, (ms, tokens) in enumerate(samples):
        for twin in twins:
            twin.fold(ms, tokens, 65_536.0)
            twin.error = ms
            twin.factor = tokens
            if number % 3 == 2:
                twin.age(0.05)

        names = relative_speed.Ratio.__slots__
        pure, native = ([getattr(twin, name) for name in names] for twin in twins)
        assert pure == native


@pytest.mark.parametrize("cost", sorted(QUICK_COSTS))
@pytest.mark.parametrize("seed", range(40))
def test_the_same_workers_cost_least(cost: str, seed: int) -> None:
    fleet = TwoFleets(seed, workers=1 + seed % 7 if seed else 1500)

    for _ in range(20):
        weighing = fleet.weighing(cost)

        found = QUICK_COSTS[cost](fleet.native, fleet.known, weighing)
        assert found == pure_find_ties(COSTS[cost])(fleet.pure, {}, weighing)


@pytest.mark.parametrize("cost", sorted(QUICK_COSTS))
@pytest.mark.parametrize("seed", range(10))
def test_each_cost_is_the_same_to_the_last_bit(cost: str, seed: int) -> None:
    fleet = TwoFleets(seed, workers=12)
    weighing = fleet.weighing(cost)
    costs = pure_costs(COSTS[cost])(weighing, fleet.pure)
    pure, native = pure_find_ties(COSTS[cost]), QUICK_COSTS[cost]

    # A margin at which a worker just about ties tells a cost from its neighbours.
    for one in costs if min(costs) > 0.0 else ():
        margin = one / min(costs) - 1.0
        for wide in (margin, nextafter(margin, inf), nextafter(margin, 0.0), margin + 3e-16):
            formula = msgspec.structs.replace(COSTS[cost], margin=wide)
            asked = msgspec.structs.replace(weighing, cost=formula)

            assert native(fleet.native, fleet.known, asked) == pure(fleet.pure, {}, asked)


@pytest.mark.parametrize("cost", sorted(QUICK_COSTS))
@given(
    share=st.floats(0.0, 1.0),
    lost_ms=st.floats(0.0, 1e9) | st.sampled_from([0.0, 5e-324, 1e-300]),
    factor=st.floats(1e-9, 1e9),
    overlap=st.integers(0, 40),
    prompt_tokens=st.integers(0, 1 << 20),
    seed=st.integers(0, 1000),
)
def test_a_price_of_failure_is_the_same_to_the_last_bit_and_never_a_discount(
    *,
    cost: str,
    share: float,
    lost_ms: float,
    factor: float,
    overlap: int,
    prompt_tokens: int,
    seed: int,
) -> None:
    fleet = TwoFleets(seed, workers=2)
    weighing = msgspec.structs.replace(
        fleet.weighing(cost),
        prompt_tokens=prompt_tokens,
        request_blocks=-(-prompt_tokens // 16),
        overlaps={fleet.pure[0].worker: overlap},
    )
    for twins in (fleet.pure, fleet.native):
        twins[0].failure_share = twins[0].lost_ms = 0.0
        twins[0].prefill.factor = factor
    well = pure_costs(COSTS[cost])(weighing, fleet.pure)[0]
    for twins in (fleet.pure, fleet.native):
        twins[0].failure_share, twins[0].lost_ms = share, lost_ms

    failing = pure_costs(COSTS[cost])(weighing, fleet.pure)[0]
    candidate = weighing.candidate(fleet.pure[0], 0)
    published = score_of(COSTS[cost], candidate, NO_FLEET, weighing.weights)

    assert failing == published
    assert well <= failing < inf
    pure, native = pure_find_ties(COSTS[cost]), QUICK_COSTS[cost]
    other = pure_costs(COSTS[cost])(weighing, fleet.pure)[1]
    least, most = sorted((failing, other))
    # A margin at which the dearer one just about ties tells its cost from its neighbours.
    for margin in (most / least - 1.0, nextafter(most / least, 0.0) - 1.0) if least > 0.0 else ():
        formula = msgspec.structs.replace(COSTS[cost], margin=margin)
        asked = msgspec.structs.replace(weighing, cost=formula)
        assert native(fleet.native, fleet.known, asked) == pure(fleet.pure, {}, asked)
