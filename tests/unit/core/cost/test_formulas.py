import msgspec
import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.cost.expression import Expression
from kvmesh.core.cost.formulas import (
    COSTS,
    DYNAMO,
    OVERLAP_BLOCKS,
    OVERLAP_LOAD,
    OVERLAP_USAGE_WAITING,
    PREBLE,
    PREDICTED_TIME,
    PREFILL_DECODE,
    SGLANG,
    formula_line,
    score_of,
)
from kvmesh.core.cost.terms import Candidate, survey
from kvmesh.core.cost.weight_sets import (
    DynamoWeights,
    OverlapBlocksWeights,
    OverlapLoadWeights,
    OverlapUsageWaitingWeights,
    PredictedTimeWeights,
    PrefillDecodeWeights,
    SglangWeights,
)
from kvmesh.core.cost.weights import NO_WEIGHTS, Weights
from tests.reference.routing.selection import choose_least

ALONE = survey([Candidate(WorkerId("w"), 16, 100)], NO_WEIGHTS)


def make_candidate(name: str = "worker_1", **terms: float) -> Candidate:
    return Candidate(WorkerId(name), 16, **({"prompt_tokens": 1600} | terms))  # type: ignore[arg-type]  # any mix of terms


class NoDraw:
    def random(self) -> float:
        raise AssertionError("nothing to draw")


def test_overlap_minus_load_chooses_the_worked_example() -> None:
    fleet = [
        make_candidate("w1", uncached_tokens=1360, cache_usage=0.30),
        make_candidate("w2", uncached_tokens=800, cache_usage=0.50),
        make_candidate("w3", uncached_tokens=400, cache_usage=0.80),
    ]

    scores = [
        OVERLAP_LOAD.formula.function(one, ALONE, OVERLAP_LOAD.weights.default) for one in fleet
    ]

    assert scores == pytest.approx([-0.15, 0.00, -0.05])
    assert choose_least([-score for score in scores], NoDraw()) == 1


def test_overlap_usage_waiting_counts_overlap_twice_and_waiting_against_the_most() -> None:
    fleet = [
        make_candidate("w1", uncached_tokens=800, cache_usage=0.2, waiting_requests=2),
        make_candidate("w2", uncached_tokens=1600, cache_usage=0.1, waiting_requests=8),
    ]
    whole = survey(fleet, NO_WEIGHTS)

    scores = [
        OVERLAP_USAGE_WAITING.formula.function(one, whole, OVERLAP_USAGE_WAITING.weights.default)
        for one in fleet
    ]

    assert scores == pytest.approx([2 * 0.5 - 0.2 - 0.25, -0.1 - 1.0])
    [one] = alone = [make_candidate(uncached_tokens=1600, waiting_requests=1)]
    assert (
        OVERLAP_USAGE_WAITING.formula.function(
            one, survey(alone, NO_WEIGHTS), OVERLAP_USAGE_WAITING.weights.default
        )
        == -1.0
    )


def test_each_part_of_overlap_usage_waiting_has_its_weight() -> None:
    one = make_candidate(uncached_tokens=800, cache_usage=0.2, waiting_requests=2)
    whole = survey([one, make_candidate("w2", waiting_requests=8)], NO_WEIGHTS)
    weights = OverlapUsageWaitingWeights(
        overlap_score_weight=4.0, gpu_cache_usage_weight=0.5, waiting_requests_weight=3.0
    )

    score = OVERLAP_USAGE_WAITING.formula.function(one, whole, weights)

    assert score == pytest.approx(4 * 0.5 - 0.5 * 0.2 - 3 * 0.25)


def test_hit_rate_and_load_have_a_weight_each() -> None:
    one = make_candidate(uncached_tokens=800, cache_usage=0.4)
    weights = OverlapLoadWeights(weight_cache=3.0, weight_load=2.0)

    assert OVERLAP_LOAD.formula.function(one, ALONE, weights) == pytest.approx(1.5 - 0.8)


def test_blocks_of_overlap_are_held_against_load() -> None:
    one = make_candidate(overlap_blocks=25, cache_usage=0.3)
    twice = OverlapBlocksWeights(overlap_score_weight=2.0)
    ten = OverlapBlocksWeights(weight_load=10.0)

    scores = [
        OVERLAP_BLOCKS.formula.function(one, ALONE, weights)
        for weights in (OverlapBlocksWeights(), twice, ten)
    ]

    assert scores == pytest.approx([24.7, 49.7, 22.0])


def test_prefill_decode_weighs_prefill_against_decode() -> None:
    candidate = make_candidate(prefill_tokens=1000, uncached_tokens=608, decode_blocks=25)

    assert (
        PREFILL_DECODE.formula.function(candidate, ALONE, PREFILL_DECODE.weights.default) == 125.5
    )
    assert (
        PREFILL_DECODE.formula.function(
            candidate, ALONE, PrefillDecodeWeights(overlap_score_weight=2.0)
        )
        == 226.0
    )


