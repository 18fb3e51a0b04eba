"""One engine that is ten times slower gets its share; all that are slower change nothing."""

import random
from collections import Counter
from collections.abc import Sequence

import msgspec
import pytest

from kvmesh.core.routing.policy import parse_policy
from kvmesh.errors import ConfigError
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.timing import PROFILES
from kvmesh_lab.report.outcome import RequestOutcome
from kvmesh_lab.simulator.fleet import course
from kvmesh_lab.simulator.fleet.faults import SlowDown, parse_slow_downs
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.simulator.fleet.options import Feedback, FleetOptions
from kvmesh_lab.simulator.fleet.request import make_requests
from kvmesh_lab.traces.trace import TraceRequest

BLOCK = 16
IN_FLIGHT = 8
SLOW = 0.1
MOST_SHARE = 0.09
"""Until its first answers have come it is not known to be slow; then it gets a try now and then."""

ENGINE = EngineOptions(block_size=BLOCK, num_gpu_blocks=8192, timing=PROFILES["preble-70b"])


def prompts(count: int, *, shared: bool, output: int = 40) -> list[TraceRequest]:
    """Return chats: six system prompts of 1,024 tokens that they share, or none."""
    rng = random.Random(count)
    return [
        TraceRequest(
            index=index,
            timestamp_ms=float(index),
            input_tokens=1024 + 48,
            output_tokens=max(1, int(rng.gauss(output, output / 4))),
            block_ids=tuple(1000 * (index % 6) + one for one in range(64)) if shared else (),
        )
        for index in range(count)
    ]


def make(requests: list[TraceRequest], options: FleetOptions) -> SimulatedFleet:
    return SimulatedFleet(
        options,
        parse_policy("kv", BLOCK),
        make_requests(requests, BLOCK, BLOCK),
        random.Random(1),
        live=IN_FLIGHT,
    )


@pytest.fixture(autouse=True)
def all_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(course, "RAMP_S", 0.5)


def share(outcomes: Sequence[RequestOutcome], worker: str = "worker-0") -> float:
    return Counter(one.worker for one in outcomes)[worker] / len(outcomes)


def p90_ms(outcomes: Sequence[RequestOutcome]) -> float:
    return sorted(one.latency_ms for one in outcomes)[int(0.9 * len(outcomes))]


SETTINGS = [
    (engines, shared, feedback, routers != 2 or shared, routers)
    for engines, shared, feedback, routers in (
        (2, False, "full", 1),
        (2, True, "whole", 2),
        (3, False, "whole", 2),
        (3, True, "full", 1),
        (4, False, "full", 2),
        (4, True, "whole", 1),
    )
]


@pytest.mark.parametrize(("engines", "shared", "feedback", "kv_events", "routers"), SETTINGS)
def test_a_slow_engine_gets_its_share(
    engines: int, *, shared: bool, feedback: Feedback, kv_events: bool, routers: int
) -> None:
    # Fair by equal numbers in flight: 9 % of two engines, 5 % of three, 3 % of four.
    requests = prompts(240, shared=shared)
    well = FleetOptions(
        engines=engines - 1,
        routers=routers,
        engine=ENGINE,
        kv_events=kv_events,
        feedback=feedback,
        tells_lengths=False,
    )
    slowed = msgspec.structs.replace(
        well, engines=engines, speed_ratios=(SLOW, *[1.0] * (engines - 1))
    )

    alone, beside = make(requests, well).run(), make(requests, slowed).run()

    assert len(beside) == len(requests)
    assert share(beside) <= MOST_SHARE
    assert p90_ms(beside) <= 1.3 * p90_ms(alone)


@pytest.mark.parametrize("feedback", ["full", "whole"])
def test_an_engine_that_becomes_slow_on_the_way_is_left_and_taken_back(feedback: Feedback) -> None:
    options = FleetOptions(
        engines=2,
        engine=ENGINE,
        feedback=feedback,
        slow_downs=(SlowDown(frozenset({0}), 10.0, 60.0, 180.0),),
    )

    outcomes = make(prompts(2400, shared=True), options).run()

    assert 0.3 <= share([one for one in outcomes if one.sent_ms < 55e3]) <= 0.7
    assert share([one for one in outcomes if 80e3 <= one.sent_ms < 180e3]) <= 0.06
    again = [one for one in outcomes if one.sent_ms > 220e3]
    assert len(again) > 200
    assert 0.3 <= share(again) <= 0.7


@pytest.mark.parametrize(
    ("factor", "feedback", "shared"),
    [(5.0, "whole", False), (20.0, "full", False), (5.0, "full", True)],
)
def test_engines_that_all_become_slow_at_once_keep_their_shares(
    factor: float, *, feedback: Feedback, shared: bool
) -> None:
    requests = prompts(240, shared=shared)
    well = FleetOptions(engines=4, engine=ENGINE, feedback=feedback)
    slowed = msgspec.structs.replace(well, slow_downs=(SlowDown(frozenset(range(4)), factor, 8.0),))

    before, after = make(requests, well), make(requests, slowed)
    speeds = after.routers[0].scheduler.speeds
    ratios = [speeds.prefill_ratio(one.worker) for one in after.engines]
    slow_ms: set[float] = set()
    after.routers[0].decided = lambda _: slow_ms.update(one.slow_ms for one in ratios)
    before.run()
    after.run()

    assert p90_ms(after.outcomes) > 2.0 * p90_ms(before.outcomes)
    # No engine is slow beside the others at any time. An idle one may still become the second home
    # of a shared prompt, since answers stay longer.
    assert slow_ms == {0.0}
    for engine in () if shared else after.engines:
        shares = [share(one.outcomes, engine.worker) for one in (before, after)]
        assert shares == pytest.approx([0.25, 0.25], abs=0.03)


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("0=10", SlowDown(frozenset({0}), 10.0)),
        ("w1=2.5@60", SlowDown(frozenset({1}), 2.5, 60.0)),
        ("all=5@0-120.5", SlowDown(frozenset({0, 1}), 5.0, 0.0, 120.5)),
    ],
)
def test_slow_downs_are_read(text: str, found: SlowDown) -> None:
    assert parse_slow_downs([text], 2) == (found,)


@pytest.mark.parametrize(
    "text", ["", "0", "0=", "0=0", "0=x", "2=10", "0=10@", "0=10@9-9", "0=10@9-3", "0=-1", "0=1e9"]
)
def test_a_slow_down_that_makes_no_sense_is_said(text: str) -> None:
    with pytest.raises(ConfigError, match=f"^--slow {text}.*write WHO="):
        parse_slow_downs([text], 2)
