"""Which contexts an engine is to be reminded of, before it evicts them for ones of less worth.

Engines evict the longest unused. A context whose agent waits for a tool is older than that of a
program that has just ended, and goes first. A request for the same prompt and one token makes it
the newest again, on any engine, for the price of a step. So what nobody will come back for becomes
the oldest, and room for others is taken from that.
"""

from collections.abc import Callable, Iterator
from math import erf, log, sqrt
from typing import Final

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.programs.governor import Fleet
from kvmesh.core.programs.recency import Held, Recency
from kvmesh.core.programs.table import Agent, ProgramTable
from kvmesh.core.programs.turn import Stop, Turn, TurnEnd

PAUSES_S: Final[dict[Stop, tuple[float, float]]] = {
    "tool": (9.0, 70.0),
    "end": (218.0, 3785.0),
    "length": (10.0, 162.0),
    "": (10.0, 162.0),
}
"""Pauses of coding agents by why the answer ended, median and 90th percentile: of 49,334 turns of
Claude Code (GitHub callanjfox/kv-cache-tester).
"""

_Z90: Final = 1.2815515655446004
_LOOKED_AT: Final = 64


class TouchOptions(msgspec.Struct, frozen=True):
    """When a touch pays. A context is in danger where new ones of `headroom` of the cache would
    evict it. What it saves on average within `horizon_s` is `worth` times what it costs at least,
    in time of the engine: a step, `step_ms`. Touches take `most_share` of an engine's time at most.
    Contexts of less than `least_tokens` are computed again.
    """

    headroom: float = 0.5
    horizon_s: float = 120.0
    worth: float = 2.0
    step_ms: float = 25.0
    most_share: float = 0.02
    least_tokens: int = 1024


class Touch(msgspec.Struct, frozen=True):
    """Send the agent's last prompt to the worker again, for one token."""

    agent: str
    worker: WorkerId
    tokens: int


class TouchStatistics(msgspec.Struct, frozen=True):
    """Counts since the start; `computed_tokens` were no longer cached when the touch came."""

    planned: int
    failed: int
    computed_tokens: int


def chance_of_return(agent: Agent, now: float, within_s: float) -> float:
    """Return how likely an agent's next turn comes within so many seconds, by `PAUSES_S`.

    The pauses are taken to be log-normal. 1 while it has a turn, 0 once it has ended.
    """
    if agent.phase in ("running", "waiting"):
        return 1.0
    if agent.phase == "ended":
        return 0.0
    median_s, late_s = PAUSES_S[agent.stop]
    gone_s = max(0.0, now - agent.since_s)
    still = 1.0 - _share_below(gone_s, median_s, late_s)
    if still < _NOBODY:
        return 0.0
    return (_share_below(gone_s + within_s, median_s, late_s) - 1.0 + still) / still


_NOBODY: Final = 1e-6


def _share_below(seconds: float, median_s: float, late_s: float) -> float:
    if seconds <= 0.0:
        return 0.0
    spread = log(late_s / median_s) / _Z90
    return 0.5 * (1.0 + erf(log(seconds / median_s) / spread / sqrt(2.0)))


