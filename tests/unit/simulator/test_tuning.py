import pytest

from kvmesh.core.cost.formulas import COSTS
from kvmesh.core.cost.terms import Weights
from kvmesh.core.routing.decision import RouterOptions
from kvmesh.errors import ConfigError
from kvmesh.simulator.tuning import TUNED, Search, Weighting, tuned_weights


def distance(weights: Weighting) -> float:
    return 1.0 + abs(weights["a"] - 8.0) + abs(weights["b"] - 0.5)


def test_the_search_follows_what_pays_and_leaves_what_does_not() -> None:
    search = Search({"a": 1.0, "b": 4.0}, distance)

    assert search.run().weights == {"a": 8.0, "b": 0.5}
    assert search.trials[0].weights == {"a": 1.0, "b": 4.0}
    assert len(search.trials) < 20


def test_a_gain_by_chance_moves_nothing() -> None:
    search = Search({"a": 1.0}, lambda weights: 1.0 - 0.001 * weights["a"])

    assert search.run(rounds=1).weights == {"a": 1.0}
    assert [trial.weights["a"] for trial in search.trials] == [1.0, 2.0, 0.5]


def test_every_tuned_weight_is_one_of_its_formula() -> None:
    known = {*Weights.__struct_fields__, *RouterOptions.__struct_fields__}

    assert TUNED.keys() <= COSTS.keys()
    assert {name for weights in TUNED.values() for name in weights} <= known
    defaults = Weights(overlap_score_weight=TUNED["predicted-time"]["overlap_score_weight"])
    for name, value in TUNED["predicted-time"].items():
        assert getattr(defaults, name) == value
    with pytest.raises(ConfigError, match="formula 'lmetric' has no weights to tune"):
        tuned_weights("lmetric")
    assert tuned_weights("preble") == {"outstanding_weight": 0.05}
