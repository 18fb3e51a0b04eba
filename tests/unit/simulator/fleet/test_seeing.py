"""What routers of a simulated fleet make of answers that they do not see."""

from statistics import fmean

import pytest

from kvmesh.errors import ConfigError
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.timing import PROFILES
from kvmesh_lab.report.outcome import percentile
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.simulator.fleet.options import Feedback, FleetOptions
from tests.unit.simulator.fleet.fleet_cases import BLOCK_SIZE, families, fleet

WAYS: tuple[Feedback, ...] = ("full", "ends", "none", "dropped")


def options_of(feedback: Feedback, **more: object) -> FleetOptions:
    engine = EngineOptions(block_size=BLOCK_SIZE, num_gpu_blocks=4096, timing=PROFILES["dynamo"])
    given: dict[str, object] = {"engines": 4, "routers": 2, "engine": engine, **more}
    return FleetOptions(feedback=feedback, **given)  # type: ignore[arg-type]  # as each test names them


def played(feedback: Feedback, gap_ms: float = 25.0, **more: object) -> SimulatedFleet:
    simulated = fleet(families(300, gap_ms=gap_ms), options=options_of(feedback, **more))
    simulated.run()
    return simulated


def hit_rate(simulated: SimulatedFleet) -> float:
    outcomes = simulated.outcomes
    return sum(one.cached_tokens for one in outcomes) / sum(one.prompt_tokens for one in outcomes)


def p90_ms(simulated: SimulatedFleet) -> float:
    return percentile(sorted(one.ttft_ms or 0.0 for one in simulated.outcomes), 0.9)


@pytest.mark.parametrize("feedback", WAYS)
def test_every_request_is_answered_whatever_is_seen(feedback: Feedback) -> None:
    simulated = played(feedback)

    assert len(simulated.outcomes) == 300
    assert {one.status for one in simulated.outcomes} == {200}


def test_a_router_that_sees_no_answers_decides_nearly_as_well() -> None:
    full, none, dropped = (played(way, gap_ms=4.0) for way in ("full", "none", "dropped"))

    assert hit_rate(none) > hit_rate(full) - 0.05
    assert p90_ms(none) < 1.25 * p90_ms(full)
    assert p90_ms(dropped) > p90_ms(none)


def test_prefills_that_events_show_teach_speeds() -> None:
    full, ends = played("full"), played("ends")

    for seen, inferred in zip(full.routers, ends.routers, strict=True):
        speeds = [one.scheduler.speeds.fleet_ms_per_token for one in (seen, inferred)]
        assert speeds[1] == pytest.approx(speeds[0], rel=0.5)
        assert inferred.unwatched is not None
        assert inferred.unwatched.statistics().prefilled_seen > 100


def test_bookings_follow_what_engines_report() -> None:
    simulated = fleet(families(300, gap_ms=25.0), options=options_of("none"))
    differences: list[int] = []

    while simulated.advance(50):
        for engine in simulated.engines:
            found = engine.model.statistics()
            here = found.running_requests + found.waiting_requests
            booked = simulated.routers[0].sequences.loads(engine.worker).booked_requests
            differences.append(booked - here)

    assert -2.0 < fmean(differences) < 2.0


def test_without_events_prefills_end_as_predicted() -> None:
    simulated = played("none", kv_events=False, report_age_s=0.3)
    counts = [one.unwatched.statistics() for one in simulated.routers if one.unwatched]

    assert len(counts) == 2
    assert all(one.prefilled_seen == 0 < one.prefilled_predicted for one in counts)
    assert all(one.over["report"] > 0 for one in counts)


def test_lengths_that_nobody_tells_are_not_known() -> None:
    simulated = fleet(families(20), options=options_of("full", tells_lengths=False))
    expected: list[int] = []
    while simulated.advance(1):
        bookings = simulated.routers[0].sequences.bookings.values()
        expected += [one.expected_blocks for one in bookings]

    assert expected
    assert not any(expected)


def test_times_without_sense_are_refused() -> None:
    with pytest.raises(ConfigError, match="look_s"):
        options_of("none", look_s=0.0)
    with pytest.raises(ConfigError, match="report_age_s"):
        options_of("none", report_age_s=-1.0)
