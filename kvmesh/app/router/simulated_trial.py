"""A policy on trial is first played on the live trace by a simulator, which may veto it."""

import math
from collections.abc import Callable
from typing import Final

import msgspec

from kvmesh.actors.messages import RouterHeartbeat
from kvmesh.app.router.auto_tuner import around, new_ring
from kvmesh.app.router.policy_share import PolicyShare
from kvmesh.app.router.search_child import SearchChild
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.core.insight.fleet_facts import unplayable
from kvmesh.core.insight.rollout_verdict import Verdict
from kvmesh.core.insight.trace_ring import TraceRing
from kvmesh.core.insight.tuner import TunerOptions
from kvmesh.core.insight.tuning_judgement import MOST_WORSE, model_error
from kvmesh.core.insight.tuning_loop import Search, search_of
from kvmesh.core.insight.weight_search import Found
from kvmesh.errors import KvMeshError
from kvmesh.lab import DISTRIBUTION, is_lab_installed
from kvmesh.tasks import Jobs

LEAST_ROWS: Final = 50
"""Requests that have to end before the trace is played: `min_requests`, within these bounds."""

MOST_ROWS: Final = 1000
PLAY_S: Final = 10.0


class SimulatedTrial:
    """Sets `simulated` of a rollout that this replica leads, in its first window."""

    def __init__(
        self,
        context: RoutingContext,
        share: PolicyShare,
        replicas: Callable[[], tuple[RouterHeartbeat, ...]],
        *,
        kv_events: bool,
    ) -> None:
        self.child = SearchChild()
        self._context = context
        self._share = share
        self._replicas = replicas
        self._kv_events = kv_events
        self._jobs = Jobs("simulated trial")
        self._own: TraceRing | None = None
        self._since_s = math.inf

    async def close(self) -> None:
        """End what is under way."""
        await self._jobs.close()

    def check(self) -> None:
        """Do what is due each second."""
        rollout, context, now = self._share.rollout, self._context, self._context.clock()
        state = rollout.state
        if state is None or rollout.arms is None or rollout.simulated is not None:
            self._end()
            return
        if state.stage or self._jobs or not rollout.leads(self._share.siblings()):
            return
        cost = state.change.policy.formula
        obstacle = unplayable(context.scheduler, rollout.spec.formula, now)
        if not is_lab_installed():
            obstacle = f"{DISTRIBUTION} is not installed"
        if obstacle := obstacle or unplayable(context.scheduler, cost, now):
            rollout.simulated = Verdict("ahead", f"not simulated: {obstacle}")
            return
        if self._since_s == math.inf:
            self._since_s = now
        ring = context.decisions.ring
        if ring is None:
            ring = self._own = new_ring(context)
        enough = min(MOST_ROWS, max(LEAST_ROWS, state.change.min_requests))
        if ring.count(self._since_s, enough) >= enough:
            told = around(context, self._replicas(), kv_events=self._kv_events)
            search = search_of(context.scheduler, ring, told, self._since_s, now)
            task = msgspec.structs.replace(
                search.task, seconds=PLAY_S, requests=MOST_ROWS, candidate=str(state.change.policy)
            )
            self._end()
            self._jobs.start(self._play(Search(task, search.rows[-MOST_ROWS:]), state.name))

    async def _play(self, search: Search, name: tuple[float, str]) -> None:
        """Play for the change of that name: another one is not told."""
        try:
            verdict = judge(await self.child.run(search))
        except KvMeshError as error:
            verdict = Verdict("ahead", f"not simulated: {error}")
        rollout = self._share.rollout
        if rollout.state is not None and rollout.state.name == name:
            rollout.simulated = verdict

    def _end(self) -> None:
        self._since_s = math.inf
        if self._own is not None:
            self._context.decisions.ring = self._own = None


def judge(found: Found) -> Verdict:
    """Return whether a simulator speaks against a candidate: only for much worse times, as it is a
    model.
    """
    wrong = model_error(found, TunerOptions().model_ratio)
    if wrong:
        return Verdict("ahead", f"not simulated: {wrong}")
    tried, known = found.best, found.present
    text = (
        f"simulated on {found.requests} requests: p90 TTFT {tried.ttft_ms_p90:.0f} ms against"
        f" {known.ttft_ms_p90:.0f} ms, p90 per token {tried.tpot_ms_p90:.1f} ms against"
        f" {known.tpot_ms_p90:.1f} ms, score {tried.held_out / max(known.held_out, 1e-9):.2f}"
    )
    worse = tried.held_out > MOST_WORSE * known.held_out
    return Verdict("worse" if worse else "ahead", text)
