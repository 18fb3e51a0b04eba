"""Programs take turns in a simulated fleet, by one rule at all its replicas."""

import random

import pytest

from kvmesh.core.programs.held import GovernorOptions
from kvmesh.core.routing.policy import parse_policy
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.mocker.model.timing import PROFILES
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.fleet.request import make_requests
from kvmesh_lab.traces.sessions import SessionTrace, SessionTurn, requests_of

BLOCK = 128


def sessions(count: int, turns: int = 8) -> list[SessionTrace]:
    """Return agents whose contexts grow from 6,000 tokens to 12,000."""
    rng = random.Random(count)
    return [
        SessionTrace(
            f"s{number}",
            tuple(
                SessionTurn(rng.random() * 2.0, 6000 + 800 * turn, 60, 5900 + 800 * (turn - 1))
                for turn in range(turns)
            ),
            start_s=0.5 * number,
        )
        for number in range(count)
    ]


def play(turns: GovernorOptions | None, routers: int = 1, profile: str = "preble-70b") -> object:
    engine = EngineOptions(block_size=BLOCK, num_gpu_blocks=400, timing=PROFILES[profile])
    fleet = SimulatedFleet(
        FleetOptions(engines=2, routers=routers, engine=engine, tells_lengths=False, turns=turns),
        parse_policy("kv", BLOCK),
        make_requests(requests_of(sessions(16), BLOCK), BLOCK, BLOCK),
        random.Random(1),
    )
    fleet.run()
    return fleet


def computed(fleet: object) -> int:
    assert isinstance(fleet, SimulatedFleet)
    assert all(not one.error for one in fleet.outcomes)
    assert len(fleet.outcomes) == 16 * 8
    return sum(one.prompt_tokens - (one.cached_tokens or 0) for one in fleet.outcomes)


@pytest.mark.parametrize("routers", [1, 3])
def test_agents_that_take_turns_keep_their_caches(routers: int) -> None:
    alone = computed(play(None, routers))
    governed = play(GovernorOptions(max_wait_s=60.0), routers)

    assert computed(governed) < 0.5 * alone
    assert isinstance(governed, SimulatedFleet)
    found = [one.governor.statistics() for one in governed.routers if one.governor is not None]
    assert sum(one.held for one in found) > 0
    assert all(one.waiting == 0 for one in found)
    assert len({one.agents for one in found}) == 1


def test_no_first_token_comes_later_than_the_bound_and_the_engine_make_it() -> None:
    governed = play(GovernorOptions(max_wait_s=5.0))

    assert isinstance(governed, SimulatedFleet)
    slowest_ms = max(one.ttft_ms or 0.0 for one in governed.outcomes)
    alone = play(None)
    assert isinstance(alone, SimulatedFleet)
    assert slowest_ms <= 5_000.0 + max(one.ttft_ms or 0.0 for one in alone.outcomes)
