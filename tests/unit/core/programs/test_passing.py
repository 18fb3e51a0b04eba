"""What the serving path asks of the governor besides `ask`: who need not be asked, and why not."""

from math import inf

import pytest

from kvmesh.core.programs.governor import Governor
from kvmesh.core.programs.turn import Grant
from tests.unit.core.programs.program_cases import (
    W1,
    W2,
    SmallFleet,
    key,
    make_end,
    make_governor,
    make_turn,
)


def with_one(governor: Governor, name: str, tokens: int) -> Governor:
    turn = make_turn(name, tokens)
    governor.chosen(turn, W1, 0.0)
    return governor


@pytest.mark.parametrize(
    ("agent", "tokens", "passes"),
    [("new", 300, True), ("new", 301, False), ("a", 1000, True), ("a", 1001, False)],
)
def test_whoever_fits_every_cache_need_not_be_asked(agent: str, tokens: int, passes: bool) -> None:
    governor = with_one(make_governor(SmallFleet(w1=1000, w2=2000)), "a", 700)

    assert governor.passes(key(agent), tokens, 1.0) is passes
    assert governor.statistics().agents == 1


def test_a_known_context_counts_whatever_a_request_looks_like() -> None:
    governor = with_one(make_governor(SmallFleet(w1=1000, w2=600)), "a", 700)

    assert not governor.passes(key("a"), 1, 1.0)


@pytest.mark.parametrize(("options", "tokens"), [({"turns": False}, 400), ({}, 10)])
def test_where_nothing_would_be_held_everybody_passes(
    options: dict[str, object], tokens: int
) -> None:
    governor = with_one(make_governor(SmallFleet(w1=1000), **options), "a", 900)

    assert governor.passes(key("new"), tokens, 1.0)


def test_beside_a_worker_whose_cache_is_unknown_everybody_passes() -> None:
    assert with_one(make_governor(SmallFleet(w1=0)), "a", 900).passes(key("new"), 400, 1.0)


def test_while_turns_are_held_everybody_is_asked() -> None:
    governor = with_one(make_governor(SmallFleet(w1=1000, w2=1000)), "a", 700)
    governor.chosen(make_turn("b", 700), W2, 0.0)
    assert governor.ask(make_turn("c", 700), 0.0) is None

    assert not governor.passes(key("new"), 20, 1.0)


def test_a_look_says_what_asking_would_and_holds_nobody() -> None:
    governor = with_one(make_governor(SmallFleet(w1=1000, w2=600)), "a", 700)
    governor.chosen(make_turn("b", 500), W2, 0.0)
    turn = make_turn("new", 700)

    assert governor.check(turn, 1.0) is None
    assert governor.check(make_turn("a", 10), 1.0) == Grant(frozenset({W1}))
    assert not governor.waiting
    assert governor.table.find(key("new")) is None
    assert governor.table.agents[key("a")].tokens == 700


def test_whoever_cannot_wait_is_not_held() -> None:
    governor = with_one(make_governor(SmallFleet(w1=1000), max_wait_s=30.0), "a", 700)
    hasty = make_turn("b", 700, patience_s=0.0)

    assert (governor.check(hasty, 1.0), governor.ask(hasty, 1.0)) == (Grant(), Grant())


def test_of_an_agent_with_two_turns_the_first_tells_how_long_it_waits() -> None:
    governor = with_one(make_governor(SmallFleet(w1=1000)), "a", 700)
    governor.ask(make_turn("b", 700, 1), 1.0)
    governor.ask(make_turn("b", 700, 2), 2.0)

    assert governor.waiting.since() == {key("b"): (1.0, 31.0)}


def test_a_reservation_is_told_until_it_ends() -> None:
    governor = make_governor(SmallFleet(w1=1000))
    turn = make_turn("a", 700)
    governor.chosen(turn, W1, 0.0)
    taken = governor.seat_of(key("a"), 1.0)
    governor.ended(turn, make_end(), 2.0)
    kept = governor.seat_of(key("a"), 3.0)

    assert taken is not None
    assert taken.until_s == inf
    assert kept is not None
    assert kept.tokens == 710
    assert governor.reserved_tokens(W1, 3.0) == 710
    assert governor.seat_of(key("a"), kept.until_s) is None
    assert governor.reserved_tokens(W1, kept.until_s) == 0
