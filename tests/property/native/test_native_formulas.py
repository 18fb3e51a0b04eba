"""Any arithmetic formula gives the same to the last bit: its function in Python, and in C."""

import random
from math import inf
from typing import Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.blocks.events import ROOT, WorkerId
from kvmesh.core.blocks.hashing import BlockHashes, pack_hashes
from kvmesh.core.cost.catalogue import Formulas
from kvmesh.core.cost.expression import Expression
from kvmesh.core.cost.formulas import COSTS, Cost, make_cost, score_of
from kvmesh.core.cost.program import compile_formula
from kvmesh.core.cost.terms import DERIVED, NO_FLEET, Candidate
from kvmesh.core.cost.weight_sets import PredictedTimeWeights
from kvmesh.core.index.approx import new_approx
from kvmesh.core.index.index import KvIndex
from kvmesh.core.members.loads import Demand, new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.worker_info import WorkerInfo
from kvmesh.core.routing.decision import RouteRequest, RouterOptions
from kvmesh.core.routing.scheduler import Scheduler

TERMS: Final = (
    "block_size", "prompt_tokens", "request_blocks", "step_tokens", "arrivals_per_ms",
    "overlap_blocks", "uncached_tokens", "prefill_tokens", "active_blocks", "decode_blocks",
    "active_requests", "outstanding_tokens", "capacity_blocks", "ms_per_token", "wait_ms",
    "memory_wait_ms", "failure_share", "failure_ms", "lost_tokens", "slow_ms",
)  # fmt: skip
NAMES = sorted({*TERMS, *DERIVED, *PredictedTimeWeights.__struct_fields__})
names = st.sampled_from(NAMES)
numbers = st.integers(1, 9).map(str) | st.floats(0.001, 1000.0).map(repr)
SIZE = 16
RUN = list(range(1, 100))


def join(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return (
        st.builds("({} {} {})".format, parts, st.sampled_from("+-*"), parts)
        | st.builds("({} / max(1, {}))".format, parts, parts)
        | st.builds("{}({}, {})".format, st.sampled_from(("max", "min")), parts, parts)
        | st.builds("-{}".format, parts)
    )


texts = st.recursive(names | numbers, join, max_leaves=12)


def check(cost: Cost, seed: int, workers: int) -> None:
    """Hold what the compiled core gives each of some workers against the formula's function."""
    assert compile_formula(cost) is not None
    rng = random.Random(seed)
    index, membership = KvIndex(), Membership()
    scheduler = Scheduler(
        RouterOptions(cost=cost.name, formulas=Formulas(() if cost.name in COSTS else (cost,))),
        rng,
        membership=membership,
        sequences=new_sequences(SIZE),
        index=index,
        routed=new_approx(),
    )
    for number in range(workers):
        name = WorkerId(f"w{number:03d}")
        membership.add(name, 0.0)
        scheduler.workers.describe(name, WorkerInfo(total_blocks=rng.choice([0, 50, 500, 1 << 30])))
        state = scheduler.workers.state(name)
        state.prefill.factor = rng.choice([1.0, 1.0, rng.uniform(0.3, 3.0)])
        state.blank_blocks = rng.choice([0, 3, state.capacity_blocks])
        price = rng.choice([(0.0, 0.0), (0.0, 700.0), (rng.random(), rng.uniform(0.0, 1e5))])
        state.failure_share, state.lost_ms = price
        for place in range(rng.choice([0, 0, 1, 5])):
            tokens = rng.randrange(1000)
            demand = Demand(tokens, rng.randrange(tokens + 1), rng.randrange(500), keys=(4, 8))
            scheduler.sequences.add(f"{name}-{place}", name, demand, 10.0 + place / 100)
        index.store(name, ROOT, pack_hashes(RUN[: rng.choice([0, rng.randint(1, 99)])]))
    scheduler.speeds.steps.step_tokens = rng.choice([0.0, 33.3])
    scheduler.speeds.finished(WorkerId("w000"), 0.7, 90)
    blocks = rng.randrange(100)
    request = RouteRequest(
        "r", BlockHashes.of(RUN[:blocks], SIZE), blocks * SIZE + 3, rng.randrange(400)
    )

    decision = scheduler.explain(request, 10.0 + rng.choice([0.05, 0.3, 9.0]))

    assert len(decision.candidates) == workers
    for candidate, score in zip(decision.candidates, decision.scores, strict=True):
        assert score == score_of(cost, candidate, NO_FLEET, decision.weights)
        alone = msgspec.structs.replace(candidate, failure_share=0.0)
        if cost.name in COSTS:
            # A price of failure is never a discount.
            assert score_of(cost, alone, NO_FLEET, decision.weights) <= score < inf


@given(text=texts, failure=texts, seed=st.integers(0, 1000))
def test_any_formula_gives_the_same_to_the_last_bit(text: str, failure: str, seed: int) -> None:
    price, lost = (Expression(one, weights=PredictedTimeWeights) for one in (text, failure))
    check(make_cost("any", price, lost), seed, workers=5)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(4))
def test_every_term_is_the_candidate_s(name: str, seed: int) -> None:
    price = Expression(name, weights=PredictedTimeWeights)
    check(make_cost(name, price, Expression("failure_ms")), seed, workers=90)


@pytest.mark.parametrize("cost", [one for one in COSTS.values() if compile_formula(one)])
@pytest.mark.parametrize("seed", range(10))
def test_every_published_formula_gives_the_same(cost: Cost, seed: int) -> None:
    check(cost, seed, workers=1 + seed % 7 if seed else 1500)


def test_these_are_all_the_terms_that_the_core_has() -> None:
    others = {"worker", "waiting_requests", "cache_usage", "cached_blocks"}

    assert {*TERMS} == {*Candidate.__struct_fields__} - others - {
        "fetch_ms",
        "fetch_from",
        "adapter_ms",
    }
