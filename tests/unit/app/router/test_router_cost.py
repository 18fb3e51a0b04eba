import dataclasses

import pytest

from kvmesh.app.router.command import RouterServer
from kvmesh.core.cost.weight_sets import PredictedTimeWeights
from kvmesh.errors import ConfigError
from kvmesh.settings.roles import CostSettings, RouterSettings


def settings(cost: CostSettings) -> RouterSettings:
    return dataclasses.replace(RouterSettings(), cost=cost, kv_events=False)


def test_a_formula_may_bring_weights_of_its_own() -> None:
    cost = CostSettings(
        kv_cost="predicted-time:contention=0.2:followers=0.25",
        kv_overlap_score_weight=2.0,
        router_temperature=0.1,
    )

    options = RouterServer(settings(cost)).scheduler.options

    assert (options.cost, options.temperature) == ("predicted-time", 0.1)
    assert options.pricing().weights == PredictedTimeWeights(
        overlap_score_weight=2.0, contention=0.2, followers=0.25
    )


@pytest.mark.parametrize(
    ("cost", "policy", "words"),
    [
        (
            "lmetric",
            "kv-overlap-score-weight=2",
            "--model-policy '.*': lmetric: there is no weight",
        ),
        ("dynamo", "kv-cost=lmetric,kv-overlap-score-weight=2", "kv-cost: lmetric: there is no w"),
    ],
)
def test_a_models_weight_is_one_that_its_formula_has(cost: str, policy: str, words: str) -> None:
    made = settings(CostSettings(kv_cost=cost))

    with pytest.raises(ConfigError, match=words):
        RouterServer(dataclasses.replace(made, model_policy=(f"model=a,{policy}",)))
    RouterServer(dataclasses.replace(made, model_policy=("model=a,router-mode=random",)))


@pytest.mark.parametrize(
    ("cost", "words"),
    [
        (CostSettings(kv_cost="predicted-time:contension=1"), "'contension' is none of"),
        (CostSettings(kv_cost="predicted-time:contention"), "'contention' is not name=number"),
        (
            CostSettings(kv_cost="predicted-time:contention=2e6"),
            "contention is 2e.06: use a number",
        ),
        (
            CostSettings(kv_cost="lmetric", kv_overlap_score_weight=1.0),
            "--kv-overlap-score-weight: --kv-cost lmetric: .* it has no weights",
        ),
        (
            CostSettings(
                kv_cost="predicted-time:overlap_score_weight=1", kv_overlap_score_weight=1.0
            ),
            "--kv-cost gives overlap_score_weight, too: give it once",
        ),
    ],
)
def test_a_weight_that_the_formula_lacks_or_has_twice_is_refused(
    cost: CostSettings, words: str
) -> None:
    with pytest.raises(ConfigError, match=words):
        RouterServer(settings(cost))
