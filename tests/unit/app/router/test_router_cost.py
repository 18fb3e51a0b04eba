import dataclasses

import pytest

from kvmesh.app.router.command import RouterServer
from kvmesh.errors import ConfigError
from kvmesh.settings.roles import CostSettings, RouterSettings


def settings(cost: CostSettings) -> RouterSettings:
    return dataclasses.replace(RouterSettings(), cost=cost, kv_events=False)


def test_a_formula_may_bring_weights_of_its_own() -> None:
    cost = CostSettings(
        kv_cost="predicted-time:contention=0.2:overlap_score_weight=1.5",
        kv_overlap_score_weight=2.0,
        router_temperature=0.1,
    )

    options = RouterServer(settings(cost)).scheduler.options

    assert (options.cost, options.weights.contention) == ("predicted-time", 0.2)
    assert (options.overlap_score_weight, options.temperature) == (3.0, 0.1)


def test_a_weight_no_formula_has_is_refused() -> None:
    with pytest.raises(ConfigError, match="'contension' is none of"):
        RouterServer(settings(CostSettings(kv_cost="predicted-time:contension=1")))
