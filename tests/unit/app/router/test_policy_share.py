import random
import time

import msgspec
import pytest

from kvmesh.actors.messages import RouterHeartbeat
from kvmesh.actors.router import Router
from kvmesh.app.router.policy_share import PolicyShare
from kvmesh.core.insight.policy_change import PolicyChange
from kvmesh.core.insight.policy_spec import PolicySpec
from kvmesh.core.insight.rollout_verdict import Verdict
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.routing.decision import RouterOptions
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.errors import ConfigError, RequestError

CHANGE = PolicyChange(PolicySpec("lmetric"), min_requests=20)


class Clock:
    """The wall clock, which stands still."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1e9
        monkeypatch.setattr(time, "time", lambda: self.now)


class Bucket:
    """Replicas that hear each other's heartbeats at once, as JSON."""

    def __init__(self, *names: str) -> None:
        self.routers = {name: router_of() for name in names}
        self.shares = {
            name: PolicyShare(router, name, self.beats) for name, router in self.routers.items()
        }

    def beats(self) -> tuple[RouterHeartbeat, ...]:
        sent = [
            RouterHeartbeat(name, "b", "http://r", ready=True, epoch=1, policy=router.policy)
            for name, router in self.routers.items()
        ]
        return msgspec.json.decode(msgspec.json.encode(sent), type=tuple[RouterHeartbeat, ...])

    def second(self) -> None:
        for share in self.shares.values():
            share.adopt()


def router_of(**options: object) -> Router:
    scheduler = Scheduler(
        RouterOptions(**options),  # type: ignore[arg-type]  # any option
        random.Random(1),
        membership=Membership(),
        sequences=new_sequences(block_size=16),
    )
    return Router(scheduler, 16)


def serve(share: PolicyShare, *, slower: float = 1.0, requests: int = 200) -> None:
    arms = share.rollout.arms
    assert arms is not None
    arms.settled()
    arm = arms.now
    assert arm is not None
    share.rollout.simulated = Verdict("ahead", "")
    for number in range(requests):
        factor = slower if arm.name == "candidate" else 1.0
        arm.counter.began(100.0 * factor * (1 + number % 3))
        arm.counter.ended(failed=False)


def test_a_change_reaches_the_schedulers_of_all_and_goes_to_its_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket = Bucket("r1", "r2")
    first, second = bucket.shares.values()
    clock = Clock(monkeypatch)

    begun = second.change(CHANGE)
    bucket.second()
    assert first.rollout.state == begun
    assert first.taken_by() == ["r1", "r2"]
    for _ in range(20):
        for share in (first, second):
            if share.rollout.arms is not None:
                serve(share)
        clock.now += 20.0
        bucket.second()
        bucket.second()

    assert [one.rollout.state and one.rollout.state.phase for one in (first, second)] == [
        "done"
    ] * 2
    for router in bucket.routers.values():
        assert router.scheduler.policy.cost.name == "lmetric"


def test_a_worse_policy_is_out_of_force_at_all_within_two_heartbeats(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bucket = Bucket("r1", "r2")
    first, second = bucket.shares.values()
    clock = Clock(monkeypatch)
    first.change(CHANGE)
    bucket.second()
    serve(first)
    serve(second)
    clock.now += 20.0
    bucket.second()
    bucket.second()
    serve(second, slower=3.0)

    bucket.second()
    bucket.second()

    for share in (first, second):
        assert share.rollout.state is not None
        assert share.rollout.state.phase == "returned"
        assert share.rollout.arms is None


def test_an_operator_gives_up_at_any_replica() -> None:
    bucket = Bucket("r1", "r2")
    first, second = bucket.shares.values()
    first.change(CHANGE)
    bucket.second()

    second.give_up("asked for")
    bucket.second()

    assert first.rollout.state == second.rollout.state
    assert bucket.routers["r1"].policy.state == first.rollout.state


def test_a_policy_that_is_not_known_here_is_a_warning_until_it_is_over() -> None:
    bucket = Bucket("r1", "r2")
    first, second = bucket.shares.values()
    first.change(CHANGE)
    state = first.rollout.state
    assert state is not None
    strange = msgspec.structs.replace(state, change=PolicyChange(PolicySpec("mine")))
    updates = msgspec.structs.replace(bucket.routers["r1"].policy, state=strange)
    bucket.routers["r1"].policy = updates

    second.adopt()
    second.adopt()

    (warning,) = second.warnings()
    assert "policy: r1 changed the policy to kv:mine: formula 'mine' is unknown" in warning
    assert not bucket.routers["r2"].policy.able
    assert bucket.routers["r2"].scheduler.policy.cost.name == "predicted-time"
    bucket.routers["r1"].policy = msgspec.structs.replace(
        updates, state=strange.moved(strange.steps[0], "returned")
    )
    second.adopt()
    assert second.warnings() == ()


def test_a_change_that_other_settings_contradict_is_not_begun() -> None:
    def refuse(options: RouterOptions) -> None:
        raise ConfigError(f"no {options.cost} here")

    share = PolicyShare(router_of(), "r1", tuple, refuse)

    with pytest.raises(RequestError, match="no lmetric here"):
        share.change(CHANGE)
    with pytest.raises(RequestError, match="min_requests is 1"):
        share.change(msgspec.structs.replace(CHANGE, min_requests=1))
    assert share.rollout.state is None


def test_without_a_formula_there_is_nothing_to_change() -> None:
    share = PolicyShare(router_of(mode="random"), "r1", tuple)

    with pytest.raises(RequestError, match="mode is random") as caught:
        share.change(CHANGE)

    assert caught.value.status == 409
