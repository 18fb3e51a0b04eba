"""A tuner at one router: what it sees is read here, what it asks for is done here."""

from typing import Final, assert_never

import msgspec

from kvmesh.core.cost.weights import weights_of
from kvmesh.core.insight.fleet_facts import LEAST_WORKERS, fleet_facts, obstacle, unplayable
from kvmesh.core.insight.load_character import CHARACTER_ROWS, Character, character_of
from kvmesh.core.insight.rollout import Rollout
from kvmesh.core.insight.trace_ring import TraceRing, TraceRow
from kvmesh.core.insight.tuner import Tuner, TunerOptions
from kvmesh.core.insight.tuning_acts import (
    Act,
    GiveUp,
    Seen,
    StartSearch,
    StartShadow,
    StopShadow,
)
from kvmesh.core.insight.weight_search import (
    Found,
    LoggedFleet,
    SearchTask,
    name_policy,
    quantile,
)
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.core.routing.shadow_policy import ShadowPolicies, ShadowReport, parse_shadow

LONGEST: Final = 0.98
"""Of this share of the requests the end was waited for, before a trace counts as whole."""

COUNTED_ROWS: Final = 4
"""Rows are counted up to so many times those that a search needs."""


class LoopOptions(msgspec.Struct, frozen=True):
    """A tuner's options, and those of its searches: each takes `search_s` at most."""

    tuner: TunerOptions = TunerOptions()
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


class TuningLoop:
    """Reads ring, scheduler, shadows and `rollout` for a `Tuner`, and does what it asks for.

    The default weights are those the router was started with.
    """

    def __init__(
        self,
        options: LoopOptions,
        scheduler: Scheduler,
        ring: TraceRing,
        shadows: ShadowPolicies,
        rollout: Rollout,
        now: float = 0.0,
    ) -> None:
        self._options = options
        self._scheduler = scheduler
        self._ring = ring
        self._shadows = shadows
        self._rollout = rollout
        self._shadow = ""
        default = weights_of(scheduler.policy.weights)
        self.tuner = Tuner(options.tuner, scheduler.policy.cost.name, default, now)

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
            shadow=self._shadow_report(),
            block_ms=block_ms,
        )

    def _obstacle(self, now: float) -> str:
        found = obstacle(self._scheduler, now)
        cost, rollout = self._scheduler.policy.cost.name, self._rollout
        if not found and cost != self.tuner.cost:
            found = f"the formula is {cost} by now, not {self.tuner.cost}"
        if not found and rollout.refused:
            found = rollout.refused
        state = rollout.state
        if not found and state is not None and state.phase == "running":
            found = f"{state.change.policy} is on trial, which {state.by} began"
        return found

    def _character(self) -> Character | None:
        rows = self._ring.newest(CHARACTER_ROWS)
        if len(rows) < CHARACTER_ROWS or rows[0].at_s < self.tuner.since_s:
            return None
        return character_of(rows, self._ring.block_tokens, self._ring.kept_share)

    def _shadow_report(self) -> ShadowReport | None:
        found = (one for one in self._shadows.reports() if one.policy == self._shadow)
        return next(found, None)

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
                case GiveUp():
                    orders.append(EndSearch())
                case _:
                    assert_never(act)
        return orders

    def _search(self, act: StartSearch, around: Around, now: float) -> Search:
        options, scheduler = self._options, self._scheduler
        search = search_of(scheduler, self._ring, around, act.since_s, now)
        task = msgspec.structs.replace(
            search.task,
            default=self.tuner.default,
            seconds=options.search_s,
            requests=options.search_requests,
        )
        return Search(task, search.rows[-options.search_requests :])


def search_of(
    scheduler: Scheduler, ring: TraceRing, around: Around, since_s: float, now: float
) -> Search:
    """Return a search on what ended since `since_s`, with all that is known of the fleet."""
    rows, share = ring.sample(since_s, now)
    rows = settled(rows, now)
    facts = msgspec.structs.replace(
        fleet_facts(scheduler, around.replicas, now),
        kv_events=around.kv_events,
        max_backlog_ms=around.max_backlog_ms,
    )
    present = weights_of(scheduler.policy.weights)
    task = SearchTask(
        cost=scheduler.policy.cost.name,
        default=present,
        present=present,
        fleet=facts,
        block_tokens=ring.block_tokens,
        # This replica sees one of so many requests of the bucket.
        share=share / max(1, around.replicas),
        ttft_ms=quantile([row.ttft_ms for row in rows if row.ttft_ms is not None], 0.5),
        itl_ms=quantile([row.itl_ms for row in rows if row.itl_ms is not None], 0.5),
    )
    return Search(task, rows)


def log_of(
    scheduler: Scheduler, ring: TraceRing, around: Around, now: float
) -> tuple[list[TraceRow], LoggedFleet]:
    """Return all rows that are whole, and what served them. O(rows log rows)."""
    search = search_of(scheduler, ring, around, 0.0, now)
    task, mode = search.task, scheduler.options.mode
    policy = name_policy(task.cost, task.present) if mode == "kv" else mode
    alone = len(task.fleet.speeds) < LEAST_WORKERS
    why = "" if alone else unplayable(scheduler, task.cost, now)
    return search.rows, LoggedFleet(policy, task.share, task.fleet, why)


def settled(rows: list[TraceRow], now: float) -> list[TraceRow]:
    """Return the rows without the last ones: of what began lately only the short has ended."""
    longest_s = quantile([row.ended_s - row.at_s for row in rows], LONGEST)
    return [row for row in rows if longest_s is None or row.at_s <= now - longest_s]
