"""Whatever Python hands the compiled ring, records and totals, they raise and stay as they were."""

from collections.abc import Callable
from typing import Any, cast

import pytest

from kvmesh._native import Histogram, Record, Ring, Totals
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.engines.sse import Usage
from kvmesh.core.insight.decision_record import thin
from kvmesh.core.insight.histogram import SECONDS
from kvmesh.core.insight.traffic import KEPT_S
from kvmesh.core.routing.decision import Decision
from tests.unit.core.insight.test_decision_log import HASHES, decide

WHOLE, ALONE = decide(whole=True), decide()


def record(decision: Decision = ALONE) -> Any:
    return cast("Any", Record(b"a", decision, HASHES, 1.0))


class Odd:
    """A decision of which each attribute is given."""

    def __init__(self, **changed: object) -> None:
        fields = {name: getattr(ALONE, name) for name in ALONE.__struct_fields__}
        self.__dict__.update({**fields, **changed})


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"worker": 7}, TypeError),
        ({"policy": None}, TypeError),
        ({"overlap_blocks": "x"}, TypeError),
        ({"total_blocks": 1 << 70}, OverflowError),
        ({"chosen": None}, AttributeError),
        ({"candidates": 3}, TypeError),
    ],
)
def test_what_is_no_decision_changes_no_record(
    changed: dict[str, object], error: type[Exception]
) -> None:
    one, ring = record(WHOLE), Ring(4, 99, 99, 0, thin)
    ring.append(one)
    odd: Any = Odd(**changed)

    for take in (one.take, lambda decision: ring.take_again(one, decision)):
        with pytest.raises(error):
            take(odd)
    with pytest.raises(error):
        record(odd)

    assert (one.decision, one.kept, one.attempts) == (WHOLE, len(WHOLE.candidates), 1)
    assert (ring.candidates, ring.version) == (len(WHOLE.candidates), 1)


@pytest.mark.parametrize("given", [None, 7, b"a", ALONE])
def test_a_ring_and_totals_take_records_alone(given: Any) -> None:
    ring, totals = Ring(4, 99, 99, 0, thin), Totals(KEPT_S, SECONDS)

    calls: list[Callable[[], object]] = [
        lambda: ring.append(given),
        lambda: ring.take_again(given, ALONE),
        lambda: ring.first_token(given, 1.0),
        lambda: ring.end(given, "finished", 200, 1.0),
        lambda: totals.ended(given),
        lambda: totals.compared(given),
    ]
    for call in calls:
        with pytest.raises(TypeError):
            call()

    assert (len(ring), ring.version, totals.rows(0)) == (0, 0, [])


def test_wrong_arguments_are_told() -> None:
    ring, one = cast("Any", Ring(4, 99, 99, 0, thin)), record()
    ring.append(one)

    with pytest.raises(ValueError, match="'over' is no state of a request"):
        ring.end(one, "over", 200, 1.0)
    with pytest.raises(ValueError, match="7 is no state of a request"):
        ring.end(one, 7, 200, 1.0)
    calls: list[Callable[[], object]] = [
        lambda: ring.end(one, "finished", "x", 1.0),
        lambda: ring.end(one, "finished", 200, "x"),
        lambda: ring.end(one),
        lambda: ring.first_token(one),
        lambda: ring.first_token(one, "x"),
        lambda: ring.find("a"),
        lambda: ring.latest("x"),
        lambda: ring.changed_after("x"),
        lambda: ring.may_weigh_all("x"),
        lambda: setattr(one, "held_ms", "x"),
        lambda: setattr(one, "round_robin_blocks", "x"),
        lambda: Histogram(cast("Any", ["x"])),
        lambda: Histogram((1.0,)).observe(cast("Any", "x")),
    ]
    for call in calls:
        with pytest.raises(TypeError):
            call()
    with pytest.raises(AttributeError):
        one.reported = 3
    with pytest.raises(ValueError, match="the bounds of a histogram rise"):
        Histogram((1.0, 1.0))

    assert (one.state, one.version, one.reported, one.held_ms) == ("open", 1, None, None)


@pytest.mark.parametrize("now", [float("nan"), float("inf"), 1e300])
def test_a_time_that_is_none_is_counted_nowhere(now: float) -> None:
    totals, one = Totals(KEPT_S, SECONDS), record()
    Ring(4, 99, 99, 0, thin).end(one, "client_gone", 0, now)

    calls: list[Callable[[], object]] = [
        lambda: totals.decided(now),
        lambda: totals.refused(now),
        lambda: totals.ended(one),
    ]
    for call in calls:
        with pytest.raises(ValueError, match="a time is a finite number of seconds"):
            call()
    assert totals.rows(0) == []


def test_a_decision_that_cannot_be_thinned_is_told_and_the_ring_goes_on() -> None:
    def fail(_: Decision) -> Decision:
        raise LookupError("no")

    ring = Ring(2, 99, 2, 0, fail)

    for _ in range(5):
        with pytest.raises(LookupError):
            ring.append(record(WHOLE))

    assert (len(ring), ring.number, ring.candidates) == (2, 5, 0)


def test_thinning_may_use_the_ring_itself() -> None:
    def nest(decision: Decision) -> Decision:
        if ring.number < 40:
            ring.append(record(WHOLE))
            ring.latest(9)
        return thin(decision)

    ring = Ring(3, 99, 2, 0, nest)

    ring.append(record(WHOLE))

    assert (len(ring), ring.number) == (3, 40)
    assert ring.candidates == sum(one.kept for one in ring.latest(9))


class Falls(BlockHashes):
    """Hashes that use their ring when they are let go."""

    ring: Any = None

    def __del__(self) -> None:
        if self.ring is not None and self.ring.number < 30:
            self.ring.append(record())


def test_hashes_that_are_let_go_may_use_the_ring() -> None:
    ring = Ring(2, 99, 99, 0, thin)
    for _ in range(5):
        hashes = Falls(list(range(64)), 16)
        hashes.ring = ring
        ring.append(Record(b"b", ALONE, hashes, 1.0))
        del hashes

    assert len(ring) == 2
    assert ring.number > 5
    assert ring.latest(1)[0].number == ring.number


def test_a_usage_is_told_as_it_was_given() -> None:
    one = record()

    for usage in (Usage(1, 2, 3), Usage(4, 5, None), None):
        one.reported = usage
        assert one.reported == usage
