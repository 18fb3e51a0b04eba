import pytest

from kvmesh.core.programs.bookkeeper import LOSS_WEIGHT, MOST_UNREAD
from kvmesh.core.programs.turn import Grant
from tests.unit.core.programs.program_cases import (
    W1,
    W2,
    SmallFleet,
    key,
    make_end,
    make_governor,
    make_turn,
    take,
)


def test_the_longest_unused_are_forgotten_with_what_was_reserved_for_them() -> None:
    governor = make_governor(SmallFleet(w1=1000), ttl_s=60.0, max_agents=2)
    governor.ended(take(governor, "a", 100, 0.0), make_end(), 1.0)
    take(governor, "b", 100, 2.0)

    take(governor, "c", 100, 100.0)
    assert governor.table.find(key("a")) is None
    assert governor.table.find(key("b")) is not None
    assert governor.ask(make_turn("d", 100), 101.0) == Grant()
    assert governor.table.find(key("d")) is None
    governor.chosen(make_turn("d", 100), W1, 101.0)
    governor.ended(make_turn("d", 100), make_end(), 102.0)
    assert governor.statistics().agents == 2


def test_a_newcomer_takes_the_place_of_one_that_pauses() -> None:
    governor = make_governor(SmallFleet(w1=1000), max_agents=1)
    governor.ended(take(governor, "a", 100, 0.0), make_end(), 1.0)

    take(governor, "b", 100, 2.0)

    assert (list(governor.table.agents), governor.statistics().reserved_tokens) == ([key("b")], 100)


def test_a_worker_that_leaves_takes_its_reservations_along() -> None:
    governor = make_governor(SmallFleet(w1=1000, w2=1000))
    take(governor, "a", 700, 0.0)

    governor.removed(W1)

    assert governor.reserved_tokens(W1, 1.0) == 0
    assert governor.updates[key("a")].record(1.0).worker == ""


def test_contexts_that_engines_evict_are_counted_while_they_are_live() -> None:
    governor = make_governor(SmallFleet(w1=1000))
    turn = take(governor, "a", 700, 0.0, final=True)
    governor.ended(turn, make_end(computed_tokens=700), 1.0)
    governor.ended(turn, make_end(computed_tokens=64), 2.0)
    again = take(governor, "a", 700, 3.0)

    governor.ended(again, make_end(W2, computed_tokens=64), 4.0)
    assert governor.statistics().lost_tokens == 0
    for _ in range(2):
        governor.ended(take(governor, "a", 700, 5.0), make_end(computed_tokens=64), 6.0)

    assert governor.statistics().lost_tokens == 64


def test_the_share_of_contexts_that_is_evicted_is_learned() -> None:
    governor = make_governor(SmallFleet(w1=1000))

    def serve(name: str, tokens: int, computed: int, now: float) -> None:
        turn = make_turn(name, tokens)
        governor.chosen(turn, W1, now)
        governor.ended(turn, make_end(computed_tokens=computed), now + 1.0)

    serve("a", 700, 700, 0.0)

    serve("a", 700, 700, 2.0)
    assert governor.lost_share == 0.0, "nobody else wrote: it does not go on from what it said"
    serve("b", 500, 489, 4.0)
    serve("a", 700, 700, 6.0)
    assert governor.lost_share == 0.0, "too little for half a cache"
    serve("b", 600, 600, 8.0)
    assert governor.lost_share == pytest.approx(LOSS_WEIGHT)
    serve("a", 700, 350, 10.0)
    before = LOSS_WEIGHT + (0.5 - LOSS_WEIGHT) * LOSS_WEIGHT
    assert governor.lost_share == pytest.approx(before)

    serve("a", 700, 0, 12.0)
    assert governor.lost_share == pytest.approx(before * (1 - LOSS_WEIGHT)), "nothing was lost"
    serve("b", 600, 600, 14.0)
    learned = governor.lost_share
    serve("a", 300, 300, 16.0)
    assert governor.lost_share == learned, "what an agent wrote anew was not evicted"


def test_one_of_two_turns_of_an_agent_ends() -> None:
    governor = make_governor(SmallFleet(w1=1000))
    one, two = take(governor, "a", 400, 0.0), take(governor, "a", 420, 0.0, number=2)
    governor.ended(one, make_end(), 1.0)

    assert governor.table.agents[key("a")].phase == "running"
    governor.ended(two, make_end(), 2.0)
    assert governor.table.agents[key("a")].phase == "paused"


def test_a_pause_is_expected_while_it_lasts() -> None:
    governor = make_governor(SmallFleet(w1=1000))
    turn = take(governor, "a", 400, 0.0)
    agent = governor.table.agents[key("a")]

    assert governor.expect(agent, 1.0) is None
    governor.ended(turn, make_end(), 1.0)
    expected = governor.expect(agent, 1.0)
    assert expected is not None
    assert expected.p50_s < expected.p90_s


def test_a_governor_that_is_not_shared_keeps_no_news() -> None:
    governor = make_governor(SmallFleet(w1=1000))
    governor.shared = False

    turn = take(governor, "a", 700, 0.0)
    governor.ended(turn, make_end(), 1.0)

    assert governor.updates == {}
    assert governor.table.find(turn.agent) is not None


def test_pauses_are_learned_whether_somebody_asks_or_many_have_come() -> None:
    governor = make_governor(SmallFleet(w1=1000))
    for number in range(2 * MOST_UNREAD):
        turn = take(governor, "a", 100, 10.0 * number)
        governor.ended(turn, make_end(), 10.0 * number + 1.0)
    agent = governor.table.agents[key("a")]

    assert len(governor._unread) < MOST_UNREAD
    pause = governor.expect(agent, agent.since_s)
    assert pause is not None
    assert pause.samples == pytest.approx(2 * MOST_UNREAD, abs=2)
