import pytest

from kvmesh.core.programs.governor import Governor
from kvmesh.core.programs.standing import (
    Pressure,
    outlook,
    pressures,
    standing,
    standings,
)
from kvmesh.core.programs.table import Agent
from tests.unit.core.programs.program_cases import (
    W1,
    SmallFleet,
    key,
    make_end,
    make_governor,
    make_turn,
)


@pytest.fixture
def governor() -> Governor:
    """a takes a turn, b waits, c has paused, d has ended, e is of another tenant and unseated."""
    governor = make_governor(SmallFleet(w1=1000))
    for name, final in (("c", False), ("d", True)):
        turn = make_turn(name, 100, final=final)
        governor.chosen(turn, W1, 1.0)
        governor.ended(turn, make_end(), 2.0)
    other = make_turn("e", 50, tenant="t")
    governor.chosen(other, W1, 2.0)
    governor.ended(other, make_end(), 2.5)
    governor.chosen(make_turn("a", 600), W1, 3.0)
    assert governor.ask(make_turn("b", 700), 4.0) is None
    return governor


def test_those_that_wait_come_first_then_those_at_work(governor: Governor) -> None:
    shown = standings(governor, 10.0, 10)

    names = [one.agent.lstrip("0") for one in shown]
    assert (names[:2], sorted(names[2:4]), names[4]) == (["b", "a"], ["c", "e"], "d")
    assert [one.phase for one in shown] == ["waiting", "running", "paused", "paused", "ended"]
    assert len(standings(governor, 10.0, 2)) == 2
    assert [one.agent for one in standings(governor, 10.0, 9, "t")] == [key("e")]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("a", "takes a turn at w1"),
        ("b", "waits for 6.0 s, for 24 s more at most: no cache has room for its 700 tokens"),
        ("c", "its client has the turn; its 110 tokens are kept at w1 for"),
        ("d", "has ended: nothing is kept for it"),
    ],
)
def test_each_state_is_told_in_words(governor: Governor, name: str, words: str) -> None:
    agent = governor.table.agents[key(name)]

    assert standing(governor, agent, 10.0).why.startswith(words)


def test_what_is_kept_is_told_with_its_time(governor: Governor) -> None:
    paused, running, waiting = (
        standing(governor, governor.table.agents[key(name)], 10.0) for name in ("c", "a", "b")
    )

    assert paused.reserved
    seat = governor.seat_of(key("c"), 10.0)
    assert seat is not None
    assert paused.kept_s == seat.until_s - 10.0 > 0.0
    assert (running.reserved, running.kept_s, running.held_s) == (True, None, None)
    assert (waiting.reserved, waiting.held_s) == (False, 6.0)
    assert (paused.turns, paused.stop, paused.served_tokens, paused.since_s) == (
        1,
        "tool",
        110,
        8.0,
    )


def test_what_nobody_keeps_is_told_as_that(governor: Governor) -> None:
    agent = governor.table.agents[key("c")]
    seat = governor.seat_of(key("c"), 10.0)
    assert seat is not None

    late = standing(governor, agent, seat.until_s + 1.0)
    governor.removed(W1)
    gone = standing(governor, governor.table.agents[key("a")], seat.until_s + 3.0)

    assert late.why.endswith("nothing is kept for it, its cache may still be at w1")
    assert (gone.worker, gone.why) == ("", "takes a turn at no worker")


def test_a_turn_held_at_a_sibling_waits_there(governor: Governor) -> None:
    other = make_governor(SmallFleet(w1=1000))
    other.receive(key("b"), governor.updates[key("b")].record(0.0), 0.0)

    assert standing(other, other.table.agents[key("b")], 1.0).why == "waits at another replica"


def test_a_turn_without_room_would_wait(governor: Governor) -> None:
    before = governor.statistics(), dict(governor.waiting)

    met = outlook(governor, make_turn("f", 700, patience_s=12.0), 10.0)

    assert (met.waits, met.workers, met.standing) == (True, (), None)
    assert met.why.startswith("it would wait: ")
    assert (met.agent, met.program) == (key("f"), key("f"))
    assert (governor.statistics(), dict(governor.waiting)) == before


def test_a_turn_with_room_would_go_there(governor: Governor) -> None:
    met = outlook(governor, make_turn("c", 150), 10.0)

    assert (met.waits, met.workers) == (False, (W1,))
    assert met.why == "its context fits beside those of older programs at w1"
    assert met.standing is not None
    assert (met.standing.phase, met.standing.tokens) == ("paused", 110)


@pytest.mark.parametrize(
    ("turns", "why"),
    [
        (True, "no program has to wait: all contexts fit, or computing them again costs less"),
        (False, "programs take no turns here: --program-turns is not on"),
    ],
)
def test_a_turn_would_go_anywhere_at_ease_and_where_there_are_no_turns(
    turns: bool, why: str
) -> None:
    idle = make_governor(SmallFleet(w1=1000, w2=1000), turns=turns)

    met = outlook(idle, make_turn("a", 100), 1.0)

    assert (met.waits, met.workers, met.why) == (False, (), why)


def test_a_cache_is_told_with_what_is_reserved_of_it(governor: Governor) -> None:
    assert pressures(governor, 10.0) == [Pressure(W1, 1000, 110 + 60 + 600)]


def test_when_the_next_turn_comes_and_how_many_follow_is_foretold() -> None:
    governor = make_governor(SmallFleet(w1=1000), ttl_s=100.0)
    turn = make_turn("a", 100)
    governor.chosen(turn, W1, 0.0)
    running = standing(governor, found(governor, "a"), 0.0)
    governor.ended(turn, make_end(stop="tool"), 1.0)

    paused = standing(governor, found(governor, "a"), 1.0)
    later = standing(governor, found(governor, "a"), 61.0)

    assert (running.back_s, running.back_late_s) == (None, None)
    assert paused.back_s == pytest.approx(9.0, rel=0.2)
    assert paused.back_late_s == pytest.approx(70.0, rel=0.2)
    assert later.back_s is not None
    assert later.back_s > 9.0
    assert 50.0 < paused.turns_left < 80.0


def test_agents_that_are_forgotten_teach_how_many_turns_one_takes() -> None:
    governor = make_governor(SmallFleet(w1=1000), ttl_s=10.0)
    before = governor.ends.expect("codex", 1)

    for at in range(400):
        turn = make_turn(str(at), 100, client="codex", final=True)
        governor.chosen(turn, W1, 100.0 * at)
        governor.ended(turn, make_end(stop="end"), 100.0 * at + 1.0)

    assert standing(governor, found(governor, "399"), 40_000.0).turns_left == 0.0
    assert governor.ends.expect("codex", 1) < 0.5 * before


def found(governor: Governor, name: str) -> Agent:
    agent = governor.table.find(key(name))
    assert agent is not None
    return agent
