"""Any arithmetic formula gives the same to the last bit: its function, over columns, and in C."""

from math import inf, isfinite, nextafter

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.compiled import CORE, NATIVE
from kvmesh.core.cost.expression import Expression
from kvmesh.core.cost.formulas import COSTS, Cost, make_cost
from kvmesh.core.cost.quick import (
    COLUMNS,
    SCALARS,
    is_quick,
    native_find_ties,
    pure_costs,
    pure_find_ties,
)
from kvmesh.core.cost.terms import DERIVED, NO_FLEET
from kvmesh.core.cost.weight_sets import PredictedTimeWeights, PrefillDecodeWeights
from kvmesh.core.cost.weights import Weights
from tests.property.native.bookings.two_fleets import TwoFleets

if NATIVE is None:
    pytest.skip(CORE, allow_module_level=True)

NAMES = sorted({*COLUMNS, *SCALARS, *DERIVED, *PredictedTimeWeights.__struct_fields__})
names = st.sampled_from(NAMES)
numbers = st.integers(1, 9).map(str) | st.floats(0.001, 1000.0).map(repr)


def join(parts: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return (
        st.builds("({} {} {})".format, parts, st.sampled_from("+-*"), parts)
        | st.builds("({} / max(1, {}))".format, parts, parts)
        | st.builds("{}({}, {})".format, st.sampled_from(("max", "min")), parts, parts)
        | st.builds("-{}".format, parts)
    )


texts = st.recursive(names | numbers, join, max_leaves=12)


def check(cost: Cost, fleet: TwoFleets) -> None:
    """Hold what all forms of a formula give each worker against each other."""
    assert NATIVE is not None
    assert is_quick(cost)
    native, pure = native_find_ties(NATIVE, cost), pure_find_ties(cost)
    weights: Weights = PredictedTimeWeights(
        fleet.rng.choice([0.0, 1.0, 2.5]), fleet.rng.choice([0.4, 0.125]), 0.75, 0.0625
    )
    weighing = msgspec.structs.replace(fleet.weighing("lmetric"), cost=cost, weights=weights)
    costs = pure_costs(cost)(weighing, fleet.pure)

    for state, found in zip(fleet.pure, costs, strict=True):
        candidate = weighing.candidate(state, 0)
        price = cost.formula.function(candidate, NO_FLEET, weighing.weights)
        failure = cost.failure.function(candidate, NO_FLEET, weighing.weights)
        assert found == (price + failure if state.failure_share else price)
    assert native(fleet.native, fleet.known, weighing) == pure(fleet.pure, {}, weighing)
    # A margin at which a worker just about ties tells a cost from its neighbours.
    least = min(costs)
    for one in costs if least > 0.0 else ():
        ratio = one / least
        for margin in (ratio - 1.0, nextafter(ratio, inf) - 1.0, nextafter(ratio, 0.0) - 1.0):
            if isfinite(margin):
                asked = msgspec.structs.replace(
                    weighing, cost=msgspec.structs.replace(cost, margin=margin)
                )
                assert native(fleet.native, fleet.known, asked) == pure(fleet.pure, {}, asked)


@given(text=texts, failure=texts, seed=st.integers(0, 1000))
def test_any_formula_gives_the_same_to_the_last_bit(text: str, failure: str, seed: int) -> None:
    price, lost = (Expression(one, weights=PredictedTimeWeights) for one in (text, failure))
    check(make_cost("any", price, lost), TwoFleets(seed, workers=5))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("seed", range(8))
def test_every_term_is_the_candidate_s(name: str, seed: int) -> None:
    price = Expression(name, weights=PredictedTimeWeights)
    check(make_cost(name, price, Expression("failure_ms")), TwoFleets(seed, workers=90))


def test_weights_may_change_from_request_to_request() -> None:
    assert NATIVE is not None
    fleet = TwoFleets(3, workers=8)
    cost = COSTS["prefill-decode"]
    native, pure = native_find_ties(NATIVE, cost), pure_find_ties(cost)

    for weight in (1.0, 50.0, 0.0, 1.0):
        weighing = msgspec.structs.replace(
            fleet.weighing(cost.name), weights=PrefillDecodeWeights(overlap_score_weight=weight)
        )

        assert native(fleet.native, fleet.known, weighing) == pure(fleet.pure, {}, weighing)
