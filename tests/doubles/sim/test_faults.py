import random

from tests.doubles.sim.faults import Faults, SimFaults, draw_plan


def test_nothing_strikes_when_the_storm_is_over() -> None:
    faults = Faults(SimFaults(until_s=1.0), random.Random(1))

    assert faults.strikes(1.0, 0.5)
    assert not faults.strikes(1.0, 1.0)
    assert not faults.strikes(0.0, 0.5)


def test_slow_messages_take_their_own_time() -> None:
    plan = SimFaults(until_s=1.0, slow=1.0, delay_s=(0.1, 0.2), slow_s=(5.0, 6.0))
    faults = Faults(plan, random.Random(1))

    assert 5.0 <= faults.delay(0.0) <= 6.0
    assert 0.1 <= faults.delay(2.0) <= 0.2
    assert 0.05 <= faults.outage() <= 2.0


def test_storms_differ_by_seed_and_leave_out_what_they_shall() -> None:
    plans = [draw_plan(random.Random(seed), 5.0, frozenset({"crash"})) for seed in range(30)]

    assert len(set(plans)) == 30
    assert all(plan.crash == 0.0 and plan.until_s == 5.0 for plan in plans)
    assert any(plan.recreate for plan in plans)
    assert any(not plan.lose_append for plan in plans)


def test_garbage_is_never_the_message_it_was_made_of() -> None:
    faults = Faults(SimFaults(), random.Random(1))

    assert all(faults.garble(b"message") != b"message" for _ in range(50))
    assert {type(faults.garble(b"")) for _ in range(9)} == {bytes}
