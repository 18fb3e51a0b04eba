import pytest

from kvmesh.core.programs.waiting import expected_wait_s, held_share_s
from tests.unit.core.programs.program_cases import W1, W2, SmallFleet, make_governor, make_turn


@pytest.mark.parametrize(("engines", "waits_s"), [(1, (70.0, 100.0)), (2, (35.0, 50.0))])
def test_a_turn_waits_until_the_contexts_before_it_and_its_own_are_computed(
    engines: int, waits_s: tuple[float, float]
) -> None:
    workers = (W1, W2)[:engines]
    governor = make_governor(SmallFleet(**dict.fromkeys(workers, 1000)))
    for worker in workers:
        governor.chosen(make_turn(f"at-{worker}", 900), worker, 0.0)
    turns = make_turn("b", 700), make_turn("c", 500)
    for turn in turns:
        assert governor.ask(turn, 1.0) is None

    assert tuple(expected_wait_s(governor, one.request_id, 100.0, 2.0) for one in turns) == waits_s
    governor.cancel("b/1")
    assert expected_wait_s(governor, "c/1", 100.0, 3.0) == 50.0 / engines


@pytest.mark.parametrize(
    ("patience_s", "tokens", "output_tokens", "held_s"),
    [
        (60.0, 100, 0, 30.0),
        (60.0, 400, 0, 20.0),
        (60.0, 400, 500, 10.0),
        (30.0, 400, 0, 0.0),
        (float("inf"), 400, 0, float("inf")),
    ],
)
def test_a_client_is_held_for_half_of_its_time_or_less_if_its_answer_takes_more(
    patience_s: float, tokens: int, output_tokens: int, held_s: float
) -> None:
    governor = make_governor(SmallFleet(w1=1000, w2=1000))
    turn = make_turn("a", tokens, expected_output_tokens=output_tokens)

    assert held_share_s(governor, turn, patience_s, 100.0) == pytest.approx(held_s)
