from array import array

import msgspec
import pytest

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.insight.policy_change import PolicyChange
from kvmesh.core.insight.policy_spec import PolicySpec
from kvmesh.core.insight.rollout import Rollout
from kvmesh.core.insight.trace_ring import Traced, TraceRing, TraceRow
from kvmesh.core.insight.tuner import TunerOptions
from kvmesh.core.insight.tuning_loop import (
    Around,
    EndSearch,
    LoopOptions,
    Search,
    TuningLoop,
    log_of,
    settled,
)
from kvmesh.core.insight.weight_search import Found, Judged
from kvmesh.core.members.worker_info import WorkerInfo
from kvmesh.core.routing.decision import RouterOptions
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.core.routing.shadow_policy import ShadowPolicies, ShadowReport
from tests.unit.core.insight.test_fleet_facts import scheduler

AROUND = Around()
DEFAULT, BETTER = {"overlap_score_weight": 1.0}, {"overlap_score_weight": 4.0}
OPTIONS = RouterOptions(cost="prefill-decode")
BEGIN = 1000.0


class Shadows(ShadowPolicies):
    """Shadows that judged as many decisions as one likes."""

    def reports(self) -> list[ShadowReport]:
        return [
            msgspec.structs.replace(
                one, decisions=300, agreed=100, request_blocks=9000, achieved_blocks=5000,
                would_be_blocks=6000,
            )
            for one in super().reports()
        ]  # fmt: skip


class World:
    """A router's parts around a loop; `play` has requests end."""

    def __init__(self, options: RouterOptions = OPTIONS) -> None:
        self.now = BEGIN
        info = WorkerInfo(total_blocks=1000)
        self.scheduler: Scheduler = scheduler(info, info, options=options)
        self.ring = TraceRing(16, window_s=600.0, max_bytes=1 << 24)
        self.shadows = Shadows(())
        self.rollout = Rollout("r0", self.scheduler.policy, options.formulas)
        tuner = TunerOptions(observe_s=10.0, shadow_s=5.0, pause_s=5.0)
        self.loop = TuningLoop(
            LoopOptions(tuner=tuner), self.scheduler, self.ring, self.shadows, self.rollout, BEGIN
        )

    def change(self, change: PolicyChange) -> None:
        self.rollout.begin(change, self.now, {})
        self.scheduler.follow(self.rollout.policy, self.rollout.arms)

    def play(self, count: int, ttft_ms: float = 100.0, output: int = 50) -> None:
        for number in range(count):
            self.now += 0.05
            keys = array("Q", [number % 20 + 1, (number << 20) + 7])
            row = TraceRow(
                self.now - 0.2, self.now, 300, output, WorkerId("w0"),
                Traced(number, keys.tobytes()), ttft_ms, 10.0,
            )  # fmt: skip
            self.ring.add(row, self.now)

    def check(self, around: Around = AROUND) -> list[object]:
        return list(self.loop.check(around, self.now))

    def stage(self) -> str:
        return self.loop.tuner.stage

    def words(self) -> str:
        return self.loop.tuner.status().words


def result(weights: dict[str, float] = BETTER) -> Found:
    default = Judged(DEFAULT, 1.0, 1.0, 200.0, 20.0)
    best = Judged(weights, 0.9, 0.9, 180.0, 20.0)
    return Found(default, default, best, 20, 600, 5.0, 100.0, 100.0, 10.0, 10.0)


def searching() -> World:
    world = World()
    world.play(700)
    assert [type(one) for one in world.check()] == [Search]
    return world


def test_a_search_is_told_all_that_is_known() -> None:
    world = World()
    world.play(700)

    (order,) = world.check(Around(replicas=2, max_backlog_ms=200.0, kv_events=False))

    assert isinstance(order, Search)
    task = order.task
    assert (task.cost, task.default, task.present) == ("prefill-decode", DEFAULT, DEFAULT)
    assert (task.share, task.ttft_ms, task.itl_ms) == (0.5, 100.0, 10.0)
    assert (task.fleet.replicas, task.fleet.max_backlog_ms, task.fleet.kv_events) == (
        2,
        200.0,
        False,
    )
    assert (task.block_tokens, task.requests) == (128, LoopOptions().search_requests)
    assert 690 <= len(order.rows) < 700


def test_a_log_tells_what_served_its_requests() -> None:
    world = World()
    world.play(20)

    rows, fleet = log_of(world.scheduler, world.ring, Around(replicas=2), world.now)

    assert 15 <= len(rows) <= 20
    assert (fleet.policy, fleet.share) == ("kv:prefill-decode:overlap_score_weight=1", 0.5)
    assert (len(fleet.fleet.speeds), fleet.fleet.blocks, fleet.obstacle) == (2, 1000, "")


def test_a_log_tells_why_its_fleet_cannot_be_played() -> None:
    round_robin = RouterOptions(mode="round-robin", block_size=16)
    mixed = scheduler(WorkerInfo(models=("a",)), WorkerInfo(models=("b",)), options=round_robin)
    alone = scheduler(WorkerInfo(), options=OPTIONS)

    _, fleet = log_of(mixed, World().ring, AROUND, BEGIN)
    _, single = log_of(alone, World().ring, AROUND, BEGIN)

    assert fleet.policy == "round-robin"
    assert fleet.obstacle == "workers serve different models, which is not simulated"
    assert (len(single.fleet.speeds), single.obstacle) == (1, "")


def test_found_weights_are_shadowed_then_proposed() -> None:
    world = searching()
    world.loop.found(result(), AROUND, world.now)

    assert [one.policy for one in world.shadows.reports()] == [
        "kv:prefill-decode:overlap_score_weight=4"
    ]
    world.play(110)
    world.check()

    assert world.loop.tuner.status().proposal == "kv:prefill-decode:overlap_score_weight=4"
    assert world.shadows.reports() == []
    assert world.rollout.state is None


def test_a_trial_of_somebody_else_is_waited_for() -> None:
    world = searching()
    world.change(PolicyChange(PolicySpec("prefill-decode", {"overlap_score_weight": 9.0})))

    assert (world.check(), world.stage()) == ([EndSearch()], "blocked")
    assert "is on trial, which r0 began" in world.words()


def test_another_formula_is_not_tuned() -> None:
    world = World()
    world.change(PolicyChange(PolicySpec("dynamo"), at_once=True))
    world.check()

    assert world.words() == "the formula is dynamo by now, not prefill-decode"


def test_a_policy_that_cannot_be_followed_is_told() -> None:
    world = World()
    world.rollout.refused = "r1 changed the policy to kv:own"
    world.check()

    assert world.words() == "r1 changed the policy to kv:own"


def test_a_failed_search_is_told_in_words() -> None:
    world = searching()
    world.loop.tuner.search_failed("killed", world.now)

    assert world.words() == "the search failed: killed"


@pytest.mark.parametrize(("lasts", "left"), [(1.0, 8), (100.0, 0)])
def test_of_what_began_lately_only_the_short_has_ended(lasts: float, left: int) -> None:
    rows = [TraceRow(float(n), n + lasts, 1, 1, WorkerId("w"), Traced(0, b"")) for n in range(10)]

    assert (len(settled(rows, 8.5)), settled([], 8.5)) == (left, [])
