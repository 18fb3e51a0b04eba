import contextlib
import json
import random
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.errors import ConfigError
from kvmesh_lab.mocker.model.faults import (
    DEAD_MESSAGE,
    MAX_FAULTS,
    Fault,
    FaultCounts,
    FaultOptions,
    FaultPlan,
    check_faults,
    parse_faults,
    parse_flap,
)


def plan(*fail: str, flap: str = "", fail_health: bool = False, seed: int = 0) -> FaultPlan:
    options = FaultOptions(fail=fail, flap=flap, fail_health=fail_health)
    return FaultPlan(options, random.Random(seed), began_s=100.0)


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("0.3:500", Fault("status", 500)),
        ("0.3:429=2", Fault("status", 429, retry_after_s=2)),
        ("0.3:503=0", Fault("status", 503, retry_after_s=0)),
        ("0.3:hang", Fault("hang")),
        ("0.3:slow", Fault("slow", factor=10.0)),
        ("0.3:slow=2.5", Fault("slow", factor=2.5)),
        ("0.3:reset", Fault("reset")),
        ("0.3:cut", Fault("cut")),
        ("0.3:garbage", Fault("garbage")),
        ("0.3:half-head", Fault("half-head")),
        ("0.3:dead", Fault("dead", 500)),
        ("0.3:die-after=20", Fault("die-after", tokens=20)),
        ("0.3:hang-after=1", Fault("hang-after", tokens=1)),
        ("0.3:html", Fault("bad-answer", answer="html")),
    ],
)
def test_every_kind_is_parsed_with_its_value(text: str, fault: Fault) -> None:
    assert parse_faults([text], "--fail") == [(0.3, fault)]


@pytest.mark.parametrize(
    ("fail", "message"),
    [
        (["0.3"], r"--fail 0.3: write SHARE:KIND"),
        (["nan:500"], "share from 0 to 1"),
        (["-0.1:500"], "share from 0 to 1"),
        (["1e25:500"], "share from 0 to 1"),
        ([f"{10**25}:500"], "share from 0 to 1"),
        ([f"{'9' * 10_000}:500"], r"--fail 9{60}…: write SHARE:KIND"),
        (["x:500"], "share from 0 to 1"),
        (["0.3:399"], "no such fault; take 400 to 599"),
        (["0.3:600"], "no such fault"),
        (["0.3:0500"], "no such fault"),
        (["0.3:\N{ARABIC-INDIC DIGIT FIVE}00"], "no such fault"),
        (["0.3:explode"], "no such fault"),
        (["0.3:"], "no such fault"),
        (["0.3:hang=2"], "hang takes no value; leave out =2"),
        (["0.3:die-after"], "die-after takes whole tokens from 1 to 1,048,576, e.g. die-after=20"),
        (["0.3:hang-after=0"], "hang-after takes whole tokens"),
        (["0.3:hang-after=1.5"], "hang-after takes whole tokens"),
        (["0.3:hang-after=1048577"], "hang-after takes whole tokens"),
        (["0.3:html=2"], "html takes no value; leave out =2"),
        (["0.3:500=2"], "only 429 and 503"),
        (["0.3:429=1.5"], "whole seconds"),
        (["0.3:429=-1"], "whole seconds"),
        (["0.3:429=nan"], "whole seconds"),
        (["0.3:429="], "whole seconds"),
        ([f"0.3:429={10**25}"], "whole seconds"),
        (["0.3:slow=0.5"], r"slow=0.5 must be from 1 to 1,000"),
        (["0.3:slow=inf"], "must be from 1"),
        (["0.3:slow="], "must be from 1"),
        (["0.6:500", "0.5:hang"], "sum up to 1.1; lower them"),
        (["0:500"] * (MAX_FAULTS + 1), "33 faults are more than 32"),
    ],
)
def test_what_makes_no_sense_is_named_with_its_place_and_remedy(
    fail: list[str], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_faults(FaultOptions(fail=tuple(fail)))


@pytest.mark.parametrize(
    "flap", ["2", "2:", ":2", "0:2", "2:0", "nan:2", "2:inf", "-1:2", "2:2:2", f"{10**25}:1"]
)
def test_phases_need_two_lengths_above_zero(flap: str) -> None:
    with pytest.raises(ConfigError, match=r"--flap .*: write GOOD:BAD"):
        check_faults(FaultOptions(flap=flap))


@given(st.text() | st.from_regex(r"[-0-9.ena]{0,8}:[-a-z0-9]{0,9}(=[-0-9.einfa]{0,8})?"))
def test_any_text_is_a_fault_or_a_config_error(text: str) -> None:
    for parse in (lambda: parse_faults([text], "--fail"), lambda: parse_flap(text)):
        with contextlib.suppress(ConfigError):
            parse()


def test_each_fault_is_met_by_its_share_of_the_requests() -> None:
    faults = plan("0.2:500", "0.3:hang")
    met = Counter(one.name if one else "" for one in (faults.draw(0.0) for _ in range(10_000)))

    assert met["500"] == pytest.approx(2_000, rel=0.1)
    assert met["hang"] == pytest.approx(3_000, rel=0.1)
    assert faults.counts() == FaultCounts(10_000, {"500": met["500"], "hang": met["hang"]})


def test_the_same_seed_draws_the_same_and_no_fault_has_share_zero() -> None:
    first, second = plan("0.5:cut", "0:500", seed=7), plan("0.5:cut", "0:500", seed=7)
    drawn = [first.draw(0.0) for _ in range(200)]

    assert drawn == [second.draw(0.0) for _ in range(200)]
    assert {one.name for one in drawn if one is not None} == {"cut"}
    assert plan().draw(0.0) is None


def test_faults_apply_in_the_bad_phases_only_and_these_repeat() -> None:
    flapping = plan("1:reset", flap="2:1", fail_health=True)
    times = [100.0, 101.9, 102.0, 102.9, 103.0, 105.5]

    assert [flapping.draw(now) is not None for now in times] == [
        False, False, True, True, False, True,
    ]  # fmt: skip
    assert [flapping.fails_health(now) for now in times] == [
        False, False, True, True, False, True,
    ]  # fmt: skip
    assert flapping.counts() == FaultCounts(6, {"reset": 3})


def test_health_fails_only_when_asked_to() -> None:
    assert not plan("1:500").fails_health(0.0)
    assert plan(fail_health=True).fails_health(0.0)


def test_errors_are_worded_as_vllm_does() -> None:
    def error(fault: Fault) -> dict[str, object]:
        body: dict[str, dict[str, object]] = json.loads(fault.error_body())
        return body["error"]

    assert error(Fault("dead", 500)) == {
        "message": DEAD_MESSAGE,
        "type": "Internal Server Error",
        "param": None,
        "code": 500,
    }
    assert error(Fault("status", 404))["type"] == "NotFoundError"
    assert error(Fault("status", 503))["type"] == "Service Unavailable"
    assert error(Fault("status", 599))["code"] == 599


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (FaultOptions(slowdown=0.5), "--slowdown 0.5: must be from 1 to 1,000"),
        (FaultOptions(slowdown=1e25), "--slowdown 1e.25"),
        (FaultOptions(slowdown=float("nan")), "--slowdown nan"),
        (FaultOptions(first_pause_s=-1.0), "--first-pause-s -1: must be from 0 to 86,400"),
        (FaultOptions(first_pause_s=float("inf")), "--first-pause-s inf"),
    ],
)
def test_a_pace_that_no_engine_has_is_refused(options: FaultOptions, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        check_faults(options)
    with pytest.raises(ConfigError, match=message):
        FaultPlan(options, random.Random(0), 0.0)
