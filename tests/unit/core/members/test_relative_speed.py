import random

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.loads import new_speeds


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
