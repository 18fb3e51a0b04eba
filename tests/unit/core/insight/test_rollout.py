import msgspec
import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.cost.arm_tally import Counter
from kvmesh.core.cost.catalogue import PUBLISHED, Formulas
from kvmesh.core.cost.expression import Expression
from kvmesh.core.cost.formulas import make_cost
from kvmesh.core.cost.own import FAULTS_OFF
from kvmesh.core.cost.own_function import own_cost
from kvmesh.core.cost.terms import NO_FLEET, Candidate, Fleet
from kvmesh.core.cost.weights import NO_WEIGHTS
from kvmesh.core.insight.policy_change import Bounds, PolicyChange
from kvmesh.core.insight.policy_spec import PolicySpec
from kvmesh.core.insight.rollout import MOST_HISTORY, Rollout
from kvmesh.core.insight.rollout_state import MOST_WINDOWS, PolicyUpdate
from kvmesh.core.insight.rollout_verdict import Verdict
from kvmesh.errors import RequestError

BASE, OTHER = PolicySpec("predicted-time"), PolicySpec("lmetric")
CHANGE = PolicyChange(OTHER, min_requests=20)


def rollout_of(name: str = "r1") -> Rollout:
    return Rollout(name, BASE.find(PUBLISHED))


PASSED = Verdict("ahead", "not simulated: no simulator")


def fill(counter: Counter, requests: int, ttft_ms: float = 100.0, errors: int = 0) -> None:
    for number in range(requests):
        counter.began(ttft_ms * (1.0 + number % 3))
        counter.ended(failed=number < errors, ms_per_token=10.0)


def serve(rollout: Rollout, requests: int = 300, *, slower: float = 1.0, errors: int = 0) -> None:
    """Have the arm of this window serve so many requests, the candidate `slower` times as slow."""
    assert rollout.arms is not None
    rollout.arms.settled()
    arm = rollout.arms.now
    assert arm is not None
    of_candidate = arm.name == "candidate"
    fill(arm.counter, requests, 100.0 * (slower if of_candidate else 1.0), errors * of_candidate)


def play(rollout: Rollout, windows: int, at: float = 1.0, **how: float) -> float:
    """Play so many windows, each 20 s long, or fewer until the change is over; return the time."""
    for _ in range(windows):
        if rollout.arms is not None:
            at += 20.0
            rollout.simulated = PASSED
            serve(rollout, **how)  # type: ignore[arg-type]  # any of them
            rollout.decide(at, {})
    return at


def test_arms_take_turns_then_the_candidate_has_all_then_it_stays() -> None:
    rollout = rollout_of()
    rollout.begin(CHANGE, 1.0, {})
    arms = []
    while rollout.arms is not None:
        assert rollout.state is not None
        arms.append(rollout.state.arm_of(rollout.state.stage)[0])
        play(rollout, 1, 1.0 + 20.0 * len(arms))

    state = rollout.state
    assert state is not None
    assert ("".join(arms), state.phase, state.whole) == ("bccbbccbb" + "cccc", "done", 9)
    assert (rollout.spec, rollout.policy.cost.name) == (OTHER, "lmetric")
    assert [step.share for step in state.steps] == [0.5, 1.0, 1.0]
    assert state.steps[-1].reason.startswith("all requests against before: ")


def test_a_slow_candidate_is_returned_from_with_the_reason() -> None:
    rollout = rollout_of()
    rollout.begin(CHANGE, 1.0, {})
    play(rollout, 1)
    serve(rollout, 50, slower=3.0)

    state = rollout.decide(30.0, {})

    assert state is not None
    assert (state.phase, state.share, state.stage) == ("returned", 0.0, 1)
    assert "time to first token" in state.steps[-1].reason
    assert (rollout.arms, rollout.spec) == (None, BASE)


def test_a_fleet_that_is_worse_than_before_once_the_candidate_has_all_returns() -> None:
    rollout = rollout_of()
    rollout.begin(CHANGE, 1.0, {})
    at = play(rollout, 9)
    assert rollout.state is not None
    assert (rollout.state.share, rollout.state.whole) == (1.0, 9)
    serve(rollout, 300, slower=3.0)

    state = rollout.decide(at + 1.0, {})

    assert state is not None
    assert state.phase == "returned"
    assert state.steps[-1].reason.startswith("all requests against before: time to first token")


