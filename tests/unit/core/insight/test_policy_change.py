from math import nan

import pytest

from kvmesh.core.insight.policy_change import Bounds, PolicyChange
from kvmesh.core.insight.policy_spec import PolicySpec

SPEC = PolicySpec("lmetric")


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (PolicyChange(SPEC, ()), "0 stages"),
        (PolicyChange(SPEC, tuple(0.1 * n for n in range(1, 10))), "9 stages"),
        (PolicyChange(SPEC, (0.5, 0.25, 1.0)), "stages are 0.5, 0.25, 1"),
        (PolicyChange(SPEC, (0.0, 1.0)), "above 0"),
        (PolicyChange(SPEC, (0.5,)), "the last one 1"),
        (PolicyChange(SPEC, (nan, 1.0)), "stages are nan"),
        (PolicyChange(SPEC, min_requests=1), "min_requests is 1"),
        (PolicyChange(SPEC, min_requests=10**9), "min_requests is"),
        (PolicyChange(SPEC, max_stage_s=-1.0), "max_stage_s is -1"),
        (PolicyChange(SPEC, max_stage_s=nan), "max_stage_s is nan"),
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


@pytest.mark.parametrize(
    ("stages", "shares"),
    [
        ((0.05, 0.25, 1.0), [0.05, 0.25, 0.9]),
        ((0.95, 1.0), [0.95, 0.95]),
        ((1.0,), [1.0]),
    ],
)
def test_the_last_stage_holds_some_back_and_no_stage_gives_less(
    stages: tuple[float, ...], shares: list[float]
) -> None:
    change = PolicyChange(SPEC, stages)

    assert [change.share(stage) for stage in range(len(stages))] == shares
