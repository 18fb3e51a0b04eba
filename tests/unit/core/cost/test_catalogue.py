import pytest

from kvmesh.core.cost.catalogue import PUBLISHED, Formulas, split_cost
from kvmesh.core.cost.expression import Expression
from kvmesh.core.cost.formulas import COSTS, make_cost
from kvmesh.errors import ConfigError

OWN = make_cost("own", Expression("wait_ms"), Expression("failure_ms"))


@pytest.mark.parametrize("name", sorted(COSTS))
def test_every_weight_of_a_published_formula_says_what_it_is_and_its_range(name: str) -> None:
    for spec in PUBLISHED.plain(name).cost.weights.specs:
        assert spec.meaning
        assert 0.0 <= spec.lower <= spec.default <= spec.upper <= 1e6


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
    assert (split_cost(["b.py", "w=1"]), split_cost(["b.py"])) == (("b.py", ["w=1"]), ("b.py", []))


def test_one_s_own_formulas_stand_beside_the_published_ones() -> None:
    formulas = Formulas([OWN])

    assert formulas.plain("own").cost is OWN
    assert formulas.plain("dynamo") == PUBLISHED.plain("dynamo")
    assert "own" not in PUBLISHED.costs
    with pytest.raises(ConfigError, match="'own': another has that name"):
        Formulas([OWN, OWN])


def test_the_default_of_a_weight_is_that_of_the_formula() -> None:
    def default(name: str) -> float:
        table = COSTS[name].weights
        return next(one.default for one in table.specs if one.name == "overlap_score_weight")

    assert (default("predicted-time"), default("overlap-usage-waiting")) == (1.0, 2.0)
