from math import inf, nan

import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.cost.terms import Candidate
from kvmesh.core.routing.choice.kv_transfers import (
    PRIOR_FIXED_MS,
    PRIOR_MS_PER_TOKEN,
    Transfers,
    moved_tokens,
)

CHOSEN = Candidate(
    WorkerId("d"), 16, 1600, overlap_blocks=10, wait_ms=30.0, ms_per_token=0.05, step_tokens=200.0
)


def test_what_is_there_already_moves_in_no_time() -> None:
    assert Transfers().predict_ms(0) == 0.0
    assert Transfers().predict_ms(1000) == PRIOR_FIXED_MS + 1000 * PRIOR_MS_PER_TOKEN
    assert moved_tokens(CHOSEN) == 1440


def test_transfers_are_learned_from_first_tokens_less_backlog_and_step() -> None:
    transfers = Transfers()
    for _ in range(200):
        transfers.seen(CHOSEN, (30.0 + 10.0 + PRIOR_FIXED_MS + 1440 * 0.02) / 1000.0)

    assert transfers.ms_per_token == pytest.approx(0.02, rel=1e-3)
    assert transfers.predict_ms(1440) == pytest.approx(PRIOR_FIXED_MS + 28.8, rel=1e-3)


@pytest.mark.parametrize("elapsed_s", [1e9, -5.0, 0.0])
def test_one_odd_sample_moves_the_belief_by_a_bound_alone(elapsed_s: float) -> None:
    transfers = Transfers()
    transfers.learn(10_000, elapsed_s)

    assert PRIOR_MS_PER_TOKEN / 8 <= transfers.ms_per_token <= PRIOR_MS_PER_TOKEN * 8


@pytest.mark.parametrize(("tokens", "elapsed_s"), [(10, 1.0), (1000, nan), (1000, inf)])
def test_some_samples_say_nothing(tokens: int, elapsed_s: float) -> None:
    transfers = Transfers()
    transfers.learn(tokens, elapsed_s)

    assert (transfers.samples, transfers.ms_per_token) == (0, PRIOR_MS_PER_TOKEN)


def test_transfers_that_take_no_time_for_long_are_not_believed_free_for_ever() -> None:
    transfers = Transfers()
    for _ in range(30_000):
        transfers.learn(10_000, 0.0)
    assert transfers.ms_per_token > 0.0

    for _ in range(60):
        transfers.learn(1_000, 1.0)

    assert transfers.ms_per_token > PRIOR_MS_PER_TOKEN
