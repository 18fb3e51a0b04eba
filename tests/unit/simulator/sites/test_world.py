"""The laboratory of sites plays every request once, and knows who leaves when."""

import pytest

from benchmarks.sites.bench_sites import RTT_MS, play, row
from kvmesh_lab.simulator.sites.comparison import RULES
from kvmesh_lab.simulator.sites.workload import Load, make_conversations
from kvmesh_lab.simulator.sites.world import Rule


@pytest.mark.parametrize("rule", RULES)
def test_every_turn_is_played_once_and_answered(rule: Rule) -> None:
    world = play((3.0, 0.5, 0.5), rule, 0, 12.0)

    turns = sum(len(one.turns) for one in make_conversations(Load((3.0, 0.5, 0.5), 12.0), 0))
    assert len(world.played) == turns
    assert not any(one.failed for one in world.played)
    far = [one for one in world.played if one.home != one.site]
    assert all(one.ttft_ms >= RTT_MS[one.home][one.site] for one in far)
    assert bool(far) == (rule != "nearest") or rule == "skywalker"
    assert world.bytes["digest"] > 0


def test_the_same_seed_gives_the_same_world() -> None:
    first, second = (play((1.0, 0.2, 0.2), "kvmesh", 1, 40.0) for _ in range(2))

    assert first.played == second.played
    assert row(first) == row(second)
