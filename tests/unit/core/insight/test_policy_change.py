from math import nan

import pytest

from kvmesh.core.insight.policy_change import Bounds, PolicyChange
from kvmesh.core.insight.policy_spec import PolicySpec

SPEC = PolicySpec("lmetric")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (PolicyChange(SPEC, min_requests=1), "min_requests is 1"),
        (PolicyChange(SPEC, min_requests=10**9), "min_requests is"),
        (PolicyChange(SPEC, window_s=0.0), "window_s is 0; use 0.1 to 3600"),
        (PolicyChange(SPEC, window_s=nan), "window_s is nan"),
        (PolicyChange(SPEC, max_s=1.0), "max_s is 1; use window_s (15) to"),
        (PolicyChange(SPEC, max_s=nan), "max_s is nan"),
        (PolicyChange(SPEC, bounds=Bounds(ttft_ratio=0.9)), "bounds.ttft_ratio is 0.9"),
        (PolicyChange(SPEC, bounds=Bounds(tpot_ratio=nan)), "bounds.tpot_ratio is nan"),
        (PolicyChange(SPEC, bounds=Bounds(error_margin=2.0)), "bounds.error_margin is 2"),
        (PolicyChange(PolicySpec("")), "name of 0 characters"),
        (PolicyChange(PolicySpec("x" * 1000)), "name of 1000 characters"),
        (PolicyChange(PolicySpec("x", {str(n): 1.0 for n in range(99)})), "99 weights"),
        (PolicyChange(PolicySpec("x", {"w": nan})), "weight 'w' is nan"),
    ],
)
def test_what_cannot_be_is_named_with_the_remedy(change: PolicyChange, said: str) -> None:
    assert said in change.wrong()