class Touches:
    """Plans touches over the table of agents: tell it of every turn's placement and end.

    `chance` says how likely an agent comes back within so many seconds.
    """

    def __init__(
        self,
        options: TouchOptions,
        table: ProgramTable,
        fleet: Fleet,
        chance: Callable[[Agent, float, float], float] = chance_of_return,
    ) -> None:
        self.options = options
        self._table = table
        self._fleet = fleet
        self._chance = chance
        self._recency: dict[WorkerId, Recency] = {}
        self._next_s: dict[WorkerId, float] = {}
        self._under_way: dict[WorkerId, Touch] = {}
        self._changed: set[WorkerId] = set()
        self._planned = 0
        self._failed = 0
        self._computed = 0

    def chosen(self, turn: Turn, worker: WorkerId) -> None:
        """Note that a turn was booked at `worker`: its context is the newest there."""
        self._at(worker).use(turn.agent, turn.prompt_tokens, 0)
        self._changed.add(worker)

    def ended(self, turn: Turn, end: TurnEnd) -> None:
        """Note how a turn ended that was `chosen`."""
        if end.served:
            written = end.computed_tokens + end.output_tokens
            context = turn.prompt_tokens + end.output_tokens
            self._at(end.worker).use(turn.agent, context, written)
        self._changed.add(end.worker)

    def wrote(self, worker: WorkerId, tokens: int) -> None:
        """Note that so many tokens were computed there for a request that is part of no program."""
        self._at(worker).write(tokens)
        self._changed.add(worker)

    def removed(self, worker: WorkerId) -> None:
        """Forget a worker that left."""
        self._recency.pop(worker, None)
        self._next_s.pop(worker, None)
        self._under_way.pop(worker, None)
        self._changed.discard(worker)

    def plan(self, now: float, can: Callable[[str], bool]) -> list[Touch]:
        """Return what is to be touched now, one context a worker, of agents that `can` be: each is
        under way until `done`. Asked twice a second it is soon enough.

        Workers where nothing was written since they were looked at have nothing to touch.
        """
        found: list[Touch] = []
        usable = set(self._fleet.workers(now)) if self._changed else set[WorkerId]()
        for worker in sorted(self._changed & usable):
            if worker in self._under_way or now < self._next_s.get(worker, now):
                continue
            touch = self._find(worker, now, can)
            if touch is None:
                self._changed.discard(worker)
                continue
            self._under_way[worker] = touch
            self._planned += 1
            found.append(touch)
        return found

    def done(self, touch: Touch, computed_tokens: int | None, now: float) -> None:
        """Note that a touch has ended, and how many tokens had to be computed; None: it failed."""
        if self._under_way.get(touch.worker) is touch:
            del self._under_way[touch.worker]
        options, per_token = self.options, self._fleet.ms_per_token(touch.worker)
        computed = 0 if computed_tokens is None else max(0, computed_tokens)
        cost_s = (options.step_ms + computed * per_token) / 1000.0
        self._next_s[touch.worker] = now + cost_s / options.most_share
        if computed_tokens is None:
            self._failed += 1
            return
        self._computed += computed
        self._at(touch.worker).use(touch.agent, touch.tokens, touch.tokens)
        self._changed.add(touch.worker)

    def statistics(self) -> TouchStatistics:
        """Return the counts."""
        return TouchStatistics(self._planned, self._failed, self._computed)

    def _at(self, worker: WorkerId) -> Recency:
        known = self._recency.get(worker)
        if known is None:
            known = self._recency[worker] = Recency()
        return known

    def _find(self, worker: WorkerId, now: float, can: Callable[[str], bool]) -> Touch | None:
        """Return the context longest unused that pays; None where none does."""
        capacity, options = self._fleet.capacity_tokens(worker), self.options
        if not capacity:
            return None
        found: Touch | None = None
        newer: list[tuple[float, int]] = []
        for held, agent in self._held(worker, capacity):
            chance = 0.0 if agent is None else self._chance(agent, now, options.horizon_s)
            reach = held.newer_tokens + held.tokens
            if (
                agent is not None
                and agent.phase == "paused"
                and held.tokens >= options.least_tokens
                and reach > (1.0 - options.headroom) * capacity
                and reach <= capacity
                and self._pays(worker, held.tokens, chance, newer)
                and can(agent.key)
            ):
                found = Touch(agent.key, worker, held.tokens)
            newer.append((chance, held.tokens))
        return found

    def _held(self, worker: WorkerId, capacity: int) -> Iterator[tuple[Held, Agent | None]]:
        for _, held in zip(range(_LOOKED_AT), self._at(worker).held(capacity), strict=False):
            agent = self._table.find(held.agent) if held.agent else None
            gone = agent is not None and agent.worker not in (worker, None)
            yield held, None if gone else agent

    def _pays(
        self, worker: WorkerId, tokens: int, chance: float, newer: list[tuple[float, int]]
    ) -> bool:
        """Return whether it is worth a step to have the least worthy of what is newer go first."""
        left, lost = tokens, 0.0
        for other, count in sorted(newer):
            if other >= chance or not left:
                break
            taken = min(left, count)
            lost += taken * other
            left -= taken
        saved_ms = ((tokens - left) * chance - lost) * self._fleet.ms_per_token(worker)
        return saved_ms > self.options.worth * self.options.step_ms
