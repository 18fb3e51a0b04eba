"""When requests of sessions are sent, in open and in closed loop."""

import msgspec
import pytest

from kvmesh_lab.report.outcome import RequestOutcome
from kvmesh_lab.simulator.fleet.course import RAMP_S, Course
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.simulator.fleet.request import FleetRequest, make_requests
from kvmesh_lab.traces.sessions import SessionTrace, SessionTurn, requests_of
from tests.unit.simulator.fleet.fleet_cases import BLOCK_SIZE, fleet

HOUR_S = 3600.0


def session(name: str, parent: str = "", start_s: float | None = None) -> SessionTrace:
    turns = (
        SessionTurn(0.0, 640, 4, 0, 1.0, "tool"),
        SessionTurn(9.0, 1280, 4, 640, 1.0, "end"),
        SessionTurn(HOUR_S, 1920, 4, 1280, 1.0),
    )
    return SessionTrace(name, turns, parent=parent, start_s=start_s)


def made(*sessions: SessionTrace) -> tuple[FleetRequest, ...]:
    return make_requests(requests_of(sessions, BLOCK_SIZE), BLOCK_SIZE, BLOCK_SIZE)


def play(*sessions: SessionTrace, speedup: float = 1.0, live: int = 0) -> dict[int, RequestOutcome]:
    plain = fleet(requests_of(sessions, BLOCK_SIZE), speedup=speedup)
    if live:
        policy = plain.routers[0].scheduler.options
        plain = SimulatedFleet(
            plain.options, policy, made(*sessions), plain.routers[0].scheduler.rng, live=live
        )
    return {one.index: one for one in plain.run()}


def gap_s(outcomes: dict[int, RequestOutcome], before: int, after: int) -> float:
    ended = outcomes[before].sent_ms + outcomes[before].latency_ms
    return (outcomes[after].sent_ms - ended) / 1000.0


@pytest.mark.parametrize("speedup", [0.5, 1.0, 20.0])
def test_pauses_are_as_recorded_at_any_load(speedup: float) -> None:
    outcomes = play(session("a"), speedup=speedup)

    assert gap_s(outcomes, 0, 1) == pytest.approx(9.0)
    assert gap_s(outcomes, 1, 2) == pytest.approx(HOUR_S), "an hour is not capped"


def test_a_sub_agent_begins_behind_its_parents_turn_beside_the_next_one() -> None:
    outcomes = play(session("a"), session("b", "a", start_s=5.0))

    assert gap_s(outcomes, 0, 3) == pytest.approx(4.0)
    assert gap_s(outcomes, 0, 1) == pytest.approx(9.0)
    assert len(outcomes) == 6


def test_so_many_programs_are_live_and_the_next_begins_as_one_ends() -> None:
    sessions = [session(name) for name in "abc"]
    outcomes = play(*sessions, live=2)
    begins = {one: outcomes[one].sent_ms / 1000.0 for one in (0, 3, 6)}

    assert begins[0] == 0.0
    assert begins[3] == pytest.approx(RAMP_S / 2)
    assert gap_s(outcomes, 2, 6) == pytest.approx(0.0), "when the first of them has ended"


def test_a_program_ends_with_the_last_of_its_sub_agents() -> None:
    requests = made(session("a"), session("b", "a", start_s=5.0), session("c"))
    course = Course(requests, 1.0, live=1)

    assert [request.trace.session for request, _ in course.begin()] == ["a"]
    later = [one for place in (0, 1, 2) for one in course.ended(requests[place], 1.0)]
    later += [one for place in (3, 4) for one in course.ended(requests[place], 1.0)]
    assert "c" not in {request.trace.session for request, _ in later}
    assert course.ended(requests[5], 77.0) == [(requests[6], 77.0)]


def test_more_lanes_than_programs_begin_them_all_and_nothing_else() -> None:
    requests = made(session("a"), session("b"))
    course = Course(requests, 1.0, live=9)

    assert [due_s for _, due_s in course.begin()] == [0.0, RAMP_S / 2]
    assert [course.ended(request, 1.0) for request in requests][-1] == []


def test_a_turn_without_a_pause_comes_at_its_time_or_at_once_in_closed_loop() -> None:
    traces = [
        msgspec.structs.replace(one, delay_ms=None, timestamp_ms=one.index * 1e5)
        for one in requests_of([session("a")], BLOCK_SIZE)
    ]
    requests = make_requests(traces, BLOCK_SIZE, BLOCK_SIZE)

    assert Course(requests, 2.0, 0).ended(requests[0], 3.0) == [(requests[1], 50.0)]
    assert Course(requests, 2.0, 0).ended(requests[0], 60.0) == [(requests[1], 60.0)]
    closed = Course(requests, 2.0, 1)
    closed.begin()
    assert closed.ended(requests[0], 3.0) == [(requests[1], 3.0)]


def test_an_engine_at_rest_reports_no_more_than_routers_need_to_believe_it() -> None:
    played = fleet(requests_of([session("a")], BLOCK_SIZE))
    received: list[str] = []
    workers = played.routers[0].scheduler.workers
    workers.on_report = lambda worker, _: received.append(worker)

    played.run()

    assert played.now > HOUR_S
    assert 4 * len(played.engines) <= len(received) < 100, "not one a second of the hour"
