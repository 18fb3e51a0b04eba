"""Replicas whose heartbeats are late, lost and out of order, and that start anew, still agree."""

import random
from math import exp

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvmesh.core.cost.arm_tally import Counter, add_tallies
from kvmesh.core.cost.catalogue import PUBLISHED
from kvmesh.core.insight.policy_change import Bounds, PolicyChange
from kvmesh.core.insight.policy_spec import PolicySpec
from kvmesh.core.insight.rollout import Rollout
from kvmesh.core.insight.rollout_state import PolicyUpdate, RolloutState, Step, newest
from kvmesh.core.insight.rollout_verdict import Verdict

BASE = PolicySpec("predicted-time").find(PUBLISHED)
BOUNDS = Bounds(ttft_ratio=1.2, tpot_ratio=1.2)
CHANGE = PolicyChange(PolicySpec("lmetric"), min_requests=30, bounds=BOUNDS, window_s=2.0)
NAMES = ("r1", "r2", "r3")


class Bucket:
    """Three replicas and their heartbeats: each sees of the others what last came through."""

    def __init__(self, seed: int, slower: float) -> None:
        self.rng = random.Random(seed)
        self.replicas = {name: Rollout(name, BASE) for name in NAMES}
        self.received: dict[str, dict[str, PolicyUpdate]] = {name: {} for name in NAMES}
        self.late: list[tuple[str, str, PolicyUpdate]] = []
        self.tried = 0
        self.apart: set[str] = set()
        self.now = 100.0
        self._slower = slower

    def serve(self, requests: int) -> None:
        for _ in range(requests):
            arms = self.replicas[self.rng.choice(NAMES)].arms
            if arms is not None and (arm := arms.find()) is not None:
                arm.left -= 1
                self.tried += arm.name == "candidate"
                slower = self._slower if arm.name == "candidate" else 1.0
                arm.counter.began(100.0 * slower * exp(self.rng.gauss(0.0, 0.6)))
                arm.counter.ended(failed=False, ms_per_token=10.0 * exp(self.rng.gauss(0.0, 0.1)))

    def second(self, *, whole: bool = False) -> None:
        """Send all heartbeats, of which some are lost or come later; then each does its part."""
        self.now += 1.0
        for name, replica in self.replicas.items():
            for other in NAMES:
                if other != name:
                    self.late.append((name, other, wire(replica.updates())))
        self.rng.shuffle(self.late)
        kept = []
        for sender, to, updates in self.late:
            if not whole and (sender in self.apart) != (to in self.apart):
                continue
            if not whole and self.rng.random() < 0.3:
                if self.rng.random() < 0.5:
                    kept.append((sender, to, updates))
                continue
            self.received[to][sender] = updates
        self.late = [] if whole else kept
        for name, replica in self.replicas.items():
            replica.adopt(self.received[name])
            replica.simulated = Verdict("ahead", "")
            replica.decide(self.now, self.received[name])
        states = [one.state for one in self.replicas.values() if one.state is not None]
        assert all(one.wrong() == "" for one in states)

    def kill(self, name: str) -> None:
        """Kill a replica; it starts anew and knows nothing."""
        self.replicas[name] = Rollout(name, BASE)
        self.received[name] = {}

    def settle(self) -> RolloutState:
        """Return what all agree on once every heartbeat comes through."""
        for _ in range(8):
            self.second(whole=True)
        assert len({msgspec.json.encode(one.state) for one in self.replicas.values()}) == 1
        return next(one.state for one in self.replicas.values() if one.state is not None)


def wire(updates: PolicyUpdate) -> PolicyUpdate:
    """Return the news as they come out of a heartbeat."""
    return msgspec.json.decode(msgspec.json.encode(updates), type=PolicyUpdate)


@pytest.mark.parametrize("seed", range(12))
def test_a_good_candidate_gets_all_requests_through_loss_and_a_killed_replica(seed: int) -> None:
    bucket = Bucket(seed, slower=0.9)
    bucket.replicas[bucket.rng.choice(NAMES)].begin(CHANGE, bucket.now, {})

    for second in range(150):
        bucket.serve(200)
        bucket.second()
        if second == 4:
            bucket.kill("r1")
    state = bucket.settle()

    assert state.phase == "done"
    assert [step.share for step in state.steps] == [0.5, 1.0, 1.0]


@pytest.mark.parametrize("seed", range(12))
def test_a_bad_candidate_gets_few_requests_and_all_return(seed: int) -> None:
    bucket = Bucket(seed, slower=2.5)
    bucket.replicas[bucket.rng.choice(NAMES)].begin(CHANGE, bucket.now, {})

    for _ in range(60):
        bucket.serve(100)
        bucket.second()
    state = bucket.settle()

    assert state.phase == "returned"
    assert bucket.tried <= 100 * len(NAMES)
    assert all(one.spec.formula == "predicted-time" for one in bucket.replicas.values())


@pytest.mark.parametrize("seed", range(12))
def test_replicas_that_were_apart_agree_again_and_a_return_counts(seed: int) -> None:
    bucket = Bucket(seed, slower=1.0)
    bucket.replicas["r1"].begin(CHANGE, bucket.now, {})
    bucket.second(whole=True)
    bucket.apart = {"r3"}

    for second in range(30):
        bucket.serve(200)
        bucket.second()
        if second == 10:
            bucket.replicas["r3"].give_up(bucket.now, "asked for")
    assert bucket.replicas["r1"].state != bucket.replicas["r3"].state
    state = bucket.settle()

    assert state.phase == "returned"
    assert state.steps[-1].by == "r3"


STEPS = st.builds(
    Step,
    at=st.floats(1.0, 9.0),
    by=st.sampled_from(NAMES),
    share=st.sampled_from((0.0, 0.5, 1.0)),
    reason=st.sampled_from(("", "a")),
)
STATES = st.builds(
    RolloutState,
    at=st.sampled_from((1.0, 2.0)),
    by=st.sampled_from(NAMES),
    change=st.just(CHANGE),
    baseline=st.just(PolicySpec("predicted-time")),
    phase=st.sampled_from(("running", "done", "returned")),
    stage=st.integers(0, 2),
    steps=st.lists(STEPS, min_size=1, max_size=3).map(tuple),
    since=st.sampled_from((1.0, 2.0)),
)


@settings(deadline=None)
@given(st.lists(STATES, min_size=1, max_size=6), st.randoms(use_true_random=False))
def test_the_state_that_counts_does_not_depend_on_order_or_grouping(
    states: list[RolloutState], rng: random.Random
) -> None:
    shuffled = list(states)
    rng.shuffle(shuffled)
    cut = rng.randrange(len(states))

    found = newest(states)
    other = newest([one for part in (shuffled[:cut], shuffled[cut:]) if (one := newest(part))])

    assert found is not None
    assert other is not None
    assert found.order() == other.order()


@settings(deadline=None)
@given(st.lists(st.tuples(st.integers(0, 2), st.floats(0.0, 1e7)), max_size=200))
def test_tallies_add_up_however_requests_are_spread(requests: list[tuple[int, float]]) -> None:
    parts, whole = [Counter() for _ in NAMES], Counter()

    for at, time_ms in requests:
        for counter in (parts[at], whole):
            counter.began(time_ms)
            counter.ended(failed=time_ms > 1e6)

    added = add_tallies(part.tally() for part in parts)
    assert added.wrong() == ""
    assert (added.requests, added.errors) == (whole.tally().requests, whole.tally().errors)
    assert added.ttft.bins == whole.tally().ttft.bins
    assert added.ttft.log_sum == pytest.approx(whole.tally().ttft.log_sum)
