import math
from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.errors import ConfigError
from kvmesh_lab.mocker.model.options import EngineOptions
from kvmesh_lab.plan.kinds import Kind
from kvmesh_lab.plan.record import (
    MOST_CHECKS,
    UNCHECKED_SPREAD,
    Check,
    FleetPlan,
    errors_of,
    mix_of,
    read_plan,
    with_check,
    write_plan,
)
from kvmesh_lab.plan.targets import Target

KINDS = [Kind("large", EngineOptions(), 3.0), Kind("small", EngineOptions(speedup_ratio=0.5))]


def plan(kinds: int = 1) -> FleetPlan:
    return FleetPlan(
        made="2026-11-30T12:00:00+00:00",
        source="log",
        targets=[Target("ttft", 2000.0)],
        growth=1.0,
        tokens_per_s=1000.0,
        policy="kv",
        routers=1,
        kv_events=True,
        max_backlog_ms=0.0,
        kinds=KINDS[:kinds],
        answer={"large": 2, "small": 1} if kinds > 1 else {"large": 3},
        sure={},
        rows=[],
    )


def check(day: int, ratio: float = 1.0) -> Check:
    return Check(f"2026-11-{day:02}", 3, 1.0, {"ttft": ratio})


def test_a_plan_is_kept_whole(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    kept = with_check(plan(2), check(1, 1.1))

    write_plan(kept, path, "--save")

    assert read_plan(path, "--save") == kept
    assert list(tmp_path.iterdir()) == [path]


def test_a_file_that_is_no_plan_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_text('{"format": 2}')

    with pytest.raises(ConfigError, match=r"--check .*plan.json: is no plan"):
        read_plan(path, "--check")
    with pytest.raises(ConfigError, match="No such file"):
        read_plan(tmp_path / "none", "--check")
    with pytest.raises(ConfigError, match=r"--save .*No such file"):
        write_plan(plan(), tmp_path / "none" / "plan.json", "--save")


def test_without_checks_an_error_is_assumed() -> None:
    errors = errors_of(())

    assert errors.factor["ttft"] == 1.0
    assert errors.spread["ttft"] == pytest.approx(UNCHECKED_SPREAD)


def test_checks_that_agree_correct_the_prediction_and_narrow_the_bar() -> None:
    errors = errors_of([check(day, 1.2) for day in range(1, 20)])

    assert errors.factor["ttft"] == pytest.approx(1.19, abs=0.01)
    assert errors.spread["ttft"] < 0.07
    assert errors.spread["tpot"] == pytest.approx(UNCHECKED_SPREAD), "nobody measured it"


@given(st.lists(st.floats(1e-300, 1e300), max_size=30))
def test_the_error_is_bounded_whatever_a_check_says(ratios: list[float]) -> None:
    errors = errors_of([check(1, one) for one in ratios])

    assert 0.1 <= errors.factor["ttft"] <= 10.0
    assert 0.0 < errors.spread["ttft"] <= math.log(10.0) * 2


def test_a_day_counts_once_and_the_oldest_go_first() -> None:
    kept = plan()
    for day in range(40):
        kept = with_check(kept, Check(f"day {day}", 3, 1.0, {}))
    kept = with_check(kept, check(1))
    kept = with_check(kept, check(1, 2.0))

    assert len(kept.checks) == MOST_CHECKS
    assert kept.checks[-1].ratios == {"ttft": 2.0}
    assert kept.checks[-2].day == "day 39"


def test_which_kinds_ran_is_known_of_one_kind_or_of_the_plans_answer() -> None:
    assert mix_of(plan(), 7) == (7,)
    assert mix_of(plan(2), 3) == (2, 1)
    with pytest.raises(ConfigError, match="4 engines served this log, the plan is for 2 large"):
        mix_of(plan(2), 4)
    with pytest.raises(ConfigError, match="for none"):
        mix_of(msgspec.structs.replace(plan(2), answer={}), 4)
