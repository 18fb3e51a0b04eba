import random

import pytest

from kvmesh._native import RoundRobinShadow
from kvmesh.core.blocks.hashing import sequence_hashes
from kvmesh.core.insight.decision_log import SHADOW_ENTRIES
from tests.reference.insight.round_robin_shadow import DEFAULT_WORKER_BLOCKS


def prompt(blocks: int, seed: int = 0) -> list[int]:
    return sequence_hashes([seed, *range(1, 16 * blocks)], 16)


def test_a_prompt_is_found_again_only_when_its_worker_has_its_turn() -> None:
    shadow = RoundRobinShadow(SHADOW_ENTRIES)

    found = [shadow.route(prompt(64), 3, 1000) for _ in range(6)]

    assert found == [0, 0, 0, 64, 64, 64]


def test_a_shared_prefix_is_found_to_half_a_stride() -> None:
    shadow = RoundRobinShadow(SHADOW_ENTRIES)
    shared = prompt(100)
    for depth in (0, 1, 3, 5, 20, 57, 99):
        for tail in (prompt(80, 1000 + depth), prompt(80, 2000 + depth)):
            shadow.route([*shared[:depth], *tail], 1, 100_000)

        found = shadow.route([*shared[:depth], *prompt(80, 3000 + depth)], 1, 100_000)

        assert found is not None
        assert abs(found - depth) <= 4


@pytest.mark.parametrize("depth", [257, 300, 321, 900])
def test_a_long_shared_prefix_is_found_to_an_eighth(depth: int) -> None:
    shadow = RoundRobinShadow(SHADOW_ENTRIES)
    long = prompt(1000)
    shadow.route(long, 1, 100_000)

    found = shadow.route([*long[:depth], *prompt(700, depth)], 1, 100_000)

    assert found is not None
    assert abs(found - depth) <= depth // 8
    assert shadow.route(long, 1, 100_000) == 1000
    assert shadow.entries() <= 2 * (3 + 16 + 3 * 8 + 1)


def test_a_cache_is_no_larger_than_the_workers() -> None:
    shadow = RoundRobinShadow(SHADOW_ENTRIES)
    old, new = prompt(1000, 1), prompt(1000, 2)

    found = [shadow.route(hashes, 1, 1500) for hashes in (old, new, new, old)]

    assert found[:3] == [0, 0, 1000]
    assert found[3] in range(350, 600)


def test_a_fleet_that_grows_makes_its_caches_coarser() -> None:
    shadow = RoundRobinShadow(1000)
    for number in range(100):
        shadow.route(prompt(64, number), 1, 8000)
    assert shadow.entries() > 500

    for number in range(40):
        shadow.route(prompt(64, number), 8, 8000)

    assert shadow.entries() <= 1000


def test_the_least_recently_used_blocks_leave_first_and_leaves_before_roots() -> None:
    shadow = RoundRobinShadow(SHADOW_ENTRIES)
    old, new = prompt(64, 1), prompt(64, 2)
    shadow.route(old, 1, 160)
    shadow.route(new, 1, 160)

    kept = shadow.route(new, 1, 160)
    left = shadow.route(old, 1, 160)

    assert kept == 64
    assert left in range(1, 64)


def test_a_prompt_without_a_whole_block_has_nothing_to_find() -> None:
    shadow = RoundRobinShadow(SHADOW_ENTRIES)

    assert [shadow.route([], 1, 0) for _ in range(2)] == [0, 0]
    assert shadow.entries() == 0


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


def test_a_turn_that_falls_to_a_worker_not_modelled_is_not_counted() -> None:
    shadow = RoundRobinShadow(SHADOW_ENTRIES)

    found = [shadow.route(prompt(64), 3, 0, 2) for _ in range(9)]

    assert found.count(None) == 3
    assert found.count(64) == 5


def test_more_replicas_than_workers_model_one_worker() -> None:
    shadow = RoundRobinShadow(SHADOW_ENTRIES)

    assert [shadow.route(prompt(64), 2, 0, 5) for _ in range(3)] == [0, 64, 64]


def test_a_changed_fleet_keeps_what_the_caches_hold() -> None:
    shadow = RoundRobinShadow(SHADOW_ENTRIES)
    for _ in range(2):
        shadow.route(prompt(64), 2, 0)

    grown = {shadow.route(prompt(64), 3, 0) for _ in range(3)}
    shrunk = [shadow.route(prompt(64), 1, 0) for _ in range(2)]

    assert grown == {0, 64}
    assert shrunk == [64, 64]
