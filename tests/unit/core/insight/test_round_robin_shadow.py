import random

import pytest

from kvmesh._native import RoundRobinShadow
from kvmesh.core.blocks.hashing import sequence_hashes
from kvmesh.core.insight.decision_log import SHADOW_ENTRIES
from tests.reference.insight.round_robin_shadow import DEFAULT_WORKER_BLOCKS


def prompt(blocks: int, seed: int = 0) -> list[int]:
    return sequence_hashes([seed, *range(1, 16 * blocks)], 16)


def test_many_large_caches_are_watched_more_coarsely() -> None:
    shadow = RoundRobinShadow(1000)

    for number in range(400):
        shadow.route(prompt(256, number), 4, DEFAULT_WORKER_BLOCKS)

    assert shadow.entries() <= 1000
    assert shadow.route(prompt(256, 399 - 3), 4, DEFAULT_WORKER_BLOCKS) == 256


def test_replicas_that_share_workers_estimate_what_one_router_would_get() -> None:
    rng = random.Random(7)
    prompts = [prompt(64, seed) for seed in range(40)]
    asked = [prompts[min(int(rng.paretovariate(0.7)), 40) - 1] for _ in range(600)]

    truth = hit_rate([RoundRobinShadow(SHADOW_ENTRIES)], asked, replicas=1)
    halves = hit_rate(
        [RoundRobinShadow(SHADOW_ENTRIES), RoundRobinShadow(SHADOW_ENTRIES)], asked, replicas=2
    )
    blind = hit_rate(
        [RoundRobinShadow(SHADOW_ENTRIES), RoundRobinShadow(SHADOW_ENTRIES)], asked, replicas=1
    )

    assert halves == pytest.approx(truth, abs=0.02)
    assert blind < truth - 0.02


def hit_rate(shadows: list[RoundRobinShadow], asked: list[list[int]], *, replicas: int) -> float:
    """Deal the requests to the replicas at random; return what their models say together."""
    rng = random.Random(3)
    found = [rng.choice(shadows).route(hashes, 6, 512, replicas) for hashes in asked]
    known = [blocks for blocks in found if blocks is not None]
    return sum(known) / (64 * len(known))


def test_more_replicas_than_workers_model_one_worker() -> None:
    shadow = RoundRobinShadow(SHADOW_ENTRIES)

    assert [shadow.route(prompt(64), 2, 0, 5) for _ in range(3)] == [0, 64, 64]
