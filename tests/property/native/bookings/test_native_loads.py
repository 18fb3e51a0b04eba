"""The compiled sums, speeds and costs do what the pure ones do, to the last bit."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kvmesh._native import Booking, Loads, Ratio
from tests.property.native.bookings.two_bookings import W, make_bookings
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
