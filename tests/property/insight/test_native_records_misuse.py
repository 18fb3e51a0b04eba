"""Whatever Python hands the compiled ring, records and totals, they raise and stay as they were."""

import random
from collections.abc import Callable
from typing import Any, cast

import pytest

from kvmesh._native import Histogram, Record, Ring, Totals
from kvmesh.core.insight.decision_record import thin
from kvmesh.core.insight.histogram import SECONDS, TOKENS
from kvmesh.core.insight.traffic import KEPT_S
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.routing.decision import RouteRequest, RouterOptions
from kvmesh.core.routing.scheduler import Scheduler
from tests.unit.core.insight.test_decision_log import HASHES, decide


def record() -> Any:
    scheduler = Scheduler(
        *(RouterOptions(), random.Random(1)),
        membership=Membership(),
        sequences=new_sequences(16),
    )
    scheduler.workers.membership.add("w", 0.0)
    return scheduler.schedule(RouteRequest("r", HASHES, HASHES.tokens_count), 0.0).record


@pytest.mark.parametrize("given", [None, 7, b"a", decide()])
def test_totals_take_records_alone(given: Any) -> None:
    totals = Totals(KEPT_S, SECONDS, TOKENS)

    with pytest.raises(TypeError):
        totals.compared(given)

    assert totals.rows(0) == []


def test_wrong_arguments_are_told() -> None:
    ring, one = cast("Any", Ring(4, 99, 99, 0, thin)), record()

    calls: list[Callable[[], object]] = [
        lambda: ring.find("a"),
        lambda: ring.latest("x"),
        lambda: ring.changed_after("x"),
        lambda: ring.may_weigh_all("x"),
        lambda: setattr(one, "held_ms", "x"),
        lambda: setattr(one, "round_robin_blocks", "x"),
        lambda: Histogram(cast("Any", ["x"])),
        lambda: Histogram((1.0,)).observe(cast("Any", "x")),
        lambda: cast("Any", Record)(b"a"),
    ]
    for call in calls:
        with pytest.raises(TypeError):
            call()
    with pytest.raises(ValueError, match="the bounds of a histogram rise"):
        Histogram((1.0, 1.0))

    assert (one.state, one.round_robin_blocks, one.held_ms) == ("open", None, None)


@pytest.mark.parametrize("now", [float("nan"), float("inf"), 1e300])
def test_a_time_that_is_none_is_counted_nowhere(now: float) -> None:
    totals = Totals(KEPT_S, SECONDS, TOKENS)

    with pytest.raises(ValueError, match="a time is a finite number of seconds"):
        totals.refused(now)

    assert totals.rows(0) == []
