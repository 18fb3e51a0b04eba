from itertools import pairwise
from math import isfinite
from random import Random

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.cost.formulas import COSTS, Cost, formula_line
from kvmesh.core.cost.selection import softmax_probabilities
from kvmesh.core.cost.terms import Candidate, survey
from kvmesh.core.cost.weights import Weights
from tests.reference.routing.selection import choose_least

counts = st.integers(0, 10**12)
times = st.floats(0, 1e12)
costs = st.sampled_from(list(COSTS.values()))


@st.composite
def make_weighed(draw: st.DrawFn) -> tuple[Cost, Weights]:
    """Draw a formula and weights of it, from all of their ranges."""
    cost = draw(costs)
    found = {
        spec.name: draw(
            st.integers(int(spec.lower), int(spec.upper))
            if spec.kind == "int"
            else st.floats(spec.lower, spec.upper)
        )
        for spec in cost.weights.specs
    }
    return cost, cost.weights.make(found, "test")


@st.composite
def make_candidate(draw: st.DrawFn, size: int = 16, prompt: int | None = None) -> Candidate:
    prompt = draw(counts) if prompt is None else prompt
    overlap = draw(st.integers(0, prompt // size))
    blocks = -(-prompt // size)
    active = draw(counts)
    return Candidate(
        worker=WorkerId("w"),
        block_size=size,
        prompt_tokens=prompt,
        overlap_blocks=overlap,
        request_blocks=blocks,
        uncached_tokens=prompt - overlap * size,
        prefill_tokens=draw(counts),
        active_blocks=active,
        decode_blocks=active + blocks,
        active_requests=draw(counts),
        outstanding_tokens=draw(counts),
        waiting_requests=draw(counts),
        cache_usage=draw(st.floats(0, 1)),
        capacity_blocks=draw(counts),
        cached_blocks=draw(counts),
        wait_ms=draw(times),
        ms_per_token=draw(st.floats(0, 1e6)),
        step_tokens=draw(st.floats(0, 4096)),
        arrivals_per_ms=draw(st.floats(0, 1e3)),
        memory_wait_ms=draw(times),
        lost_tokens=draw(st.floats(0, 1)) * overlap * size,
        slow_ms=draw(times),
    )


@st.composite
def make_fleet(draw: st.DrawFn) -> list[Candidate]:
    size = draw(st.integers(1, 2048))
    prompt = draw(counts)
    fleet = draw(st.lists(make_candidate(size, prompt), min_size=1, max_size=6))
    return [
        msgspec.structs.replace(one, worker=WorkerId(f"w{number}"))
        for number, one in enumerate(fleet)
    ]


def price(cost: Cost, value: float) -> float:
    return -value if cost.maximise else value


@given(make_weighed(), make_fleet())
def test_every_score_is_finite_and_can_be_written_out(
    weighed: tuple[Cost, Weights], fleet: list[Candidate]
) -> None:
    cost, weights = weighed
    whole = survey(fleet, weights)

    for one in fleet:
        score = cost.formula.function(one, whole, weights)

        assert isfinite(score)
        assert formula_line(cost, score, one, whole, weights).startswith(
            f"Formula for {one.worker}: "
        )


@given(make_weighed(), make_fleet(), st.data())
def test_more_overlap_never_costs_more(
    weighed: tuple[Cost, Weights], fleet: list[Candidate], data: st.DataObject
) -> None:
    cost, weights = weighed
    whole = survey(fleet, weights)
    one = data.draw(st.sampled_from(fleet))
    less = data.draw(st.integers(0, one.overlap_blocks))
    fewer = msgspec.structs.replace(
        one, overlap_blocks=less, uncached_tokens=one.prompt_tokens - less * one.block_size
    )

    with_more, with_less = (cost.formula.function(each, whole, weights) for each in (one, fewer))

    assert price(cost, with_more) <= price(cost, with_less)


@given(make_weighed(), make_fleet(), st.data())
def test_more_load_never_costs_less(
    weighed: tuple[Cost, Weights], fleet: list[Candidate], data: st.DataObject
) -> None:
    cost, weights = weighed
    whole = survey(fleet, weights)
    one = data.draw(st.sampled_from(fleet))
    blocks = data.draw(counts)
    busier = msgspec.structs.replace(
        one,
        prefill_tokens=one.prefill_tokens + data.draw(counts),
        active_blocks=one.active_blocks + blocks,
        decode_blocks=one.decode_blocks + blocks,
        active_requests=one.active_requests + data.draw(st.integers(0, 1000)),
        outstanding_tokens=one.outstanding_tokens + data.draw(counts),
        waiting_requests=one.waiting_requests + data.draw(st.integers(0, 1000)),
        cache_usage=data.draw(st.floats(one.cache_usage, 1)),
        wait_ms=one.wait_ms + data.draw(times),
        memory_wait_ms=one.memory_wait_ms + data.draw(times),
        slow_ms=one.slow_ms + data.draw(times),
    )

    idle, busy = (cost.formula.function(each, whole, weights) for each in (one, busier))

    assert price(cost, idle) <= price(cost, busy)


class NoDraw:
    def random(self) -> float:
        return 0.0


@given(make_weighed(), make_fleet(), st.randoms(use_true_random=False))
def test_the_order_of_the_workers_changes_neither_scores_nor_choice(
    weighed: tuple[Cost, Weights], fleet: list[Candidate], rng: Random
) -> None:
    cost, weights = weighed
    shuffled = list(fleet)
    rng.shuffle(shuffled)

    def scores(candidates: list[Candidate]) -> dict[WorkerId, float]:
        whole = survey(candidates, weights)
        return {
            one.worker: price(cost, cost.formula.function(one, whole, weights))
            for one in candidates
        }

    before, after = scores(fleet), scores(shuffled)
    chosen = fleet[choose_least(list(before.values()), NoDraw())].worker
    again = shuffled[choose_least(list(after.values()), NoDraw())].worker

    assert before.keys() == after.keys()
    assert all(abs(before[one] - after[one]) <= 1e-9 * abs(before[one]) for one in before)
    if list(before.values()).count(before[chosen]) == 1:
        assert after[again] == min(after.values())


@given(st.lists(st.floats(-1e12, 1e12), min_size=1, max_size=20), st.floats(1e-9, 1e6))
def test_probabilities_sum_to_one_and_follow_the_costs(
    prices: list[float], temperature: float
) -> None:
    probabilities = softmax_probabilities(prices, temperature)

    assert abs(sum(probabilities) - 1.0) < 1e-9
    ranked = sorted(zip(prices, probabilities, strict=True))
    assert all(a[1] >= b[1] for a, b in pairwise(ranked))
