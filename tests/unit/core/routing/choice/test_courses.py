"""By what requests are decided whose own prefill counts more."""

from random import Random

import pytest

from kvmesh.core.cost.arm_tally import Counter
from kvmesh.core.cost.arms import Arms
from kvmesh.core.cost.weight_sets import MOST
from kvmesh.core.routing.choice.courses import NO_WISHES, Courses
from kvmesh.core.routing.decision import RouterOptions


def make_courses(cost: str, **weights: float) -> Courses:
    return Courses(RouterOptions(cost=cost, weights=weights), Random(1))


@pytest.mark.parametrize(
    ("weight", "times", "raised"), [(1.0, 1, None), (1.0, 4, 4.0), (0.5, 2, 1.0), (MOST, 2, MOST)]
)
def test_the_weight_of_overlap_is_raised(weight: float, times: int, raised: float | None) -> None:
    courses = make_courses("predicted-time", overlap_score_weight=weight)

    assert courses.raised(NO_WISHES, times) == raised


def test_a_formula_without_the_weight_and_a_request_with_its_own_stay_as_they_are() -> None:
    courses = make_courses("lmetric")

    assert courses.raised(NO_WISHES, 4) is None
    assert courses.raised(NO_WISHES._replace(overlap_score_weight=3.0), 4) == 3.0
    assert courses.raised(NO_WISHES._replace(cost="predicted-time"), 4) is None


def test_policies_that_are_compared_are_left_alone() -> None:
    courses = make_courses("predicted-time")
    arms = Arms(courses.policy, courses.policy, "candidate", Counter())
    courses.follow(courses.policy, arms)

    assert courses.raised(NO_WISHES, 4) is None
