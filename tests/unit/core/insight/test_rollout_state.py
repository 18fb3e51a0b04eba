from math import inf, nan

import msgspec
import pytest

from kvmesh.core.cost.arm_tally import Tally
from kvmesh.core.insight.policy_change import PolicyChange
from kvmesh.core.insight.policy_spec import PolicySpec
from kvmesh.core.insight.rollout_state import RolloutState, Step, TrialReport, newest

BASE, OTHER = PolicySpec("predicted-time"), PolicySpec("lmetric")
STATE = RolloutState(
    1.0, "r1", PolicyChange(OTHER), BASE, "running", 0, (Step(1.0, "r1", 0.05, "asked for"),)
)


def test_a_later_change_counts_more_and_of_one_its_return_most() -> None:
    advanced = STATE.next_window(2.0)
    done = advanced.moved(Step(9.0, "r1", 1.0, ""), "done")
    returned = STATE.moved(Step(1.5, "r2", 0.0, ""), "returned")
    later = msgspec.structs.replace(STATE, at=1.1)

    for states in ([STATE, advanced, done, returned, later], [later, returned, done, advanced]):
        assert newest(states) == later
    assert (newest([done, returned, advanced]), newest([STATE, done, advanced])) == (returned, done)
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
        {"stage": 28},
        {"whole": -1},
        {"since": nan},
        {"stage": -1},
        {"steps": ()},
        {"steps": STATE.steps * 50},
        {"steps": (Step(nan, "r1", 0.1, ""),)},
        {"steps": (Step(1.0, "r1", 1.5, ""),)},
        {"steps": (Step(1.0, "r" * 1000, 0.5, ""),)},
        {"steps": (Step(1.0, "r1", 0.5, "x" * 1000),)},
        {"change": PolicyChange(OTHER, min_requests=1)},
        {"baseline": PolicySpec("")},
    ],
)
def test_a_state_that_cannot_be_is_seen(fields: dict[str, object]) -> None:
    assert msgspec.structs.replace(STATE, **fields).wrong()
    assert STATE.wrong() == ""


def test_a_report_is_of_one_change() -> None:
    report = TrialReport(1.0, "r1", (Tally(), Tally()))

    assert report.is_of(STATE)
    assert not msgspec.structs.replace(report, by="r2").is_of(STATE)
    assert not msgspec.structs.replace(report, windows=(Tally(1, 2),)).is_of(STATE)
    assert not msgspec.structs.replace(report, windows=(Tally(),) * 29).is_of(STATE)


def test_the_candidate_begins_with_few_requests() -> None:
    windows = [msgspec.structs.replace(STATE, stage=stage) for stage in range(7)]

    assert [one.quota() for one in windows] == [inf, 50, 100, inf, inf, 200, 400]
    assert [one.least() for one in windows] == [50, 25, 50, 50, 50, 50, 50]
    assert msgspec.structs.replace(STATE, stage=6, whole=5).quota() == inf
