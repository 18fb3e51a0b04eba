import random
from typing import get_args

import pytest

from kvmesh.core.members.health_record import Stage
from kvmesh.core.members.outcomes import Attempt, failed_attempt, status_attempt
from kvmesh.core.routing.decision import RouterMode
from tests.doubles.sim.faults import SimFaults, draw_plan
from tests.simulation.planes.outcome_plane import SICK, OutcomePlane
from tests.simulation.seeds import seeds

ERROR = status_attempt(500, 0.001)
RESET = failed_attempt("reset", 0.001)
MODES = [mode for mode in get_args(RouterMode) if mode != "direct"]
STORM_S = 6.0


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("fault", [ERROR, RESET], ids=lambda one: one.kind)
@pytest.mark.parametrize("seed", seeds(16))
def test_a_black_hole_gets_a_handful_of_requests(
    seed: int, fault: Attempt, mode: RouterMode
) -> None:
    plane = OutcomePlane(seed, SimFaults(), fault, mode=mode)
    plane.sim.run(5.0)

    assert plane.served == plane.requests == 200
    assert 1 <= plane.sent[SICK] <= 12


@pytest.mark.parametrize("seed", seeds(32))
def test_what_one_replica_saw_the_other_acts_on(seed: int) -> None:
    plane = OutcomePlane(seed, SimFaults(), ERROR, mode="round-robin", requests=60)
    left_out = {Stage.EJECTED, Stage.TRICKLE}

    assert plane.sim.run_until(lambda: bool(plane.stages() & left_out), limit_s=5.0, check_s=0.001)
    plane.sim.run(plane.sim.now + 0.02)

    assert plane.stages() <= left_out
    assert plane.sent[SICK] <= 4, "not three for each replica"


@pytest.mark.parametrize("seed", seeds(40))
def test_replicas_agree_through_a_storm_of_lost_and_reordered_messages(seed: int) -> None:
    plan = draw_plan(random.Random(seed), STORM_S)
    fault = (ERROR, RESET)[seed % 2]
    plane = OutcomePlane(seed, plan, fault, mode="round-robin", requests=4000)
    plane.sim.run(STORM_S)
    sent = plane.sent[SICK]

    plane.sim.run(STORM_S + 8.0)

    assert plane.stages() <= {Stage.EJECTED, Stage.TRICKLE}
    assert plane.sent[SICK] - sent <= 12, "each may have lost what the other saw, once"


@pytest.mark.parametrize("seed", seeds(32))
def test_an_engine_that_is_well_again_is_in_again_everywhere(seed: int) -> None:
    plane = OutcomePlane(seed, SimFaults(), ERROR, mode="round-robin", requests=4000)
    plane.sim.run(4.0)
    plane.well_from_s = plane.sim.now

    settled = plane.sim.run_until(lambda: plane.stages() == {Stage.IN}, limit_s=31.0)

    assert settled
    plane.sim.run(plane.sim.now + 1.0)
    assert plane.stages() == {Stage.IN}
