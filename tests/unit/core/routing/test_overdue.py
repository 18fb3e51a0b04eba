from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.cost.terms import Candidate
from kvmesh.core.routing.overdue import SLACK, patience_s

# 200 ms of wait, and 1000 tokens of 0.1 ms each.
CHOSEN = Candidate(WorkerId("w"), 16, 1000, uncached_tokens=1000, wait_ms=200.0, ms_per_token=0.1)


def test_a_prefill_may_take_some_times_as_long_as_predicted() -> None:
    assert patience_s(CHOSEN) == SLACK * 0.3