def test_the_formula_line_is_the_fields() -> None:
    weights = PrefillDecodeWeights(overlap_score_weight=0.998)
    candidate = make_candidate(
        prefill_tokens=1000, uncached_tokens=608, decode_blocks=25, overlap_blocks=15
    )

    line = formula_line(
        COSTS["prefill-decode"],
        PREFILL_DECODE.formula.function(candidate, ALONE, weights),
        candidate,
        ALONE,
        weights,
    )

    assert line == "Formula for worker_1: 125.3 = 1.0 * 100.5 + 25.0 (cached_blocks: 15)"


def test_dynamo_gives_credit_that_decays_with_backlog() -> None:
    idle = make_candidate("w1", prompt_tokens=1600, overlap_blocks=50, decode_blocks=110)
    busy = make_candidate(
        "w2", overlap_blocks=50, prefill_tokens=3200, decode_blocks=110, active_requests=4
    )
    whole = survey([idle, busy], NO_WEIGHTS)
    decay = DynamoWeights(overlap_score_credit_decay=0.5, decode_active_request_weight=10.0)

    assert DYNAMO.formula.function(idle, whole, DYNAMO.weights.default) == 100 - 50 + 110
    assert DYNAMO.formula.function(busy, whole, DYNAMO.weights.default) == 300 - 50 + 110
    assert DYNAMO.formula.function(busy, whole, decay) == 300 - 25 + 110 + 40
    assert DYNAMO.formula.function(idle, whole, decay) == 100 - 50 + 110
    assert DYNAMO.formula.function(idle, whole, DynamoWeights(overlap_score_credit=9.0)) == 110


def test_dynamos_credit_decays_with_backlog_beyond_the_least_in_prompts() -> None:
    less = make_candidate("w1", prompt_tokens=1, prefill_tokens=30, overlap_blocks=1)
    more = make_candidate("w2", prompt_tokens=1, prefill_tokens=31, overlap_blocks=1)
    whole = survey([less, more], NO_WEIGHTS)
    decay = DynamoWeights(overlap_score_credit_decay=1.0)

    assert DYNAMO.formula.function(less, whole, decay) == 31 / 16 - 1
    assert DYNAMO.formula.function(more, whole, decay) == 32 / 16 - 1 / 2


def test_preble_exploits_a_prefix_longer_than_the_rest() -> None:
    longest = make_candidate("w1", overlap_blocks=60, uncached_tokens=640, prefill_tokens=9000)
    equal = make_candidate("w2", overlap_blocks=60, uncached_tokens=640, prefill_tokens=8000)
    fleet = [longest, equal, make_candidate("w3", uncached_tokens=1600)]
    whole = survey(fleet, NO_WEIGHTS)

    costs = [PREBLE.formula.function(one, whole, PREBLE.weights.default) for one in fleet]

    assert choose_least(costs, NoDraw()) == 1
    total = 9000 + 640 + 8000 + 640 + 1600
    assert (whole.total_work, costs) == (total, [9000, 8000, 1 + total])
    busy = make_candidate("w4", prefill_tokens=10, outstanding_tokens=100, uncached_tokens=1600)
    assert PREBLE.formula.function(busy, whole, PREBLE.weights.default) == 1 + total + 15
    line = formula_line(COSTS["preble"], 8000.0, equal, whole, PREBLE.weights.default)
    assert line == (
        "Formula for w2: 8000.0 = work 8000 + 0.05 * 0, own 640, longest match 60"
        " (cached_blocks: 60)"
    )


def test_preble_explores_by_load_eviction_and_own_prefill() -> None:
    blocks = {"request_blocks": 100, "uncached_tokens": 1600}
    full = make_candidate("w1", cached_blocks=990, capacity_blocks=1000, **blocks)
    fleet = [full, make_candidate("w2", prefill_tokens=100, outstanding_tokens=1000, **blocks)]
    whole = survey(fleet, NO_WEIGHTS)

    costs = [PREBLE.formula.function(one, whole, PREBLE.weights.default) for one in fleet]

    assert costs == [90 * 16 + 1600, 100 + 50 + 1600]


def test_sglang_takes_the_best_match_the_smallest_tree_or_the_shortest_queue() -> None:
    blocks = {"request_blocks": 100}
    match = make_candidate("w1", overlap_blocks=40, cached_blocks=9, active_requests=5, **blocks)
    small = make_candidate("w2", overlap_blocks=10, cached_blocks=5, active_requests=1, **blocks)

    def costs(*fleet: Candidate, weights: Weights = SGLANG.weights.default) -> list[float]:
        return [SGLANG.formula.function(one, survey(fleet, weights), weights) for one in fleet]

    assert costs(match, small) == [-40, -10]
    assert costs(match, small, weights=SglangWeights(cache_threshold=0.5)) == [9, 5]
    assert costs(match, small, weights=SglangWeights(balance_abs_threshold=3)) == [5, 1]
    even = SglangWeights(balance_abs_threshold=3, balance_rel_threshold=6.0)
    assert costs(match, small, weights=even) == [-40, -10]
    at_threshold = SglangWeights(balance_abs_threshold=4, cache_threshold=0.4)
    assert costs(match, small, weights=at_threshold) == [9, 5]
    five_fold = SglangWeights(balance_abs_threshold=3, balance_rel_threshold=5.0)
    assert costs(match, small, weights=five_fold) == [-40, -10]
    whole = make_candidate("w3", request_blocks=1, overlap_blocks=1, cached_blocks=7)
    assert costs(whole, weights=SglangWeights(cache_threshold=0.5)) == [-1]


