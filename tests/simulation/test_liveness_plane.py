import random

import pytest

from tests.doubles.sim.faults import SimFaults, draw_plan
from tests.simulation.planes.liveness_plane import LivenessPlane
from tests.simulation.seeds import seeds

STORM_S = 20.0
SETTLE_S = 15.0
OF_JOURNALS = frozenset(
    {
        *("lose_append", "lose_ack", "repeat_append", "repeat_delivery", "lose_answer", "garbage"),
        *("purge", "recreate", "truncate", "spoil", "late_tail"),
    }
)


@pytest.mark.parametrize("seed", seeds(100))
def test_who_answers_is_served_and_who_does_not_is_not_through_a_storm(seed: int) -> None:
    rng = random.Random(seed)
    plane = LivenessPlane(
        seed, draw_plan(rng, STORM_S, OF_JOURNALS), workers=1 + seed % 3, routers=1 + seed % 2
    )
    plane.sim.run(STORM_S)

    assert plane.sim.run_until(plane.is_settled, limit_s=SETTLE_S)


def reset_idle(*, asked: bool = True) -> LivenessPlane:
    """Return a plane of two of each where everybody is heard."""
    plane = LivenessPlane(1, SimFaults(), asked=asked)
    plane.sim.run(5.0)
    assert plane.is_settled()
    return plane


def part(plane: LivenessPlane, process: str, for_s: float) -> None:
    """Part a process from all others, both ways."""
    everybody = list(plane.sim.processes)
    plane.bus.links.part([process], everybody, for_s)
    plane.bus.links.part(everybody, [process], for_s)


def test_without_anybody_asking_a_parted_front_door_loses_who_answers() -> None:
    plane = reset_idle(asked=False)
    plane.bus.links.part(["r0"], ["front"], 60.0)

    with pytest.raises(AssertionError, match="front leaves out r0, who answers"):
        plane.sim.run(20.0)


@pytest.mark.parametrize("process", ["front", "r0", "w0", "w1"])
def test_whoever_is_parted_from_all_others_serves_and_is_served(process: str) -> None:
    plane = reset_idle()
    part(plane, process, 60.0)
    end_s = plane.sim.now + 60.0

    while plane.sim.now < end_s:
        plane.sim.run(plane.sim.now + 0.25)
        assert plane.usable("front") == ("r0", "r1")
        assert plane.usable("r0") == plane.usable("r1") == ("w0", "w1")

    assert plane.sim.run_until(plane.is_settled, limit_s=2.0)


def test_people_are_told_how_many_answer_but_are_not_heard() -> None:
    plane = reset_idle()
    plane.bus.links.part(["w0", "r1"], ["r0"], 60.0)
    plane.sim.run(plane.sim.now + 10.0)

    [warning] = plane.registry("r0").link_health.warnings()

    said = "2 of 3 members are not heard over NATS but answer over HTTP"
    assert warning == f"{said}: r1, w0"


def test_a_partition_healed_on_one_side_costs_nobody_anything() -> None:
    plane = reset_idle()
    everybody = list(plane.sim.processes)
    plane.bus.links.part(["r0"], everybody, 10.0)
    plane.bus.links.part(everybody, ["r0"], 30.0)
    plane.sim.run(plane.sim.now + 15.0)

    assert plane.usable("front") == ("r0", "r1")
    assert plane.usable("r0") == ("w0", "w1")
    assert plane.front().link_health.warnings() == ()
    assert plane.registry("r0").link_health.warnings() != ()


def test_who_dies_behind_a_partition_is_gone_in_moments_and_back_when_it_answers() -> None:
    plane = reset_idle()
    part(plane, "r0", 60.0)
    plane.sim.run(plane.sim.now + 10.0)
    engine, router = plane.sim.processes["e1"], plane.sim.processes["r0"]
    plane.sim.kill(engine)
    plane.sim.kill(router)

    plane.sim.run(plane.sim.now + 1.5)
    assert plane.usable("front") == ("r1",)
    plane.sim.start(router)
    plane.sim.run(plane.sim.now + 2.0)
    # It has just begun and hears no worker: it is not ready, so nobody asks it for anything.
    assert plane.usable("front") == ("r1",)
    plane.bus.links.heal(["w0"], ["r0"])
    plane.sim.run(plane.sim.now + 3.5)

    assert plane.usable("front") == ("r0", "r1")


def test_an_engine_that_restarts_behind_a_partition_is_served_again() -> None:
    plane = reset_idle()
    part(plane, "w1", 60.0)
    plane.sim.run(plane.sim.now + 10.0)
    engine = plane.sim.processes["e1"]
    plane.sim.kill(engine)
    plane.sim.run(plane.sim.now + 1.5)
    assert plane.usable("r0") == ("w0",)

    plane.sim.start(engine)
    plane.sim.run(plane.sim.now + 1.5)

    assert plane.usable("r0") == ("w0", "w1")


@pytest.mark.parametrize("asked", [True, False])
@pytest.mark.parametrize(("process", "members"), [("r0", ("w0", "w1")), ("front", ("r0", "r1"))])
@pytest.mark.parametrize("frozen_s", [3.6, 6.0, 8.0, 10.0])
def test_a_process_that_stood_still_reads_before_it_judges(
    process: str, members: tuple[str, ...], frozen_s: float, asked: bool
) -> None:
    plane = reset_idle(asked=asked)
    seen: list[tuple[str, ...]] = []
    plane.sim.on_step.append(
        lambda one, _, __: seen.append(plane.usable(process)) if one.name == process else None
    )
    plane.sim.processes[process].frozen_s = plane.sim.now + frozen_s

    plane.sim.run(plane.sim.now + frozen_s + 5.0)

    assert set(seen) == {members}
