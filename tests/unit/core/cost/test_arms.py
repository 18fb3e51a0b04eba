from math import inf

from kvmesh.core.cost.arm_tally import Counter
from kvmesh.core.cost.arms import Arms
from kvmesh.core.cost.catalogue import PUBLISHED

BASELINE, CANDIDATE = PUBLISHED.plain("predicted-time"), PUBLISHED.plain("lmetric")


def test_all_requests_of_a_window_are_one_arms_until_it_has_its_number() -> None:
    arms = Arms(BASELINE, CANDIDATE, "candidate", Counter(), 2)
    arm = arms.find()
    assert arm is not None
    assert (arm.name, arm.policy, arm.header) == ("candidate", CANDIDATE, b"candidate")

    arm.left -= 1
    assert arms.find() is arm
    arm.left -= 1
    assert arms.find() is None


def test_what_the_candidate_left_behind_is_not_the_baselines() -> None:
    arms = Arms(BASELINE, CANDIDATE, "baseline", Counter())
    assert arms.find() is None

    arms.settled()

    arm = arms.find()
    assert arm is not None
    assert (arm.name, arm.policy, arm.left) == ("baseline", BASELINE, inf)
