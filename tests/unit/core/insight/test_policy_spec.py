from math import inf

import pytest

from kvmesh.core.cost.catalogue import PUBLISHED
from kvmesh.core.cost.weights import weights_of
from kvmesh.core.insight.policy_spec import PolicySpec, spec_of
from kvmesh.errors import ConfigError


def test_a_policy_and_its_name_lead_to_each_other() -> None:
    spec = PolicySpec("prefill-decode", {"overlap_score_weight": 8.0})

    policy = spec.find(PUBLISHED)

    assert policy.cost.name == "prefill-decode"
    assert (weights_of(policy.weights)["overlap_score_weight"], spec_of(policy)) == (8.0, spec)
    assert str(spec) == "kv:prefill-decode:overlap_score_weight=8"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (PolicySpec("nonsense"), "use one of prefill-decode"),
        (PolicySpec("predicted-time", {"wait": 1.0}), "no weight 'wait' here; it has overlap_scor"),
        (PolicySpec("predicted-time", {"contention": -1.0}), "contention is -1: use a number from"),
        (PolicySpec("predicted-time", {"contention": inf}), "contention is inf: use a number from"),
    ],
)
def test_what_cannot_decide_is_refused_with_what_can(spec: PolicySpec, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        spec.find(PUBLISHED)