def test_what_stays_within_chance_has_an_end_and_the_baseline_stays() -> None:
    rollout = rollout_of()
    bounds = Bounds(ttft_ratio=1.0)
    rollout.begin(msgspec.structs.replace(CHANGE, bounds=bounds), 1.0, {})

    play(rollout, 100, slower=1.02)

    state = rollout.state
    assert state is not None
    assert (state.phase, state.stage, rollout.spec) == ("returned", MOST_WINDOWS - 1, BASE)
    assert state.steps[-1].reason.startswith("no verdict in 24 windows, the baseline stays: time")
    assert "which may be chance" in state.steps[-1].reason


def test_a_simulator_vetoes_before_the_candidate_has_a_request() -> None:
    rollout = rollout_of()
    rollout.begin(CHANGE, 1.0, {})
    serve(rollout)
    assert rollout.decide(90.0, {}) is None

    rollout.simulated = Verdict("worse", "simulated: 3 times as slow")
    state = rollout.decide(91.0, {})

    assert state is not None
    assert (state.phase, state.stage, state.steps[-1].reason) == (
        "returned", 0, "simulated: 3 times as slow"
    )  # fmt: skip
    assert rollout.begin(CHANGE, 92.0, {}).phase == "running"
    assert rollout.simulated is None


def test_at_once_takes_the_candidate_without_comparison() -> None:
    rollout = rollout_of()
    assert rollout.seen({}) == ([], [])

    state = rollout.begin(msgspec.structs.replace(CHANGE, at_once=True), 1.0, {})

    assert (state.phase, state.share, rollout.spec, rollout.arms) == ("done", 1.0, OTHER, None)


def test_an_operator_returns_from_a_change_on_trial_and_from_one_that_is_done() -> None:
    rollout = rollout_of()
    with pytest.raises(RequestError, match="nothing to return from") as caught:
        rollout.give_up(1.0, "asked for")
    assert caught.value.status == 409

    for change in (CHANGE, msgspec.structs.replace(CHANGE, at_once=True)):
        rollout.begin(change, 1.0, {})
        assert (rollout.give_up(2.0, "asked for").phase, rollout.spec) == ("returned", BASE)
        with pytest.raises(RequestError, match="nothing to return from"):
            rollout.give_up(3.0, "asked for")


def test_one_change_at_a_time() -> None:
    rollout = rollout_of()
    rollout.begin(CHANGE, 1.0, {})

    with pytest.raises(RequestError, match="kv:lmetric has 50% of the time on trial") as caught:
        rollout.begin(CHANGE, 2.0, {})

    assert caught.value.status == 409


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (PolicyChange(OTHER, min_requests=1), "min_requests is 1"),
        (PolicyChange(PolicySpec("nonsense")), "use one of"),
        (PolicyChange(PolicySpec("lmetric", {"nonsense": 1.0})), "it has no weights"),
    ],
)
def test_what_cannot_be_is_not_begun(change: PolicyChange, said: str) -> None:
    rollout = rollout_of()

    with pytest.raises(RequestError, match=said) as caught:
        rollout.begin(change, 1.0, {})

    assert caught.value.status == 400
    assert rollout.state is None


def test_a_formula_of_ones_own_must_be_known_to_every_replica() -> None:
    mine = make_cost("mine", Expression("prefill_tokens"), Expression("failure_tokens"))
    rollout = Rollout("r1", PUBLISHED.plain("predicted-time"), Formulas([mine]))
    knowing, change = PolicyUpdate(able=True, formulas=("mine",)), PolicyChange(PolicySpec("mine"))

    with pytest.raises(RequestError, match="'mine' is not known to r3: start every") as caught:
        rollout.begin(change, 1.0, {"r2": knowing, "r3": PolicyUpdate(able=True)})
    rollout.begin(change, 1.0, {"r2": knowing})

    assert (caught.value.status, rollout.updates().formulas) == (409, ("mine",))


def test_a_formula_of_ones_own_that_fails_is_returned_from() -> None:
    def mine(candidate: Candidate, fleet: Fleet) -> float:
        raise ValueError(f"no number of {candidate.worker} among {fleet.max_waiting}")

    formulas = Formulas([own_cost(mine, "mine")])
    rollout = Rollout("r1", PUBLISHED.plain("predicted-time"), formulas)
    rollout.begin(PolicyChange(PolicySpec("mine")), 1.0, {})
    assert rollout.decide(2.0, {}) is None

    formula = formulas.own()[0]
    for _ in range(FAULTS_OFF):
        formula.scores([Candidate(WorkerId("w"), 16, 16)], NO_FLEET, NO_WEIGHTS)
    state = rollout.decide(3.0, {})

    assert state is not None
    assert (state.phase, rollout.spec) == ("returned", BASE)
    assert "off after 5 failures in a row: ValueError: no number of w" in state.steps[-1].reason


