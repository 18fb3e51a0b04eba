"""A simulated fleet whose router tunes itself: the production tuner in virtual time."""

from collections.abc import Callable, Sequence
from math import inf
from random import Random

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.cost.arms import Arm
from kvmesh.core.insight.policy_change import PolicyChange
from kvmesh.core.insight.rollout import Rollout
from kvmesh.core.insight.trace_ring import TraceRing, TraceRow, mooncake_lines
from kvmesh.core.insight.tuning_loop import Around, LoopOptions, Search, TuningLoop
from kvmesh.core.routing.decision import Decision
from kvmesh.core.routing.policy import parse_policy
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.core.routing.shadow_policy import ShadowPolicies
from kvmesh_lab.report.outcome import RequestOutcome
from kvmesh_lab.simulator.fleet.fleet import SimulatedFleet
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.fleet.request import FleetRequest
from kvmesh_lab.simulator.proposer import Proposer
from kvmesh_lab.traces.trace import parse_trace

LOOK_S = 2.0
ROLLOUT_S = 1.0
EVENTS = 50
SINCE_S = 1e9
"""Changes are named by Unix times: virtual time counts from here."""


class SimulatedPolicies:
    """The rollout of one router alone."""

    def __init__(self, scheduler: Scheduler) -> None:
        self.rollout = Rollout("router-0", scheduler.policy, scheduler.options.formulas)
        self.now = 0.0
        self._scheduler = scheduler

    def change(self, change: PolicyChange) -> None:
        self.rollout.begin(change, SINCE_S + self.now, {})
        self._follow()

    def give_up(self, reason: str) -> None:
        self.rollout.give_up(SINCE_S + self.now, reason)
        self._follow()

    def decide(self) -> None:
        if self.rollout.decide(SINCE_S + self.now, {}) is not None:
            self._follow()

    def _follow(self) -> None:
        self._scheduler.follow(self.rollout.policy, self.rollout.arms)


class TunedFleet:
    """Plays requests; its router keeps their trace, and tunes itself by it.

    A search takes no virtual time but that until the next look.
    """

    def __init__(
        self,
        options: FleetOptions,
        policy: str,
        requests: Sequence[FleetRequest],
        loop: LoopOptions,
        say: Callable[[str], None] = print,
        window_s: float = 600.0,
    ) -> None:
        block_size = options.engine.block_size
        router = parse_policy(policy, block_size)
        self.fleet = SimulatedFleet(options, router, requests, Random(0))
        scheduler = self.fleet.routers[0].scheduler
        scheduler.trace = True
        self.fleet.routers[0].decided = self._decided
        self._requests = {one.trace.index: one for one in requests}
        self._ring = TraceRing(block_size, window_s=window_s, max_bytes=1 << 25)
        self._shadows = ShadowPolicies(())
        self._policies = SimulatedPolicies(scheduler)
        self._loop = TuningLoop(loop, scheduler, self._ring, self._shadows, self._policies)
        self.tuner = self._loop.tuner
        self._arms: dict[str, Arm] = {}
        self._counted = 0
        self._report = say
        self._logged = 0
        self.kept: list[tuple[float, str]] = []

    def run(self) -> list[RequestOutcome]:
        fleet, policies = self.fleet, self._policies
        look_s = rollout_s = 0.0
        going = True
        while going:
            going = fleet.advance(EVENTS)
            now = policies.now = fleet.now
            self._count(now)
            if now >= rollout_s:
                rollout_s = now + ROLLOUT_S
                policies.decide()
            if now >= look_s:
                look_s = now + LOOK_S
                self._check(now)
        return fleet.outcomes

    def _check(self, now: float) -> None:
        around = Around()
        for order in self._loop.check(around, now):
            if isinstance(order, Search):
                lines = mooncake_lines(order.rows, order.task.block_tokens)
                task = msgspec.structs.replace(order.task, seconds=inf)
                found = Proposer(task, parse_trace(lines, "the ring")).run()
                self._loop.found(found, around, now)
        for step in self.tuner.status().steps:
            if step.number > self._logged:
                self._logged = step.number
                self._report(f"{step.at_s:7.0f} s  {step.kind}: {step.text}")

    def _decided(self, decision: Decision) -> None:
        self._shadows.judge(decision)
        if decision.arm is not None:
            self._arms[decision.request_id] = decision.arm

    def _count(self, now: float) -> None:
        outcomes = self.fleet.outcomes
        for outcome in outcomes[self._counted :]:
            itl_ms = outcome.mean_itl_ms()
            arm = self._arms.pop(str(outcome.index), None)
            if arm is not None:
                arm.counter.began(outcome.ttft_ms or 0.0)
                arm.counter.ended(failed=False, ms_per_token=itl_ms)
            hashes = self._requests[outcome.index].hashes
            size = self.fleet.options.engine.block_size
            traced = self._ring.take(BlockHashes.of(hashes, size).upto(len(hashes)))
            if traced is None:
                self._ring.count_request(outcome.prompt_tokens, outcome.sent_ms / 1000.0, now)
                continue
            row = TraceRow(
                at_s=outcome.sent_ms / 1000.0,
                ended_s=now,
                prompt_tokens=outcome.prompt_tokens,
                output_tokens=outcome.output_tokens,
                worker=WorkerId(outcome.worker),
                traced=traced,
                ttft_ms=outcome.ttft_ms,
                itl_ms=itl_ms,
            )
            self._ring.add(row, now)
        self._counted = len(outcomes)
