from functools import partial

import pytest

from kvmesh.actors.kernel import Effect, Log, Message, Publish, Send, Wake
from kvmesh.actors.messages import Started, Tick
from tests.doubles.sim.driver import Birth, Process, ProcessPlan, Simulation
from tests.doubles.sim.faults import SimFaults
from tests.unit.app.process.worlds import Probe, add_probe


def test_virtual_time_passes_from_wake_to_wake() -> None:
    sim = Simulation(1)
    _, [probe] = add_probe(
        sim,
        answers=lambda message: (
            [Wake(5.0, Tick("late")), Wake(2.0, Tick("soon"))]
            if isinstance(message, Started)
            else []
        ),
    )

    sim.run(10.0)

    assert probe.received == [(0.0, Started()), (2.0, Tick("soon")), (5.0, Tick("late"))]
    assert sim.now == 10.0


def test_messages_within_a_process_keep_their_order() -> None:
    sim = Simulation(1)
    two = Probe(name="two")

    def build(_: Birth) -> list[Probe]:
        def answers(message: Message) -> list[Effect]:
            return [Send("two", message), Send("two", Tick("and"))]

        return [Probe(answers, "one"), two]

    sim.add(ProcessPlan("p", build))
    sim.run(1.0)

    assert two.messages() == [Started(), Tick("and"), Started()]


def test_waiting_for_a_condition_ends_when_it_holds_or_time_is_up() -> None:
    sim = Simulation(1)

    assert sim.run_until(lambda: sim.now >= 3.0, limit_s=10.0)
    assert sim.now == 3.0
    assert not sim.run_until(lambda: False, limit_s=1.0)


def test_a_killed_process_hears_nothing_and_comes_back_empty() -> None:
    sim = Simulation(1)
    process, lives = add_probe(sim, answers=lambda _: [Wake(1.0, Tick())])
    sim.run(1.5)

    sim.crash(process)
    sim.run(5.0)

    assert len(lives) == 2
    assert [type(one) for one in lives[0].messages()] == [Started, Tick]
    assert isinstance(lives[1].messages()[0], Started)
    sim.start(process)
    assert process.incarnation == 2


def test_a_frozen_process_hears_everything_late() -> None:
    sim = Simulation(1)
    process, [probe] = add_probe(
        sim, answers=lambda message: [Wake(1.0, Tick())] if isinstance(message, Started) else []
    )
    process.frozen_s = 4.0

    sim.run(5.0)

    assert probe.received == [(0.0, Started()), (4.0, Tick())]


def test_what_a_frozen_process_missed_keeps_its_order_however_long_it_lasts() -> None:
    sim = Simulation(1)
    process, [probe] = add_probe(sim)
    process.frozen_s = 2.0
    for number in range(6):
        sim.at(number, partial(sim.deliver, process, 1, "probe", Tick("n", number)))
    sim.at(1.5, lambda: setattr(process, "frozen_s", 4.5))

    sim.run(6.0)

    assert probe.messages() == [Started(), *(Tick("n", number) for number in range(6))]
    assert probe.received[-2:] == [(4.5, Tick("n", 4)), (5.0, Tick("n", 5))]


def test_a_crash_between_two_effects_loses_the_second() -> None:
    logged: list[str] = []
    for seed in range(40):
        sim = Simulation(seed, SimFaults(until_s=1.0, crash_at_effect=0.5, outage_s=(9.0, 9.0)))
        process, _ = add_probe(sim, answers=lambda _: [Log("info", "one"), Log("info", "two")])
        sim.run(0.1)
        logged.append("".join(sorted(sim.logged.elements())))
        assert process.alive is (logged[-1] == "onetwo")
        assert sim.struck["crash_at_effect"] == (not process.alive)

    assert set(logged) == {"", "one", "onetwo"}


def only_at_the_start(effects: list[Effect], message: Message) -> list[Effect]:
    return effects if isinstance(message, Started) else []


def test_a_pause_between_two_effects_delays_the_rest_and_keeps_all_in_order() -> None:
    paused = 0
    for seed in range(40):
        plan = SimFaults(until_s=1.0, pause_at_effect=0.2, outage_s=(4.0, 5.0))
        sim = Simulation(seed, plan)
        decided: list[Effect] = []

        def note(_: Process, __: str, effect: Effect, seen: list[Effect] = decided) -> None:
            seen.append(effect)

        sim.on_decided.append(note)
        reported: list[Effect] = [Send("probe", Tick("n", number)) for number in range(4)]
        process, [probe] = add_probe(sim, answers=partial(only_at_the_start, reported))
        assert decided == reported
        sim.at(0.5, partial(sim.deliver, process, 1, "probe", Tick("n", 4)))
        sim.run(9.0)

        struck = sim.struck["pause_at_effect"]
        paused += struck
        assert probe.messages() == [Started(), *(Tick("n", number) for number in range(5))]
        assert (probe.received[-1][0] >= 4.0) is (struck > 0)

    assert paused > 10


def test_checks_run_after_every_step_of_a_living_process() -> None:
    sim = Simulation(1)
    seen: list[tuple[str, str, Message]] = []

    def check(process: Process, actor: str, message: Message) -> None:
        seen.append((process.name, actor, message))

    sim.on_step.append(check)
    process, _ = add_probe(sim)
    sim.deliver(process, 1, "probe", Tick())
    sim.deliver(process, 9, "probe", Tick("of another life"))

    assert seen == [("p", "probe", Started()), ("p", "probe", Tick())]


def test_mischief_strikes_until_the_storm_is_over_and_spares_the_immortal() -> None:
    sim = Simulation(
        3, SimFaults(until_s=5.0, crash=0.5, pause=0.5, disconnect=0.5, outage_s=(0.1, 0.2))
    )
    mortal, lives = add_probe(sim, "mortal")
    immortal, [_] = add_probe(sim, "immortal", immortal=True)
    sim.run(20.0)

    assert len(lives) > 3
    assert {"crash", "pause", "disconnect"} <= set(sim.struck)
    assert (immortal.frozen_s, immortal.cut_off_s, immortal.incarnation) == (0.0, 0.0, 1)
    assert mortal.alive
    assert not mortal.is_cut_off(sim.now)


def test_an_effect_that_nothing_carries_is_a_bug() -> None:
    with pytest.raises(KeyError):
        add_probe(Simulation(1), answers=lambda _: [Publish("x", b"")])
