"""The tuner's task at a router that does not serve: its real parts, and a real search."""

import asyncio
import time

import pytest
import structlog

from kvmesh.actors.messages import RouterHeartbeat
from kvmesh.app.router.auto_tuner import AutoTuner, loop_options, make_tuner, running
from kvmesh.app.router.command import RouterServer
from kvmesh.app.router.policy_share import PolicyShare
from kvmesh.app.router.search_child import SearchChild
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.insight.policy_change import PolicyChange
from kvmesh.core.insight.policy_spec import PolicySpec
from kvmesh.core.insight.trace_ring import TraceRow
from kvmesh.core.insight.tuner import TunerOptions
from kvmesh.core.insight.tuning_loop import LoopOptions
from kvmesh.settings.features import TuneSettings
from kvmesh.settings.roles import CostSettings, RouterSettings
from tests.conftest import Eventually

pytestmark = pytest.mark.integration

OPTIONS = LoopOptions(
    tuner=TunerOptions(
        observe_s=0.2, least_requests=100, shadow_decisions=100, pause_s=30.0, rest_s=60.0
    ),
    search_s=0.3,
)


class Parts:
    """A router's context and its tuner, with two workers."""

    def __init__(self, beats: tuple[RouterHeartbeat, ...] = ()) -> None:
        settings = RouterSettings(
            router_id="r1",
            kv_events=False,
            worker=("a=http://127.0.0.1:1", "b=http://127.0.0.1:2"),
            cost=CostSettings(kv_cost="prefill-decode"),
            tune=TuneSettings(auto_tune="propose"),
        )
        server = RouterServer(settings)
        self.context: RoutingContext = server._context()
        for name in ("a", "b"):
            server.scheduler.workers.membership.add(name, time.monotonic())
        self.share = PolicyShare(server.router, "r1", lambda: beats)
        made = make_tuner(settings, self.context, self.share.rollout, lambda: beats, OPTIONS)
        assert made is not None
        self.tuner: AutoTuner = made

    def play(self, count: int = 600) -> None:
        begin = time.monotonic()
        for number in range(count):
            at_s = begin + number / 1e6
            traced = self.tuner.ring.take([number % 7 + 1] * 8 + [number + 100] * 8)
            assert traced is not None
            row = TraceRow(at_s, at_s, 300, 8, WorkerId("a"), traced)
            self.tuner.ring.add(row, at_s)

    def kinds(self) -> list[str]:
        return [step.kind for step in self.tuner.view().tuner.steps]

    def stage(self) -> str:
        return self.tuner.view().tuner.stage


async def stop(task: "asyncio.Future[None]") -> None:
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_load_is_searched_in_a_child_and_each_step_is_logged(
    eventually: Eventually,
) -> None:
    parts = Parts()
    assert parts.tuner._check_s == 0.25, "the load is looked at no more often"
    with structlog.testing.capture_logs() as logs:
        task = asyncio.ensure_future(parts.tuner.run())
        parts.play()
        await eventually(lambda: len(parts.kinds()) >= 2)
        await stop(task)

    assert parts.kinds()[0] == "searches"
    assert parts.kinds()[1] in ("nothing-better", "found", "dropped")
    reported = [one["step"] for one in logs if one["event"] == "auto-tune"]
    assert reported == parts.kinds()
    assert abs(parts.tuner.view().tuner.steps[0].at_s - time.time()) < 60


async def test_a_search_that_fails_is_told(eventually: Eventually) -> None:
    parts = Parts()
    parts.tuner._child = SearchChild(("-c", "raise SystemExit('out of luck')"))
    task = asyncio.ensure_future(parts.tuner.run())
    parts.play()

    await eventually(lambda: "dropped" in parts.kinds())
    await stop(task)

    assert "the search failed" in parts.tuner.view().tuner.words
    assert "out of luck" in parts.tuner.view().tuner.words


async def test_a_search_ends_when_somebody_else_changes_the_policy(eventually: Eventually) -> None:
    parts = Parts()
    parts.tuner._child = SearchChild(("-c", "import time; time.sleep(60)"))
    task = asyncio.ensure_future(parts.tuner.run())
    parts.play()
    await eventually(lambda: parts.tuner._child._process is not None)

    parts.share.change(PolicyChange(PolicySpec("dynamo")))
    await eventually(lambda: parts.stage() == "blocked")
    await eventually(lambda: parts.tuner._child._process is None)
    await stop(task)

    assert "is on trial, which r1 began" in parts.tuner.warnings()[0]
    assert parts.tuner.warnings()[0].startswith("auto-tune: ")


async def test_only_the_least_name_of_the_ready_replicas_tunes() -> None:
    def beat(name: str, *, ready: bool) -> RouterHeartbeat:
        return RouterHeartbeat(name, "default", "http://127.0.0.1:9", ready, 1)

    leads = [
        Parts(beats=beats).tuner._around().leads
        for beats in (
            (beat("r1", ready=True), beat("r2", ready=True)),
            (beat("r1", ready=True), beat("r0", ready=True)),
            (beat("r1", ready=True), beat("r0", ready=False)),
            (),
        )
    ]

    assert leads == [True, False, True, True]


async def test_a_proposal_is_a_warning_that_says_what_to_do() -> None:
    parts = Parts()
    assert parts.tuner.warnings() == ()
    parts.tuner._loop.tuner._proposal = {"overlap_score_weight": 4.0}

    (line,) = parts.tuner.warnings()
    assert line.startswith(
        "auto-tune proposes kv:prefill-decode:overlap_score_weight=4; PUT /admin"
    )


def test_without_the_setting_there_is_no_tuner_and_no_trace() -> None:
    server = RouterServer(RouterSettings(worker=("http://127.0.0.1:1",), kv_events=False))
    context = server._context()

    rollout = PolicyShare(server.router, "r", tuple).rollout
    assert make_tuner(server.settings, context, rollout, tuple) is None
    assert running(None) == []
    assert context.decisions.ring is None


def test_settings_become_options() -> None:
    assert loop_options(TuneSettings(auto_tune="propose")) == LoopOptions()

    options = loop_options(TuneSettings(auto_tune="propose", auto_tune_observe_s=5.0))

    assert (options.tuner.observe_s, options.tuner.least_requests) == (5.0, 500)
    assert options.search_s == 60.0