def test_a_sibling_that_does_not_know_the_formula_keeps_its_policy_and_decides_nothing() -> None:
    first, second = rollout_of("r2"), rollout_of("r1")
    state = first.begin(CHANGE, 1.0, {})
    strange = msgspec.structs.replace(state, change=PolicyChange(PolicySpec("file.py:mine")))
    updates = {"r2": PolicyUpdate(strange, able=True)}

    assert second.adopt(updates) is None
    assert second.adopt(updates) is None
    assert "kv:file.py:mine: formula 'file.py:mine' is unknown" in second.refused
    assert not second.updates().able
    assert (second.spec, second.arms) == (BASE, None)
    assert second.decide(2.0, updates) is None

    returned = strange.moved(strange.steps[0], "returned")
    assert second.adopt({"r2": PolicyUpdate(returned, able=True)}) == returned
    assert second.refused == ""


def test_a_replica_that_lacks_the_formula_of_the_next_change_leaves_the_one_on_trial() -> None:
    first, second = rollout_of("r1"), rollout_of("r2")
    state = first.begin(CHANGE, 1.0, {})
    second.adopt({"r1": first.updates()})
    serve(second)
    strange = msgspec.structs.replace(state, at=9.0, change=PolicyChange(PolicySpec("mine")))

    second.adopt({"r1": PolicyUpdate(strange, able=True)})

    assert second.decide(10.0, {}) is None
    assert second.arms is None


def test_what_a_sibling_cannot_mean_is_left() -> None:
    rollout = rollout_of()
    state = rollout_of("r2").begin(CHANGE, 1.0, {})
    wrong = msgspec.structs.replace(state, at=1e25)

    assert rollout.adopt({"r2": PolicyUpdate(wrong, able=True)}) is None
    assert rollout.state is None
    assert rollout.begin(CHANGE, 2.0, {"r2": PolicyUpdate(wrong)}).at == 2.0


def test_the_least_name_that_can_moves_on_and_anyone_returns() -> None:
    first, second, third = rollout_of("r1"), rollout_of("r2"), rollout_of("r3")
    first.begin(CHANGE, 1.0, {})
    for one in (second, third):
        one.adopt({"r1": first.updates()})
    serve(second)
    second.simulated = PASSED

    assert second.decide(20.0, {"r1": first.updates()}) is None
    unable = msgspec.structs.replace(first.updates(), able=False)
    moved = second.decide(20.0, {"r1": unable})
    assert moved is not None
    assert moved.stage == 1
    for one in (first, third):
        assert one.adopt({"r2": second.updates()}) == moved

    serve(third, 60, slower=3.0)
    returned = third.decide(21.0, {"r1": first.updates(), "r2": second.updates()})

    assert returned is not None
    assert returned.phase == "returned"
    assert first.adopt({"r2": second.updates(), "r3": third.updates()}) == returned
    assert second.adopt({"r1": first.updates()}) == returned


def test_too_little_traffic_has_an_end_too() -> None:
    rollout = rollout_of()
    rollout.begin(msgspec.structs.replace(CHANGE, max_s=60.0), 1.0, {})

    assert rollout.decide(61.0, {}) is None
    state = rollout.decide(62.0, {})

    assert state is not None
    assert state.phase == "returned"
    reason = "no verdict in 60 s (max_s), the baseline stays: 0 of 20 requests seen"
    assert state.steps[-1].reason.startswith(reason)


def test_errors_return_before_a_window_has_its_requests() -> None:
    rollout = rollout_of()
    bounds = Bounds(error_margin=0.0)
    rollout.begin(msgspec.structs.replace(CHANGE, bounds=bounds), 1.0, {})
    play(rollout, 1)
    serve(rollout, 5, errors=5)

    state = rollout.decide(22.0, {})

    assert state is not None
    assert "5 of 5 requests failed" in state.steps[-1].reason


def test_the_history_is_bounded_and_a_change_has_no_more_steps_than_siblings_take() -> None:
    rollout = rollout_of()
    rollout.begin(CHANGE, 1.0, {})
    play(rollout, 100)
    rollout.give_up(9999.0, "asked for")
    assert rollout.state is not None
    assert rollout.state.wrong() == ""
    assert rollout.report() is None

    for number in range(MOST_HISTORY + 5):
        rollout.begin(CHANGE, 10_000.0 + number, {})
        rollout.give_up(10_000.5 + number, "asked for")

    assert (len(rollout.history()), rollout.history()[0]) == (MOST_HISTORY, rollout.state)
