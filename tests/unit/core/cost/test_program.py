import pytest

from kvmesh.core.cost.expression import Expression
from kvmesh.core.cost.formulas import COSTS, make_cost
from kvmesh.core.cost.program import compile_formula


def test_formulas_that_look_at_the_fleet_or_decide_between_cases_are_not_compiled() -> None:
    others = {
        *("dynamo", "preble", "sglang"),
        *("overlap-usage-waiting", "overlap-load", "overlap-blocks"),
    }

    assert {name for name, cost in COSTS.items() if compile_formula(cost) is None} == others


@pytest.mark.parametrize(
    ("formula", "failure"),
    [("waiting_requests", "1"), ("wait_ms + max_waiting", "1"), ("wait_ms", "cached_blocks")],
)
def test_a_formula_of_other_terms_is_not_compiled(formula: str, failure: str) -> None:
    assert compile_formula(make_cost("own", Expression(formula), Expression(failure))) is None


def test_a_formula_too_long_for_the_compiled_core_is_not_compiled() -> None:
    nested = "wait_ms"
    for _ in range(40):
        nested = f"1 + ({nested})"

    assert compile_formula(make_cost("own", Expression(nested), Expression("failure_ms"))) is None
