from collections import Counter

import msgspec
import pytest

from kvmesh.core.buckets.bucket_cost import BucketCost, bucket_candidate
from kvmesh.core.buckets.homes import HomeOptions
from kvmesh.core.buckets.placing import Placing
from kvmesh.core.buckets.spill import BucketHeat
from kvmesh.core.cost.catalogue import PUBLISHED, Pricing
from kvmesh.core.cost.own import OwnFormula
from kvmesh.core.cost.own_function import own_cost
from kvmesh.core.cost.terms import Candidate, Fleet
from tests.unit.core.buckets.test_placing import ALL, NAMES, NONE_SENT, chat, send, serving


def published(name: str, **weights: float) -> BucketCost:
    return BucketCost(PUBLISHED.pricing(name, weights))


def own(function: object) -> tuple[BucketCost, OwnFormula]:
    cost = own_cost(function, "mine")
    assert isinstance(cost.formula, OwnFormula)
    return BucketCost(Pricing(cost, cost.weights.default)), cost.formula


def fewest_requests(candidate: Candidate, fleet: Fleet) -> float:
    del fleet
    return float(candidate.active_requests)


def fails(candidate: Candidate, fleet: Fleet) -> float:
    del candidate, fleet
    raise ValueError("no idea")


def test_a_bucket_is_the_mean_of_its_workers() -> None:
    heat = BucketHeat(backlog_ms=50.0, ms_per_token=0.5, workers=4)

    one = bucket_candidate("chat", heat, requests=9, prompt_chars=6500, known_chars=3300)

    assert (one.worker, one.prompt_tokens, one.request_blocks) == ("chat", 1625, 102)
    assert (one.overlap_blocks, one.uncached_tokens) == (51, 1625 - 51 * 16)
    assert (one.active_requests, one.wait_ms, one.prefill_tokens) == (3, 50.0, 100)


@pytest.mark.parametrize("known", [0, 100, 10**9])
def test_what_is_unknown_or_empty_has_a_price_too(known: int) -> None:
    one = bucket_candidate("chat", BucketHeat(workers=0), 0, 0, known)

    assert (one.uncached_tokens, one.overlap_blocks, one.prefill_tokens) == (0, 0, 0)
    assert all(published(name).cheapest([one]) == ["chat"] for name in PUBLISHED.costs)


def test_conversations_begin_where_it_costs_least_and_stay() -> None:
    placing = Placing(own(fewest_requests)[0], HomeOptions())
    load = serving(*NAMES, load={"a": 3, "b": 1, "c": 2})

    assert placing.place(chat("x"), load, NONE_SENT, 0.0) == ("b", "mine")
    assert placing.place(chat("x", 2), load, NONE_SENT, 0.0) == ("b", "conversation")
    assert placing.place(chat("y"), load, {"a": 0, "b": 9, "c": 0}, 0.0) == ("c", "mine")


def test_what_went_there_before_counts_as_cached() -> None:
    placing = Placing(published("overlap-load"), HomeOptions())
    first = send(placing, chat("x" * 500))

    assert [send(placing, chat("x" * 500 + str(number))) for number in range(3)] == [first] * 3


def test_equals_take_turns_and_who_only_asks_takes_none() -> None:
    placing = Placing(own(fewest_requests)[0], HomeOptions(shared=False))

    asked = [send(placing, msgspec.structs.replace(chat("x"), asks=True), ALL) for _ in range(3)]
    counts = Counter(send(placing, chat(str(number))) for number in range(9))

    assert (len(set(asked)), counts) == (1, dict.fromkeys(NAMES, 3))


def test_a_formula_that_fails_leaves_it_to_turns_until_it_is_off() -> None:
    policy, formula = own(fails)
    placing = Placing(policy, HomeOptions())

    placed = [placing.place(chat(f"{n}" * 50), ALL, NONE_SENT, 0.0) for n in range(9)]

    assert Counter(bucket for bucket, _ in placed) == dict.fromkeys(NAMES, 3)
    assert {why for _, why in placed} == {"round-robin"}
    assert formula.statistics().faults == 5
    assert formula.statistics().off