def test_predicted_time_prices_what_a_prefill_does_to_the_others() -> None:
    candidate = make_candidate(
        uncached_tokens=1000,
        active_requests=10,
        outstanding_tokens=20_000,
        wait_ms=50.0,
        ms_per_token=0.1,
        memory_wait_ms=7.0,
        slow_ms=300.0,
    )

    cost = PREDICTED_TIME.formula.function(candidate, ALONE, PREDICTED_TIME.weights.default)

    assert cost == pytest.approx((50 + 100) * 5.0 + 0.05 * 0.1 * 20_000 + 7 + 300)


def test_predicted_time_counts_a_steps_fixed_time_and_who_will_come_meanwhile() -> None:
    candidate = make_candidate(
        uncached_tokens=900,
        wait_ms=50.0,
        ms_per_token=0.1,
        step_tokens=100.0,
        arrivals_per_ms=0.002,
    )

    cost = PREDICTED_TIME.formula.function(candidate, ALONE, PredictedTimeWeights(followers=2.0))

    assert cost == pytest.approx((50 + 100 * (1 + 2.0 * 0.002 * 50)) * (1 + 2.0 * 0.002 * 100))
    line = formula_line(
        COSTS["predicted-time"], cost, candidate, ALONE, PredictedTimeWeights(followers=2.0)
    )
    assert line == (
        "Formula for worker_1: 238.0 = (50.0 + 1.0 * 100.0 * min(2, 1 + 2.0 * 0.0020 * 50.0)"
        " + 0.25 * 0.0) * (1 + 0.4 * 0"
        " + 2.0 * 0.0020 * 1.0 * 100.0) + 0.05 * 0.1000 * 0 + 0.0 + 0.0 (cached_blocks: 0)"
    )


def test_an_empty_prompt_has_no_overlap() -> None:
    empty = make_candidate(prompt_tokens=0)

    assert OVERLAP_LOAD.formula.function(empty, ALONE, OVERLAP_LOAD.weights.default) == 0.0


@pytest.mark.parametrize("name", sorted(COSTS))
def test_failing_makes_every_formula_worse_by_its_own_unit(name: str) -> None:
    cost = COSTS[name]
    well = make_candidate(
        prefill_tokens=320, uncached_tokens=800, active_requests=3, ms_per_token=0.5
    )
    failing = msgspec.structs.replace(well, failure_share=0.25, failure_ms=200.0)

    scores = [score_of(cost, one, ALONE, cost.weights.default) for one in (well, failing)]

    worse = {
        "prefill-decode": 400.0 / 16,
        "predicted-time": 200.0,
        "dynamo": 400.0 / 16,
        "lmetric": 400.0 * 4,
        "preble": 400.0,
        "sglang": 400.0,
        "overlap-usage-waiting": -0.25,
        "overlap-load": -0.25,
        "overlap-blocks": -400.0 / 16,
    }
    assert scores[0] == cost.formula.function(well, ALONE, cost.weights.default)
    assert scores[1] - scores[0] == pytest.approx(worse[name])


def test_the_formula_line_says_how_long_an_adapter_takes_to_load() -> None:
    cost = COSTS["lmetric"]
    loading = make_candidate(ms_per_token=0.5, adapter_ms=99.6)
    score = score_of(cost, loading, ALONE, cost.weights.default)

    line = formula_line(cost, score, loading, ALONE, cost.weights.default)
    assert " (of it 100 ms to load the adapter) (cached" in line


def test_a_worker_of_unknown_speed_has_a_finite_price() -> None:
    failing = make_candidate(failure_share=1.0, failure_ms=200.0, ms_per_token=0.0)

    assert Expression("failure_tokens").function(failing, ALONE, NO_WEIGHTS) == 200.0 / 1e-4


@pytest.mark.parametrize(
    ("name", "end"),
    [("prefill-decode", " + 25.0 (25% fail) "), ("overlap-load", " - 0.2 (25% fail) ")],
)
def test_the_formula_line_says_what_failing_costs(name: str, end: str) -> None:
    cost = COSTS[name]
    failing = make_candidate(ms_per_token=0.5, failure_share=0.25, failure_ms=200.0)
    score = score_of(cost, failing, ALONE, cost.weights.default)

    assert end in formula_line(cost, score, failing, ALONE, cost.weights.default)
