from benchmarks.programs.thunder import LIVE_S, MOST_WAIT_S, Homes, ThunderAgent
from kvmesh.core.programs.held import GovernorOptions
from kvmesh.core.programs.turn import Grant
from tests.unit.core.programs.program_cases import W1, W2, SmallFleet, make_end, make_turn

AT_1, AT_2 = Grant(frozenset({W1})), Grant(frozenset({W2}))


def test_programs_that_act_are_paused_the_smallest_first_and_resumed_where_room_is() -> None:
    rule = ThunderAgent(GovernorOptions(), SmallFleet(w1=1000, w2=600))
    large, small, other = make_turn("a", 500), make_turn("b", 200), make_turn("c", 400)

    assert [rule.ask(one, 0.0) for one in (large, small, other)] == [AT_1, AT_2, None]
    rule.ended(large, make_end(W1, output_tokens=100), 1.0)
    rule.ended(small, make_end(W2, output_tokens=100), 1.0)
    # 300 are free at the first, 200 at the second: what waits takes 500.
    assert rule.release(5.0) == []
    assert rule.next_s(5.0) == 10.0
    # The first has grown beyond its cache: it is marked, and paused behind its answer.
    assert rule.ask(make_turn("a", 950, 2), 6.0) == AT_1
    assert rule.release(10.0) == []
    rule.ended(make_turn("a", 950, 2, final=True), make_end(W1), 11.0)

    assert rule.release(15.0) == [("c/1", AT_1)]
    assert rule.ask(make_turn("b", 700, 2), 16.0) == AT_2
    rule.ended(make_turn("b", 700, 2), make_end(W2), 17.0)
    rule.release(20.0)
    assert rule.ask(make_turn("b", 700, 3), 21.0) is None


def test_after_half_an_hour_a_turn_goes_though_it_does_not_fit() -> None:
    rule = ThunderAgent(GovernorOptions(), SmallFleet(w1=1000))

    assert rule.ask(make_turn("a", 2000), 0.0) is None
    assert rule.release(MOST_WAIT_S - 1.0) == []
    assert rule.release(MOST_WAIT_S) == [("a/1", AT_1)]


def test_an_agent_stays_where_the_fewest_live_tokens_were_when_it_came() -> None:
    rule = Homes(GovernorOptions(), SmallFleet(w1=1000, w2=600))

    asked = [("a", 500), ("b", 300), ("c", 100), ("a", 900)]
    assert [rule.ask(make_turn(*one), 0.0) for one in asked] == [AT_1, AT_2, AT_2, AT_1]
    assert rule.ask(make_turn("d", 100), 1.0) == AT_2
    rule.ask(make_turn("d", 100, 2), LIVE_S)
    assert rule.ask(make_turn("e", 100), LIVE_S + 0.5) == AT_1, "the others are live no longer"
