import random

import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.loads import new_speeds
from tests.reference.workers import relative_speed
from tests.reference.workers.relative_speed import FIRST_VARIANCE, MOST_ERROR, Scatter

HALF_LIFE_TOKENS = 65_536.0


def played(
    noise: float, ratio: float, prompts: int, seed: int = 1
) -> tuple[Scatter, relative_speed.Ratio]:
    """Return what `prompts` of 1,000 tokens teach of a worker of `ratio` times the fleet's 1 ms."""
    rng, scatter, own = random.Random(seed), Scatter(), relative_speed.Ratio()
    for _ in range(prompts):
        ms = 1000.0 * ratio * (1.0 + noise * rng.uniform(-1.0, 1.0))
        scatter.fold(own, ms, 1000.0, 1000.0 * ratio)
        own.fold(ms, 1000.0, HALF_LIFE_TOKENS)
    return scatter, own


@pytest.mark.parametrize("seed", range(20))
def test_what_may_be_chance_is_no_difference(seed: int) -> None:
    scatter, own = played(noise=0.8, ratio=1.0, prompts=30, seed=seed)

    assert own.ms / own.tokens != 1.0
    assert scatter.factor(own, 1.0) == 1.0


@pytest.mark.parametrize("ratio", [0.25, 0.5, 0.8, 1.25, 2.0, 8.0])
def test_a_sure_difference_is_believed_nearly_as_it_is(ratio: float) -> None:
    scatter, own = played(noise=0.2, ratio=ratio, prompts=80)

    assert scatter.factor(own, 1.0) == pytest.approx(ratio, rel=0.1)


def test_one_sample_says_little_and_many_say_more() -> None:
    sure, likely = played(0.5, 1.5, prompts=300), played(0.5, 1.5, prompts=30)
    first = played(0.5, 1.5, prompts=1)

    assert first[0].factor(first[1], 1.0) == 1.0
    assert 1.0 < likely[0].factor(likely[1], 1.0) < sure[0].factor(sure[1], 1.0) < 1.6


def test_a_pause_counts_no_more_than_the_most_error() -> None:
    scatter = Scatter()
    assert scatter.variance == FIRST_VARIANCE

    scatter.fold(relative_speed.Ratio(), 1e9, 1000.0, 1000.0)

    assert scatter.variance == pytest.approx(MOST_ERROR**2)


def test_noise_that_lasts_a_while_keeps_equal_workers_equal() -> None:
    """Each worker is slowed for some prompts on end, as on a machine that others use too."""
    names = [WorkerId(f"w{number}") for number in range(4)]
    differing = 0
    for seed in range(10):
        rng, speeds = random.Random(seed), new_speeds()
        slowed = dict.fromkeys(names, 0.0)
        for turn in range(400):
            name = rng.choice(names)
            slowed[name] = 0.7 * slowed[name] + rng.expovariate(4.0)
            speeds.first_token(name, 800, (0.010 + 0.040) * (1.0 + slowed[name]), now=float(turn))
            differing += any(speeds.prefill_ratio(one).factor != 1.0 for one in names)

    assert differing < 0.02 * 10 * 400


def test_a_ratio_of_next_to_nothing_is_forgotten_with_age() -> None:
    ratio = relative_speed.Ratio()
    ratio.fold(30.0, 3.0, HALF_LIFE_TOKENS)
    ratio.factor = 2.0

    ratio.age(4.0)
    assert (ratio.ms, ratio.tokens, ratio.squares, ratio.factor) == (10.5, 1.5, 4.5, 2.0)
    ratio.age(4.0)
    assert (ratio.ms, ratio.tokens, ratio.squares, ratio.factor) == (0.0, 0.0, 0.0, 1.0)
