import pytest

from kvmesh.core.cost.formulas import COSTS
from kvmesh.core.cost.weights import WeightSpec
from kvmesh.errors import ConfigError
from kvmesh_lab.simulator.tuning import TUNED, Search, Weighting, tuned_weights


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


def test_a_weight_stays_in_its_range_and_a_whole_number_is_one() -> None:
    specs = (
        WeightSpec("a", "float", 1.0, 0.5, 3.0),
        WeightSpec("b", "int", 3.0, 0.0, 100.0),
        WeightSpec("c", "float", 0.0, 0.0, 100.0),
    )
    search = Search({"a": 1.0, "b": 3.0, "c": 0.0}, lambda one: 100.0 - one["a"] - one["b"], specs)

    found = search.run()

    assert found.weights == {"a": 3.0, "b": 100.0, "c": 0.0}
    assert all(trial.weights["b"] == int(trial.weights["b"]) for trial in search.trials)
    assert len({tuple(trial.weights.values()) for trial in search.trials}) == len(search.trials)


def test_every_tuned_weight_is_one_of_its_formula() -> None:
    assert TUNED.keys() <= COSTS.keys()
    for name, weights in TUNED.items():
        COSTS[name].weights.make(weights, name)
    assert tuned_weights("predicted-time") == {
        "overlap_score_weight": 1.0,
        "contention": 0.4,
        "followers": 0.5,
        "decode_weight": 0.05,
        "doubt": 0.25,
    }
    with pytest.raises(ConfigError, match="formula 'lmetric' has no weights to tune"):
        tuned_weights("lmetric")
    assert tuned_weights("preble") == {"outstanding_weight": 0.05}
