from math import inf

import pytest

from kvmesh.core.cost.terms import Weights
from kvmesh.core.rollout.policy_spec import PolicySpec, policy_of, spec_of
from kvmesh.errors import ConfigError


def test_a_policy_and_its_name_lead_to_each_other() -> None:
    spec = PolicySpec("prefill-decode", {"overlap_score_weight": 8.0})

    policy = policy_of(spec)

    assert policy.cost.name == "prefill-decode"
    assert policy.weights == Weights(overlap_score_weight=8.0)
    assert spec_of(policy) == spec
    assert str(spec) == "kv:prefill-decode:overlap_score_weight=8"


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        (PolicySpec("nonsense"), "use one of prefill-decode"),
        (PolicySpec("predicted-time", {"wait": 1.0}), "weight 'wait' is none of overlap_score"),
        (PolicySpec("predicted-time", {"contention": -1.0}), "contention is -1: it must be 0"),
        (PolicySpec("predicted-time", {"contention": inf}), "contention is inf: it must be 0"),
    ],
)
def test_what_cannot_decide_is_refused_with_what_can(spec: PolicySpec, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        policy_of(spec)
