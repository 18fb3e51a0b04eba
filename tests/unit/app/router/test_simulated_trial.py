"""A policy on trial is played on the live trace first, by a real simulator in a child."""

import time

import msgspec
import pytest

from kvmesh.app.router import simulated_trial
from kvmesh.app.router.command import RouterServer
from kvmesh.app.router.policy_share import PolicyShare
from kvmesh.app.router.search_child import SearchChild
from kvmesh.app.router.simulated_trial import LEAST_ROWS, SimulatedTrial, judge
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.insight.policy_change import PolicyChange
from kvmesh.core.insight.policy_spec import PolicySpec
from kvmesh.core.insight.rollout_verdict import Verdict
from kvmesh.core.insight.trace_ring import TraceRow
from kvmesh.core.insight.weight_search import Found, Judged
from kvmesh.settings.roles import RouterSettings
from tests.conftest import Eventually

pytestmark = pytest.mark.integration

CHANGE = PolicyChange(PolicySpec("lmetric"), min_requests=20)
KNOWN = Judged({}, 1.0, 1.0, 100.0, 10.0)


class Parts:
    """A router that does not serve, with two workers."""

    def __init__(self) -> None:
        worker = ("a=http://127.0.0.1:1", "b=http://127.0.0.1:2")
        server = RouterServer(RouterSettings(router_id="r1", kv_events=False, worker=worker))
        self.context = server._context()
        self.share = PolicyShare(server.router, "r1", tuple)
        self.trial = SimulatedTrial(self.context, self.share, tuple, kv_events=False)
        self.membership = server.scheduler.workers.membership
        for name in ("a", "b"):
            self.membership.add(name, time.monotonic())

    def play(self, count: int = LEAST_ROWS + 20) -> None:
        """Have requests end; those that began last are waited for, and not played."""
        ring, begin = self.context.decisions.ring, time.monotonic()
        assert ring is not None
        for number in range(count):
            at_s = begin + number / 1e6
            traced = ring.take([number % 7 + 1] * 8 + [number + 100] * 8)
            assert traced is not None
            ring.add(TraceRow(at_s, at_s, 300, 8, WorkerId("a"), traced), at_s)

    def play_with(self, code: str) -> None:
        """Begin a trial, and have the first window played by a child that runs `code`."""
        self.trial.child = SearchChild(("-c", code))
        self.share.change(CHANGE)
        self.trial.check()
        self.play()
        self.trial.check()

    def simulated(self) -> Verdict | None:
        return self.share.rollout.simulated


async def test_the_candidate_is_played_on_what_ends_in_the_first_window(
    eventually: Eventually,
) -> None:
    parts = Parts()
    parts.trial.check()
    parts.share.change(CHANGE)
    parts.trial.check()
    parts.play()

    parts.trial.check()
    parts.trial.check()
    await eventually(lambda: parts.simulated() is not None)

    found = parts.simulated()
    assert found is not None
    assert found.reason.startswith("simulated on ")
    assert parts.context.decisions.ring is None
    parts.trial.check()


async def test_a_simulator_that_fails_lets_the_change_go_on(eventually: Eventually) -> None:
    parts = Parts()
    parts.play_with("raise SystemExit('out of luck')")
    await eventually(lambda: parts.simulated() is not None)

    found = parts.simulated()
    assert found is not None
    assert (found.kind, "out of luck" in found.reason) == ("ahead", True)


async def test_what_was_played_for_a_change_that_is_over_says_nothing_of_the_next(
    eventually: Eventually,
) -> None:
    parts = Parts()
    parts.play_with("raise SystemExit('late')")
    parts.share.give_up("asked for")
    parts.share.change(CHANGE)
    await eventually(lambda: not parts.trial._jobs)

    assert parts.simulated() is None


async def test_only_the_replica_that_leads_plays_and_only_in_the_first_window() -> None:
    parts = Parts()
    parts.share.change(CHANGE)
    parts.share.rollout.refused = "another formula"

    parts.trial.check()

    assert parts.context.decisions.ring is None
    assert parts.simulated() is None


async def test_what_is_played_ends_with_the_router(eventually: Eventually) -> None:
    parts = Parts()
    parts.play_with("import time; time.sleep(60)")
    await eventually(lambda: parts.trial.child._process is not None)

    await parts.trial.close()

    assert parts.trial.child._process is None


async def test_where_kvmesh_lab_is_not_installed_it_says_that_this_veto_is_off(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    parts = Parts()
    monkeypatch.setattr(simulated_trial, "is_lab_installed", lambda: False)
    parts.share.change(CHANGE)

    parts.trial.check()

    assert parts.simulated() == Verdict("ahead", "not simulated: kvmesh-lab is not installed")


async def test_a_fleet_that_no_simulator_can_play_is_told() -> None:
    parts = Parts()
    parts.membership.remove("b")
    parts.share.change(CHANGE)

    parts.trial.check()

    assert parts.simulated() == Verdict("ahead", "not simulated: 1 worker: nothing to choose")


@pytest.mark.parametrize(
    ("score", "simulated_ms", "kind", "said"),
    [
        (1.2, 50.0, "ahead", "simulated on 600 requests: p90 TTFT 180 ms against 100 ms"),
        (1.3, 50.0, "worse", "score 1.30"),
        (9.0, 500.0, "ahead", "not simulated: the simulated fleet is not like this one"),
    ],
)
def test_only_what_is_much_worse_is_vetoed(
    score: float, simulated_ms: float, kind: str, said: str
) -> None:
    tried = msgspec.structs.replace(KNOWN, held_out=score, ttft_ms_p90=180.0)
    found = Found(KNOWN, KNOWN, tried, 6, 600, 5.0, simulated_ms, 50.0, 19.0, 20.0)

    verdict = judge(found)

    assert verdict.kind == kind
    assert said in verdict.reason
