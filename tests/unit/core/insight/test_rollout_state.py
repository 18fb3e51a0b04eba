from math import nan

import msgspec
import pytest

from kvmesh.core.cost.arm_tally import Tally
from kvmesh.core.insight.policy_change import PolicyChange
from kvmesh.core.insight.policy_spec import PolicySpec
from kvmesh.core.insight.rollout_state import RolloutState, StageReport, Step, newest

BASE, OTHER = PolicySpec("predicted-time"), PolicySpec("lmetric")
STATE = RolloutState(
    1.0, "r1", PolicyChange(OTHER), BASE, "running", 0, (Step(1.0, "r1", 0.05, "asked for"),)
)


def test_a_later_change_counts_more_and_of_one_its_return_most() -> None:
    advanced = STATE.moved(Step(2.0, "r1", 0.25, ""), stage=1)
    done = advanced.moved(Step(9.0, "r1", 1.0, ""), "done", stage=2)
    returned = STATE.moved(Step(1.5, "r2", 0.0, ""), "returned")
    later = msgspec.structs.replace(STATE, at=1.1)

    for states in ([STATE, advanced, done, returned, later], [later, returned, done, advanced]):
        assert newest(states) == later
    assert newest([done, returned, advanced]) == returned
    assert newest([STATE, done, advanced]) == done
    assert newest([advanced, STATE]) == advanced
    assert newest([]) is None


@pytest.mark.parametrize(
    "fields",
    [
        {"at": 0.0},
        {"at": 1e25},
        {"at": nan},
        {"by": ""},
        {"by": "x" * 1000},
        {"stage": 3},
        {"stage": -1},
        {"steps": ()},
        {"steps": STATE.steps * 50},
        {"steps": (Step(nan, "r1", 0.1, ""),)},
        {"steps": (Step(1.0, "r1", 1.5, ""),)},
        {"steps": (Step(1.0, "r" * 1000, 0.5, ""),)},
        {"steps": (Step(1.0, "r1", 0.5, "x" * 1000),)},
        {"change": PolicyChange(OTHER, ())},
        {"baseline": PolicySpec("")},
    ],
)
def test_a_state_that_cannot_be_is_seen(fields: dict[str, object]) -> None:
    assert msgspec.structs.replace(STATE, **fields).wrong()
    assert STATE.wrong() == ""


def test_a_report_is_of_one_stage_of_one_change() -> None:
    report = StageReport(1.0, "r1", 0, Tally(), Tally())

    assert report.is_of(STATE)
    assert not msgspec.structs.replace(report, stage=1).is_of(STATE)
    assert not msgspec.structs.replace(report, by="r2").is_of(STATE)
    assert not msgspec.structs.replace(report, candidate=Tally(1, 2)).is_of(STATE)
