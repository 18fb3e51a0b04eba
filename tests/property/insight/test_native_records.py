"""The compiled ring of records and its totals do what the naive ones do, to the last bit."""

from collections.abc import Sequence
from typing import Any, Final

from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvmesh import _native
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.cost.catalogue import PUBLISHED
from kvmesh.core.cost.terms import NO_FLEET, Candidate
from kvmesh.core.engines.sse import Usage
from kvmesh.core.insight.decision_record import State, thin
from kvmesh.core.insight.histogram import SECONDS
from kvmesh.core.insight.traffic import KEPT_S, TrafficSecond
from kvmesh.core.members.left_out import LeftOut
from kvmesh.core.routing.decision import Decision
from kvmesh.core.routing.output_lengths import OutputForecast
from tests.reference.insight.decision_record import Record, Ring
from tests.reference.insight.histogram import Histogram
from tests.reference.insight.totals import Totals

PRICING: Final = PUBLISHED.pricing("predicted-time", {})
STATES: Final[tuple[State, ...]] = ("open", "finished", "client_gone", "failed", "cut", "refused")
NUMBERS: Final = (
    "number", "version", "state", "status", "attempts", "failures", "decided_s", "first_token_s",
    "ended_s", "reported", "round_robin_blocks", "kept", "held_ms", "forecast", "left_out",
    "overridden", "estimated", "output_tokens", "traced", "tenant", "ttft_ms", "worker", "policy",
    "overlap_blocks", "request_blocks", "considered", "best_overlap_blocks", "by_cache",
    "prompt_tokens", "block_size", "capacity_blocks", "ms_per_token", "hash_count",
    "waiting_blocks", "request_id", "decision",
)  # fmt: skip
RING: Final = (
    "number", "version", "dropped", "dropped_ends", "candidates", "waiting_blocks", "capacity",
)  # fmt: skip
small = st.integers(0, 40)
usages = st.none() | st.builds(Usage, small, small, st.none() | small)
Pair = tuple[Any, Any]
"""A naive one and the compiled one."""


@st.composite
def decisions(draw: st.DrawFn) -> Decision:
    """Return a decision with one candidate, or all of up to four."""
    count, overlap = draw(st.integers(1, 4)), draw(small)
    rows = tuple(
        Candidate(
            f"w{number}",  # type: ignore[arg-type]  # a NewType of str
            draw(st.sampled_from((1, 16))),
            draw(st.integers(0, 900)),
            overlap,
            capacity_blocks=draw(small),
            ms_per_token=draw(st.floats(0.0, 2.0)),
        )
        for number in range(count)
    )
    chosen = draw(st.sampled_from(rows))
    return Decision(
        request_id="r",
        worker=chosen.worker,
        overlap_blocks=overlap,
        total_blocks=draw(small),
        policy=draw(st.sampled_from(("predicted-time", "round-robin"))),
        score=1.0,
        considered=draw(st.integers(count, 5)),
        chosen=chosen,
        candidates=rows,
        scores=tuple(map(float, range(count))),
        cost=PRICING.cost,
        fleet=NO_FLEET,
        weights=PRICING.weights,
        by_cache=draw(st.booleans()),
        best_overlap_blocks=draw(small),
    )


def view(record: Any) -> list[object]:
    found = [getattr(record, name) for name in NUMBERS]
    return [*found, list(record.known_hashes())]


def views(records: Sequence[Any]) -> list[list[object]]:
    return [view(one) for one in records]


