import pytest

from kvmesh.core.cost.catalogue import PUBLISHED, Formulas, Pricing, reweigh, split_cost
from kvmesh.core.cost.expression import Expression
from kvmesh.core.cost.formulas import COSTS, DYNAMO, make_cost
from kvmesh.core.cost.own_function import own_cost
from kvmesh.core.cost.weight_sets import DynamoWeights
from kvmesh.errors import ConfigError

OWN = make_cost("own", Expression("wait_ms"), Expression("failure_ms"))


@pytest.mark.parametrize("name", sorted(COSTS))
def test_every_weight_of_a_published_formula_says_what_it_is_and_its_range(name: str) -> None:
    for spec in PUBLISHED.plain(name).cost.weights.specs:
        assert spec.meaning
        assert 0.0 <= spec.lower <= spec.default <= spec.upper <= 1e6


def test_a_formula_has_its_own_weights() -> None:
    assert PUBLISHED.plain("dynamo") == Pricing(DYNAMO, DynamoWeights())
    assert PUBLISHED.pricing("dynamo", {}) == Pricing(DYNAMO, DynamoWeights())
    doubled = PUBLISHED.pricing("dynamo", {"overlap_score_weight": 2.0})
    assert doubled == Pricing(DYNAMO, DynamoWeights(overlap_score_weight=2.0))
    assert reweigh(doubled, {"overlap_score_credit": 0.5}, "x") == Pricing(
        DYNAMO, DynamoWeights(overlap_score_weight=2.0, overlap_score_credit=0.5)
    )


def test_the_default_of_a_weight_is_that_of_the_formula() -> None:
    def default(name: str) -> float:
        table = COSTS[name].weights
        return next(one.default for one in table.specs if one.name == "overlap_score_weight")

    assert (default("predicted-time"), default("overlap-usage-waiting")) == (1.0, 2.0)


def test_what_there_is_not_is_refused_with_what_there_is() -> None:
    with pytest.raises(ConfigError, match="kv_cost 'best' is unknown; use one of prefill-decode, "):
        PUBLISHED.plain("best")
    with pytest.raises(ConfigError, match="--x 'best' is unknown"):
        PUBLISHED.pricing("best", {"a": 1.0}, "--x")
    with pytest.raises(
        ConfigError, match=r"--x: preble: there is no weight 'contention' here; .*\("
    ):
        PUBLISHED.pricing("preble", {"contention": 1.0}, "--x")


def test_a_file_and_its_function_are_one_name_without_the_folder() -> None:
    assert split_cost(["dynamo", "overlap_score_weight=1"]) == (
        "dynamo",
        ["overlap_score_weight=1"],
    )
    assert split_cost(["a/b.py", "f", "w=1"]) == ("b.py:f", ["w=1"])
    assert split_cost(["b.py", "w=1"]) == ("b.py", ["w=1"])
    assert split_cost(["b.py"]) == ("b.py", [])


def test_a_file_that_was_not_loaded_is_no_formula() -> None:
    with pytest.raises(
        ConfigError, match=r"'/tmp/b.py:f' is unknown.*read only where its operator"
    ):
        PUBLISHED.plain("/tmp/b.py:f")  # noqa: S108  never opened


def test_formulas_of_functions_are_known_apart() -> None:
    mine = own_cost(lambda c, f: c.active_requests + f.max_waiting, "b.py:f")

    assert Formulas([OWN, mine]).own() == [mine.formula]
    assert PUBLISHED.own() == []


def test_one_s_own_formulas_stand_beside_the_published_ones() -> None:
    formulas = Formulas([OWN])

    assert formulas.plain("own").cost is OWN
    assert formulas.plain("dynamo") == PUBLISHED.plain("dynamo")
    assert "own" not in PUBLISHED.costs
    with pytest.raises(ConfigError, match="'own': another has that name"):
        Formulas([OWN, OWN])
