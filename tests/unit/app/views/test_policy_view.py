import msgspec

from kvmesh.app.views.policy_view import (
    ChangeRow,
    PolicyRow,
    merge_policies,
    policy_marks,
    view_policy,
)
from kvmesh.core.cost.catalogue import PUBLISHED
from kvmesh.core.insight.policy_change import PolicyChange
from kvmesh.core.insight.policy_spec import PolicySpec
from kvmesh.core.insight.rollout import Rollout
from kvmesh.core.insight.rollout_state import Step
from kvmesh.core.insight.rollout_verdict import Verdict

CHANGE = PolicyChange(PolicySpec("prefill-decode", {"overlap_score_weight": 2.0}), min_requests=20)
POLICY = "kv:prefill-decode:overlap_score_weight=2"


def rollout_of(name: str) -> Rollout:
    return Rollout(name, PUBLISHED.plain("predicted-time"))


def serve(rollout: Rollout, requests: int) -> None:
    """Have each replica serve requests of the arm whose window it is."""
    assert rollout.arms is not None
    rollout.arms.settled()
    arm = rollout.arms.now
    assert arm is not None
    for number in range(requests):
        arm.counter.began(10.0 * (1 + number % 3))
        arm.counter.ended(failed=False, ms_per_token=5.0)


def test_a_trial_shows_both_arms_over_all_replicas_and_why_it_waits() -> None:
    first, second = rollout_of("r1"), rollout_of("r2")
    first.begin(CHANGE, 1.0, {})
    second.adopt({"r1": first.updates()})
    serve(first, 30)
    first.simulated = Verdict("ahead", "simulated: the same")
    first.decide(50.0, {"r2": second.updates()})
    second.adopt({"r1": first.updates()})
    serve(first, 9)
    serve(second, 9)

    row = view_policy("chat", first, {"r2": second.updates()})

    assert (row.policy, row.candidate) == ("kv:predicted-time", POLICY)
    assert (row.share, row.window, row.turn) == (0.5, 2, "candidate")
    assert row.verdict == "open: 18 of 20 requests seen of the rarer arm"
    assert row.simulation == "simulated: the same"
    baseline, candidate = row.arms
    assert (baseline.arm, baseline.policy, candidate.arm) == (
        "baseline", "kv:predicted-time", "candidate"
    )  # fmt: skip
    assert (baseline.requests, candidate.requests, candidate.errors) == (30, 18, 0)
    assert candidate.ttft is not None
    assert candidate.tpot is not None
    assert 17.0 < candidate.ttft.mean_ms < 19.0
    assert 20.0 <= candidate.ttft.p50_ms < 26.0
    assert 30.0 <= candidate.ttft.p90_ms < 38.0
    assert candidate.tpot.mean_ms == 5.0


def test_before_any_request_there_are_no_times() -> None:
    rollout = rollout_of("r1")
    rollout.begin(CHANGE, 1.0, {})

    row = view_policy("chat", rollout, {})

    assert [(arm.requests, arm.ttft, arm.tpot) for arm in row.arms] == [(0, None, None)] * 2
    assert row.simulation == ""


def test_the_history_has_each_change_with_its_steps() -> None:
    rollout = rollout_of("r1")
    rollout.begin(CHANGE, 1.0, {})
    rollout.give_up(2.0, "asked for")
    rollout.begin(msgspec.structs.replace(CHANGE, at_once=True), 3.0, {})

    row = view_policy("chat", rollout, {})

    assert row.policy == POLICY
    assert [(one.at, one.phase) for one in row.history] == [(3.0, "done"), (1.0, "returned")]
    assert [step.reason for step in row.history[1].steps] == ["asked for", "asked for"]
    assert (row.history[1].policy, row.history[1].baseline) == (POLICY, "kv:predicted-time")


def test_of_a_buckets_replicas_the_one_that_knows_most_is_shown() -> None:
    first, second = rollout_of("r1"), rollout_of("r2")
    first.begin(CHANGE, 1.0, {})
    second.adopt({"r1": first.updates()})
    second.give_up(2.0, "asked for")
    behind, newest = view_policy("b", first, {}), view_policy("b", second, {})
    nothing, other = view_policy("b", rollout_of("r3"), {}), view_policy("a", rollout_of("r"), {})

    merged = merge_policies([nothing, behind, newest, other])

    assert merged == [other, newest]
    assert merge_policies([newest, behind]) == [newest]


def test_changes_of_policy_are_marked_when_they_begin_and_when_they_end() -> None:
    steps = (Step(10.0, "r1", 0.5, "begun"), Step(90.0, "r2", 0.0, "worse"))
    changes = (
        ChangeRow(80.0, "r3", "kv:b", "kv:a", "running", (Step(80.0, "r3", 0.5, "begun"),)),
        ChangeRow(10.0, "r1", "kv:c", "kv:a", "returned", steps),
    )

    marks = policy_marks(PolicyRow("chat", "kv:a", history=changes), 50.0)

    assert [(one.at, one.who, one.text) for one in marks] == [
        (80.0, "r3", "kv:b on trial"),
        (90.0, "r1", "kv:c returned from"),
    ]
    assert policy_marks(PolicyRow("chat", "kv:a"), 0.0) == []
