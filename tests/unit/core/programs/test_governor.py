from kvmesh.core.programs.turn import Grant
from tests.unit.core.programs.program_cases import (
    W1,
    SmallFleet,
    key,
    make_end,
    make_governor,
    make_turn,
)


def test_programs_whose_contexts_fit_go_anywhere() -> None:
    governor = make_governor(SmallFleet(w1=1000, w2=1000))

    for name in ("a", "b"):
        turn = make_turn(name, 450)
        assert governor.ask(turn, 0.0) == Grant()
        governor.chosen(turn, W1, 0.0)

    assert governor.statistics().reserved_tokens == 900


def test_a_younger_program_waits_until_an_older_one_ends() -> None:
    governor = make_governor(SmallFleet(w1=1000))
    old, young = make_turn("a", 700, final=True), make_turn("b", 700)
    assert governor.ask(old, 0.0) is not None
    governor.chosen(old, W1, 0.0)

    assert governor.ask(young, 1.0) is None
    assert governor.release(2.0) == []
    governor.ended(old, make_end(), 3.0)

    assert [name for name, _ in governor.release(3.0)] == ["b/1"]
    assert not governor.waiting


def test_no_turn_is_held_beyond_the_bound() -> None:
    governor = make_governor(SmallFleet(w1=1000), max_wait_s=30.0)
    old, young = make_turn("a", 700), make_turn("b", 700)
    governor.ask(old, 0.0)
    governor.chosen(old, W1, 0.0)
    assert governor.ask(young, 1.0) is None

    assert governor.release(30.9) == []
    assert governor.next_s(30.9) == 31.0
    assert [name for name, _ in governor.release(31.0)] == ["b/1"]
    assert governor.statistics().late == 1


def test_a_replica_hears_what_another_placed() -> None:
    one, two = (make_governor(SmallFleet(w1=1000)) for _ in range(2))
    old, young = make_turn("a", 700), make_turn("b", 700)
    one.ask(old, 0.0)
    one.chosen(old, W1, 0.0)

    for name, record in one.news.items():
        assert two.hear(name, record, 0.0) == ""

    assert two.ask(young, 1.0) is None
    assert two.cancel("b/1")
    assert not two.cancel("b/1")
    assert two.hear(key("a"), one.news[key("b" if key("b") in one.news else "a")], 1.0) == ""
