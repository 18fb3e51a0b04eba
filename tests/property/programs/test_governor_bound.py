"""Nobody waits beyond the bound, nobody starves, and nothing stays reserved for nobody."""

import pytest

from tests.property.programs.governed_world import LOOK_S, World, reserved

FOR_EVER_S = 1e6


@pytest.mark.parametrize("hundred", range(3))
def test_no_turn_waits_beyond_the_bound_in_hundreds_of_worlds(hundred: int) -> None:
    held = late = 0
    for seed in range(100 * hundred, 100 * hundred + 100):
        world = World(seed, replicas=1 + seed % 3)

        world.run()

        assert world.longest_s <= world.bound_s + LOOK_S, seed
        assert not world.unfinished, seed
        assert not any(one.waiting for one in world.governors), seed
        held += sum(one.statistics().held for one in world.governors)
        late += sum(one.statistics().late for one in world.governors)
    assert held > 300
    assert late > 10


@pytest.mark.parametrize("seed", range(15))
def test_a_replica_killed_in_the_middle_starves_nobody(seed: int) -> None:
    world = World(seed, replicas=3)
    world.at(10.0, lambda: world.kill(seed % 3))

    world.run()

    assert world.longest_s <= world.bound_s + LOOK_S
    assert not world.unfinished


@pytest.mark.parametrize("seed", range(15))
def test_when_all_have_ended_nothing_is_reserved(seed: int) -> None:
    world = World(seed)

    world.run()

    (governor,) = world.governors
    assert reserved(governor, world.fleet, world.now + FOR_EVER_S) == 0
    assert governor.statistics().reserved_tokens == 0


@pytest.mark.parametrize("seed", range(15))
def test_replicas_that_heard_everything_know_and_reserve_the_same(seed: int) -> None:
    world = World(seed, replicas=3, most_agents=1000)

    world.run()

    tables = [
        {name: (one.phase, one.worker, one.tokens) for name, one in each.table.agents.items()}
        for each in world.governors
    ]
    assert tables[0] == tables[1] == tables[2]
    assert len({reserved(one, world.fleet, world.now) for one in world.governors}) == 1
