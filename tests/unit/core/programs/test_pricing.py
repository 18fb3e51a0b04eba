import pytest

from kvmesh.core.programs.pricing import Pace
from tests.unit.core.programs.program_cases import W1


def learned(pause_s: float = 1.0, turns: int = 100) -> Pace:
    pace = Pace()
    for _ in range(turns):
        pace.answered(W1, 0.1, 100, 2.0)
        pace.returned(100, pause_s, pace.token_s)
    return pace


def test_a_cycle_is_the_answer_at_its_best_and_the_pause() -> None:
    pace = learned()

    for _ in range(100):
        pace.answered(W1, 5.0, 100, 50.0)
        pace.returned(100, 1.0, pace.token_s)

    assert pace.cycle_s == pytest.approx(3.0, rel=0.15)
    assert pace.prefill_ms(W1, 9.0) == pytest.approx(0.1, rel=0.15)


def test_the_turnover_is_the_cache_computed_once_a_cycle() -> None:
    assert learned().turnover(60_000, 0.1) == pytest.approx(2.0)
    assert learned(turns=31).turnover(60_000, 0.1) == 1.0


def test_what_tells_nothing_is_not_learned_and_a_worker_is_forgotten() -> None:
    pace = learned()
    pace.answered(W1, 0.1, 1, 9.0)
    pace.answered(W1, 0.1, 100, 0.0)
    assert pace.prefill_ms(W1, 9.0) == pytest.approx(0.1)
    pace.answered(W1, 0.1, 100, 0.5)
    assert pace.token_s == pytest.approx(0.005)
    pace.answered(W1, 0.0, 100, 0.5)
    assert pace.prefill_ms(W1, 9.0) == pytest.approx(0.1)

    pace.forget(W1)

    assert pace.prefill_ms(W1, 9.0) == 9.0