class BothRings(RuleBasedStateMachine):
    """Requests that come, are sent elsewhere, begin, end and are read, kept twice."""

    def __init__(self) -> None:
        super().__init__()
        self.rings: Pair = (Ring(4, 30, 6, 2, thin), _native.Ring(4, 30, 6, 2, thin))
        self.totals: Pair = (Totals(5, SECONDS), _native.Totals(5, SECONDS))
        self.records: list[Pair] = []
        self.now = 100.0

    @rule(decision=decisions(), blocks=st.integers(0, 12), step=st.floats(0.0, 3.0))
    def decide(self, decision: Decision, blocks: int, step: float) -> None:
        self.now += step
        hashes, name = BlockHashes.of(range(blocks), 16), b"%d" % (len(self.records) % 7)
        pair: Pair = (
            Record(name, decision, hashes, self.now),
            _native.Record(name, decision, hashes, self.now),
        )
        self.records.append(pair)
        for ring, totals, record in zip(self.rings, self.totals, pair, strict=True):
            ring.append(record)
            totals.decided(self.now)
        first, second = (ring.may_weigh_all(self.now) for ring in self.rings)
        assert first == second

    @precondition(lambda self: self.records)
    @rule(at=small, decision=decisions())
    def decide_again(self, at: int, decision: Decision) -> None:
        for ring, record in zip(self.rings, self.records[-1 - at % len(self.records)], strict=True):
            ring.take_again(record, decision)
            record.failures = (*record.failures, "w0: reset")

    @precondition(lambda self: self.records)
    @rule(
        at=small, held=st.none() | st.floats(0.0, 9.0), flag=st.booleans(), robin=st.none() | small
    )
    def write(self, at: int, held: float | None, flag: bool, robin: int | None) -> None:
        for record in self.records[-1 - at % len(self.records)]:
            record.held_ms, record.overridden, record.estimated = held, flag, flag
            record.round_robin_blocks, record.tenant = robin, "ann" if flag else ""
            record.forecast = OutputForecast(1.5, 2, 64) if flag else None
            record.left_out = LeftOut(1) if flag else None
            record.output_tokens = robin or 0

    @precondition(lambda self: self.records)
    @rule(at=small, step=st.floats(-0.5, 3.0))
    def begin(self, at: int, step: float) -> None:
        for ring, record in zip(self.rings, self.records[-1 - at % len(self.records)], strict=True):
            ring.first_token(record, self.now + step)

    @precondition(lambda self: self.records)
    @rule(
        at=small,
        state=st.sampled_from(STATES),
        status=st.sampled_from((0, 200, 404, 503)),
        usage=usages,
        step=st.floats(0.0, 3.0),
    )
    def end(self, at: int, state: State, status: int, usage: Usage | None, step: float) -> None:
        self.now += step
        pair = self.records[-1 - at % len(self.records)]
        for ring, totals, record in zip(self.rings, self.totals, pair, strict=True):
            record.reported = usage
            ring.end(record, state, status, self.now)
            totals.ended(record)

    @rule(robin=st.none() | small)
    def read_decided(self, robin: int | None) -> None:
        naive, native = (ring.next_decided() for ring in self.rings)
        assert (naive is None) == (native is None)
        for record in (naive, native):
            if record is not None:
                record.round_robin_blocks = robin
                record.forget_hashes()

    @rule()
    def read_ended(self) -> None:
        naive, native = (ring.next_ended() for ring in self.rings)
        assert (naive is None) == (native is None)
        for totals, record in zip(self.totals, (naive, native), strict=True):
            if record is not None:
                totals.compared(record)

    @rule()
    def refuse(self) -> None:
        for totals in self.totals:
            totals.refused(self.now)

    @invariant()
    def same(self) -> None:
        naive, native = self.rings
        assert [getattr(naive, name) for name in RING] == [getattr(native, name) for name in RING]
        assert (len(naive), naive.waiting()) == (len(native), native.waiting())
        assert views(naive.latest(9)) == views(native.latest(9))
        after = naive.version - 2
        assert views(naive.changed_after(after)) == views(native.changed_after(after))
        for mine, its in self.records[-6:]:
            assert view(mine) == view(its)
            found = [ring.find(mine.request_id) for ring in self.rings]
            assert (found[0] is mine) == (found[1] is its)
        first, second = self.totals
        assert first.rows(90) == second.rows(90)
        for name in ("prompt_tokens", "output_tokens", "best_tokens", "predicted_tokens"):
            assert getattr(first, name) == getattr(second, name)
        for name in ("ttft_s", "itl_s", "duration_s"):
            both = [getattr(one, name) for one in self.totals]
            assert both[0].cumulative() == both[1].cumulative()
            assert both[0].total == both[1].total


TestBothRings = BothRings.TestCase


@given(st.lists(st.floats(-1.0, 200.0) | st.sampled_from(SECONDS)))
def test_histograms_count_alike(values: list[float]) -> None:
    naive, native = Histogram(SECONDS), _native.Histogram(SECONDS)

    for value in values:
        naive.observe(value)
        native.observe(value)

    assert naive.cumulative() == native.cumulative()
    assert naive.total == native.total


def test_a_row_of_totals_is_a_traffic_second() -> None:
    totals = _native.Totals(KEPT_S, SECONDS)
    totals.decided(7.5)

    assert [TrafficSecond(*row) for row in totals.rows(0)] == [TrafficSecond(7, requests=1)]
