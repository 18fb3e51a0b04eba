"""A tuner at one router: what it sees is read here, what it asks for is done here."""

from typing import Final, Protocol, assert_never

import msgspec

from kvmesh.core.cost.weights import weights_of
from kvmesh.core.insight.fleet_facts import fleet_facts, obstacle
from kvmesh.core.insight.load_character import CHARACTER_ROWS, Character, character_of
from kvmesh.core.insight.performance import Performance, performance_of, quantile
from kvmesh.core.insight.policy_change import Bounds, PolicyChange
from kvmesh.core.insight.policy_spec import PolicySpec
from kvmesh.core.insight.rollout import Rollout
from kvmesh.core.insight.trace_ring import TraceRing, TraceRow
from kvmesh.core.insight.tuner import Tuner, TunerOptions
from kvmesh.core.insight.tuning_acts import (
    Act,
    GiveUp,
    PutBack,
    Seen,
    StartSearch,
    StartShadow,
    StartTrial,
    StopShadow,
    TrialSeen,
)
from kvmesh.core.insight.weight_search import Found, SearchTask, Weighting, name_policy
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.core.routing.shadow_policy import ShadowPolicies, ShadowReport, parse_shadow
from kvmesh.errors import RequestError

STAGES: Final = (0.05, 0.25, 1.0)
BOUNDS: Final = Bounds(ttft_ratio=1.25, tpot_ratio=1.25)
"""Of the shares of a trial: a guard against harm. Whether it won shows when it has all."""

LONGEST: Final = 0.98
"""Of this share of the requests the end was waited for, before a trace counts as whole."""

COUNTED_ROWS: Final = 4
"""Rows are counted up to so many times those that a search needs."""


class Policies(Protocol):
    """Who changes the policy of this replica and its siblings."""

    rollout: Rollout

    def change(self, change: PolicyChange) -> object:
        """Begin a change. Raises `RequestError` for one that cannot be."""
        ...

    def give_up(self, reason: str) -> object:
        """Return from the last change. Raises `RequestError` where there is none."""
        ...


class LoopOptions(msgspec.Struct, frozen=True):
    """A tuner's options, and those of what it asks for. A share of a trial has `trial_requests`
    and lasts `trial_s` at most; a search takes `search_s` at most.
    """

    tuner: TunerOptions = TunerOptions()
    trial_requests: int = 200
    trial_s: float = 1800.0
    search_s: float = 60.0
    search_requests: int = 3000


class Around(msgspec.Struct, frozen=True):
    """What the process knows beside: whether it `leads` the `replicas` of its bucket."""

    leads: bool = True
    replicas: int = 1
    max_backlog_ms: float = 0.0
    kv_events: bool = True


class Search(msgspec.Struct, frozen=True):
    """A search to be begun: in another process, since it takes long."""

    task: SearchTask
    rows: list[TraceRow]


class EndSearch(msgspec.Struct, frozen=True):
    """The search under way is to be ended."""


Order = Search | EndSearch
"""What is left to the process."""


class _Trial(msgspec.Struct):
    """The trial under way: the change it is, how it was before, and since when it has all."""

    name: tuple[float, str]
    before: Performance
    whole_since_s: float | None = None


