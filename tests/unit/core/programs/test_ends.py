from math import log
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.programs.ends import TurnsLeft


def test_what_was_never_seen_goes_on_as_was_published() -> None:
    left = TurnsLeft()

    assert left.expect("codex", 0) == pytest.approx(300 / 4.67, rel=0.1)
    assert left.expect("codex", 100) == pytest.approx(400 / 4.67, rel=0.1)
    assert left.expect("codex", 10**25) == left.expect("codex", 1 << 14)
    assert left.expect("codex", -5) == left.expect("codex", 0)


def test_short_agents_are_expected_to_end_soon() -> None:
    left = TurnsLeft()
    for _ in range(5000):
        left.learn("kvmesh", 3)
    left.learn("kvmesh", 0)

    assert left.expect("kvmesh", 3) < 35.0
    assert left.expect("codex", 2) > 50.0
    assert left.expect("kvmesh", 200) == left.expect("codex", 200)


def test_a_change_shows_however_much_was_seen_before() -> None:
    left = TurnsLeft()
    for _ in range(70_000):
        left.learn("kvmesh", 1)

    for _ in range(70_000):
        left.learn("kvmesh", 10**25)

    assert left.expect("kvmesh", 1) > 1000.0
    assert left.expect("kvmesh", 10_000) > 5000.0


@given(st.lists(st.integers(0, 1 << 16), max_size=50), st.integers(0, 1 << 15))
def test_the_mean_of_what_follows_is_finite(ended: list[int], turns: int) -> None:
    left = TurnsLeft()
    for one in ended:
        left.learn("", one)

    assert 0.0 < left.expect("", turns) < 1e6


@pytest.mark.parametrize("hazard", [0.01, 0.05, 0.2])
def test_the_mean_is_that_of_agents_of_which_a_share_ends_each_turn(hazard: float) -> None:
    left, rng = TurnsLeft(), Random(7)
    for _ in range(20_000):
        left.learn("", 1 + int(log(1.0 - rng.random()) / log(1.0 - hazard)))

    for turns in (1, 2, 5):
        assert left.expect("", turns) == pytest.approx((1.0 - hazard) / hazard, rel=0.25)
