"""Programs that take turns on a simulated fleet: with replicas, faults, targets and reminders."""

import random
from typing import Any

from kvmesh.core.cost.targets import Targets
from kvmesh.core.programs.held import GovernorOptions
from kvmesh.core.programs.touch import TouchOptions
from kvmesh.core.routing.decision import Decision
from kvmesh.core.routing.policy import parse_policy
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.timing import PROFILES
from kvmesh_lab.simulator.fleet.faults import parse_fleet_faults
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.fleet.request import make_requests
from kvmesh_lab.traces.sessions import SessionTrace, SessionTurn, requests_of
from tests.unit.simulator.fleet.fleet_cases import BLOCK_SIZE

BOUND_S = 20.0


def sessions(count: int, turns: int = 6, output: int = 30) -> list[SessionTrace]:
    """Return sessions that begin together and grow by 640 tokens a turn."""
    made = []
    for number in range(count):
        turn = tuple(
            SessionTurn(
                2.0 + number % 3, 640 * (place + 2), output, 640 * (place + 1) * (place > 0)
            )
            for place in range(turns)
        )
        made.append(SessionTrace(f"s{number}", turn, start_s=0.1 * number))
    return made


def play(traces: list[SessionTrace], *, blocks: int = 160, **options: Any) -> SimulatedFleet:
    """Return the fleet of two engines, with room for few of the sessions, when all has ended."""
    engine = EngineOptions(
        block_size=BLOCK_SIZE, num_gpu_blocks=blocks, timing=PROFILES["preble-70b"]
    )
    turns = GovernorOptions(max_wait_s=BOUND_S)
    given: dict[str, Any] = {"engines": 2, "engine": engine, "turns": turns} | options
    played = SimulatedFleet(
        FleetOptions(**given),
        parse_policy("kv", BLOCK_SIZE),
        make_requests(requests_of(traces, BLOCK_SIZE), BLOCK_SIZE, BLOCK_SIZE),
        random.Random(0),
    )
    received: list[Decision] = []
    played.routers[0].decided = received.append
    played.run()
    assert received
    return played


def test_replicas_serve_every_turn_within_the_bound_and_tell_each_other_of_agents() -> None:
    played = play(sessions(8), routers=2)

    assert len(played.outcomes) == 48
    assert not [one for one in played.outcomes if one.error]
    assert max(one.held_ms for one in played.outcomes) <= (BOUND_S + 1.0) * 1000.0
    first, second = (router.governor for router in played.routers)
    assert first is not None
    assert second is not None
    assert set(first.table.agents) == set(second.table.agents)


def test_a_turn_that_an_engine_failed_is_taken_at_another() -> None:
    played = play(sessions(4), faults=parse_fleet_faults(("0=0.5:503",), "", 2))

    assert played.retried > 0
    assert len(played.outcomes) == 24
    assert not [one for one in played.outcomes if one.error]


def test_turns_are_taken_where_one_engine_prefills_for_the_other() -> None:
    played = play(sessions(3), blocks=400, prefillers=1, split_share=1.0)

    assert len(played.outcomes) == 18
    assert not [one for one in played.outcomes if one.error]


def test_a_held_turn_that_would_miss_its_targets_is_refused_when_its_turn_comes() -> None:
    played = play(sessions(10), targets=Targets(ttft_ms=900.0, tpot_ms=60.0))

    refused = [one for one in played.outcomes if one.error]
    assert len(played.outcomes) == 60
    assert refused


def test_engines_are_reminded_of_paused_sessions_while_they_answer_others() -> None:
    touches = TouchOptions(headroom=1.0, worth=0.0, most_share=1.0, least_tokens=64, step_ms=1.0)

    played = play(sessions(6, output=150), touches=touches)

    assert len(played.outcomes) == 36
    assert not [one for one in played.outcomes if one.error]


def test_nobody_is_reminded_where_programs_take_no_turns() -> None:
    played = play(sessions(2), turns=None, touches=TouchOptions())

    assert len(played.outcomes) == 12
    assert not any(router.touches for router in played.routers)
