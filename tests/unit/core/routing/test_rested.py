"""Who of an idle fleet gets a prompt that nobody has cached."""

from collections import Counter
from collections.abc import Sequence

import msgspec
import pytest

from kvmesh.core.blocks.events import ROOT, WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.core.routing.scheduler import Scheduler
from tests.unit.core.routing.scheduling import NAMES, decide, index_of, make_scheduler

BLOCKS = 100


def make_request(name: str, blocks: Sequence[int]) -> RouteRequest:
    return RouteRequest(name, BlockHashes.of(list(blocks), 16), 16 * len(blocks))


def serve(scheduler: Scheduler, request: RouteRequest, now: float) -> WorkerId:
    """Route a request, let it be served and its prompt be cached."""
    worker = decide(scheduler, request, now).worker
    scheduler.first_token(request.request_id, now + 0.05)
    scheduler.finish(request.request_id, now + 0.1)
    index_of(scheduler).store(worker, ROOT, pack_hashes(list(request.hashes.upto(BLOCKS))))
    return worker


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize("common", [0, 4])
def test_new_prompts_one_at_a_time_spread_evenly_over_an_idle_fleet(seed: int, common: int) -> None:
    scheduler = make_scheduler(seed=seed)
    shared = list(range(1, common + 1))

    served: Counter[WorkerId] = Counter()
    for number in range(20):
        own = range(10_000 * (seed + 1) + 1000 * number, 10**6)[: BLOCKS - common]
        request = make_request(f"r{number}", [*shared, *own])
        served[serve(scheduler, request, float(number))] += 1

    assert set(served.values()) == {5}


def test_a_prompt_that_is_half_cached_goes_back_however_long_others_rested() -> None:
    scheduler = make_scheduler()
    first = serve(scheduler, make_request("r0", range(1, BLOCKS + 1)), 0.0)

    again = [
        serve(scheduler, make_request(f"r{turn}", [*range(1, 51), *range(own, own + 50)]), 9)
        for turn, own in enumerate(range(1000, 5000, 1000), 1)
    ]

    assert again == [first] * 4


def test_a_worker_that_is_at_work_has_not_rested() -> None:
    scheduler = make_scheduler()
    served = [
        serve(scheduler, make_request(f"r{n}", range(1000 * n, 1000 * n + BLOCKS)), float(n))
        for n in range(1, 5)
    ]
    # The one that rested longest decodes a request that costs next to nothing.
    scheduler.schedule(
        RouteRequest("busy", BlockHashes.of([], 16), 1, pinned_worker=served[0]), 6.0
    )
    scheduler.first_token("busy", 6.0)

    decision = decide(scheduler, make_request("new", range(9000, 9000 + BLOCKS)), 7.0)

    assert decision.worker == served[1]


def test_where_nobody_is_idle_the_home_of_the_first_block_decides() -> None:
    chosen: set[WorkerId] = set()
    for seed in range(5):
        scheduler = make_scheduler(seed=seed)
        for number, worker in enumerate(NAMES):
            # Rested differently, equally loaded.
            busy = RouteRequest(f"b{number}", BlockHashes.of([], 16), 16, pinned_worker=worker)
            scheduler.schedule(busy, (number * (seed + 1)) % 4 + 1.0)
            scheduler.first_token(f"b{number}", 5.0 + (number * (seed + 3)) % 5)

        chosen.add(decide(scheduler, make_request("new", range(1, BLOCKS + 1)), 20.0).worker)

    assert len(chosen) == 1


def test_a_formula_without_a_margin_draws_whoever_rested() -> None:
    drawn = {
        decide(make_scheduler(seed=seed, cost="lmetric"), make_request("r", range(1, 11))).worker
        for seed in range(40)
    }

    assert drawn == set(NAMES)


@pytest.mark.parametrize("seed", range(8))
def test_a_new_prompt_goes_to_the_cheapest_of_a_busy_fleet_however_little_the_others_cost_more(
    seed: int,
) -> None:
    scheduler = make_scheduler(seed=seed)
    for number, worker in enumerate(NAMES):
        pinned = make_request(f"r{worker}", range(1000 * number + 1, 1000 * number + 400 - number))
        scheduler.schedule(msgspec.structs.replace(pinned, pinned_worker=worker), 0.0)

    new = make_request("new", range(10_000 + 1000 * seed, 10_000 + 1000 * seed + BLOCKS))

    assert decide(scheduler, new).worker == NAMES[-1]