class TuningLoop:
    """Reads ring, scheduler, shadows and rollout for a `Tuner`, and does what it asks for.

    The default weights are those the router was started with.
    """

    def __init__(
        self,
        options: LoopOptions,
        scheduler: Scheduler,
        ring: TraceRing,
        shadows: ShadowPolicies,
        policies: Policies,
        now: float = 0.0,
    ) -> None:
        self._options = options
        self._scheduler = scheduler
        self._ring = ring
        self._shadows = shadows
        self._policies = policies
        self._shadow = ""
        self._trial: _Trial | None = None
        self.tuner = Tuner(options.tuner, scheduler.policy.cost.name, self._present(), now)

    def check(self, around: Around, now: float) -> list[Order]:
        """Look once; return what is left to the process. O(rows of a character)."""
        return self._do(self.tuner.check(self._see(around, now), now), around, now)

    def found(self, found: Found, around: Around, now: float) -> list[Order]:
        """Take what a search found."""
        return self._do(self.tuner.found(found, now), around, now)

    def _see(self, around: Around, now: float) -> Seen:
        tuner, scheduler = self.tuner, self._scheduler
        block_ms = scheduler.speeds.fleet_ms_per_token * scheduler.options.block_size
        return Seen(
            leads=around.leads,
            obstacle=self._obstacle(now),
            rows=self._ring.count(tuner.since_s, COUNTED_ROWS * tuner.options.least_requests),
            character=self._character(),
            present=self._present(),
            shadow=self._shadow_report(),
            block_ms=block_ms,
            trial=self._see_trial(now),
        )

    def _obstacle(self, now: float) -> str:
        found = obstacle(self._scheduler, now)
        cost, rollout = self._scheduler.policy.cost.name, self._policies.rollout
        if not found and cost != self.tuner.cost:
            found = f"the formula is {cost} by now, not {self.tuner.cost}"
        if not found and rollout.refused:
            found = rollout.refused
        state = rollout.state
        own = self._trial is not None and state is not None and state.name == self._trial.name
        if not found and state is not None and state.phase == "running" and not own:
            found = f"{state.change.policy} is on trial, which {state.by} began"
        return found

    def _character(self) -> Character | None:
        rows = self._ring.newest(CHARACTER_ROWS)
        if len(rows) < CHARACTER_ROWS or rows[0].at_s < self.tuner.since_s:
            return None
        return character_of(rows, self._ring.block_tokens, self._ring.kept_share)

    def _present(self) -> Weighting:
        """Return the weights in force by name."""
        return weights_of(self._scheduler.policy.weights)

    def _shadow_report(self) -> ShadowReport | None:
        found = (one for one in self._shadows.reports() if one.policy == self._shadow)
        return next(found, None)

    def _see_trial(self, now: float) -> TrialSeen | None:
        trial, state = self._trial, self._policies.rollout.state
        if trial is None or state is None:
            return None
        last = state.steps[-1]
        if state.name != trial.name:
            reason = f"{state.by} asked for {state.change.policy}"
            return TrialSeen("returned", 0.0, reason, trial.before, performance_of(()))
        if last.share >= 1.0 and trial.whole_since_s is None:
            trial.whole_since_s = now
        rows: list[TraceRow] = []
        if trial.whole_since_s is not None:
            rows, _ = self._ring.sample(trial.whole_since_s, now)
        after = performance_of(rows)
        return TrialSeen(state.phase, last.share, last.reason, trial.before, after)

    def _do(self, acts: list[Act], around: Around, now: float) -> list[Order]:
        orders: list[Order] = []
        for act in acts:
            match act:
                case StartSearch():
                    orders.append(self._search(act, around, now))
                case StartShadow(weights):
                    options = self._scheduler.options
                    policy = name_policy(self.tuner.cost, weights)
                    shadow = parse_shadow(policy, options.block_size, options.formulas)
                    self._shadow = shadow.name
                    self._shadows.put(shadow)
                case StopShadow():
                    self._shadows.drop(self._shadow)
                case StartTrial(weights):
                    self._begin(weights, now)
                case PutBack(_, weights):
                    self._put_back(weights)
                case GiveUp(why):
                    orders.append(EndSearch())
                    self._give_up(why)
                case _:
                    assert_never(act)
        return orders

    def _search(self, act: StartSearch, around: Around, now: float) -> Search:
        options, tuner = self._options, self.tuner
        rows, share = self._ring.sample(act.since_s, now)
        rows = settled(rows, now)
        facts = fleet_facts(self._scheduler, around.replicas, now)
        facts = msgspec.structs.replace(
            facts, kv_events=around.kv_events, max_backlog_ms=around.max_backlog_ms
        )
        task = SearchTask(
            cost=tuner.cost,
            default=tuner.default,
            present=self._present(),
            others=act.others,
            fleet=facts,
            block_tokens=self._ring.block_tokens,
            # This replica sees one of so many requests of the bucket.
            share=share / max(1, around.replicas),
            ttft_ms=quantile([row.ttft_ms for row in rows if row.ttft_ms is not None], 0.5),
            itl_ms=quantile([row.itl_ms for row in rows if row.itl_ms is not None], 0.5),
            seconds=options.search_s,
            requests=options.search_requests,
        )
        return Search(task, rows[-options.search_requests :])

    def _begin(self, weights: Weighting, now: float) -> None:
        # What began under the load before may have met the queues that it left.
        rows, _ = self._ring.sample((self.tuner.since_s + now) / 2, now)
        change = PolicyChange(
            policy=PolicySpec(self.tuner.cost, dict(weights)),
            stages=STAGES,
            min_requests=self._options.trial_requests,
            bounds=BOUNDS,
            max_stage_s=self._options.trial_s,
        )
        try:
            self._policies.change(change)
        except RequestError as error:
            self.tuner.trial_failed(str(error), now)
            return
        state = self._policies.rollout.state
        assert state is not None, "a change was begun"
        self._trial = _Trial(state.name, performance_of(rows))

    def _put_back(self, weights: Weighting) -> None:
        spec = PolicySpec(self.tuner.cost, dict(weights))
        self._trial = None
        try:
            self._policies.change(PolicyChange(policy=spec, stages=(1.0,)))
        except RequestError:
            # Somebody else's change is on trial: what it ends with is theirs to say.
            return

    def _give_up(self, why: str) -> None:
        """End the trial under way, if it still is."""
        trial, self._trial = self._trial, None
        state = self._policies.rollout.state
        if trial is not None and state is not None and state.name == trial.name:
            self._policies.give_up(why)


def settled(rows: list[TraceRow], now: float) -> list[TraceRow]:
    """Return the rows without the last ones: of what began lately only the short has ended."""
    longest_s = quantile([row.ended_s - row.at_s for row in rows], LONGEST)
    return [row for row in rows if longest_s is None or row.at_s <= now - longest_s]
