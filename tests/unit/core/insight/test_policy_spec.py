from math import inf

import pytest

from kvmesh.core.cost.catalogue import PUBLISHED
from kvmesh.core.insight.policy_spec import PolicySpec
from kvmesh.errors import ConfigError


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
