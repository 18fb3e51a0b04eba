"""Which contexts an engine is to be reminded of, before it evicts them for ones of less worth.

Engines evict the longest unused. A context whose agent waits for a tool is older than that of a
program that has just ended, and goes first. A request for the same prompt and one token makes it
the newest again, on any engine, for the price of a step. So what nobody will come back for becomes
the oldest, and room for others is taken from that.
"""

from collections.abc import Callable, Iterator
from math import erf, exp, inf, log, sqrt
from typing import Final

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.programs.bookkeeper import Fleet
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

LIFE_S: Final = (60.0, 7200.0)
"""A cache is taken to be written over once in no less and no more than this."""

_WINDOW_S: Final = 600.0
_Z90: Final = 1.2815515655446004
_LOOKED_AT: Final = 64


class TouchOptions(msgspec.Struct, frozen=True):
    """When a touch pays. A context is in danger where new ones of `headroom` of the cache would
    evict it. What it saves on average is `worth` times what it costs at least, in time of the
    engine: a step, `step_ms`, and what is no longer cached. Touches take `most_share` of an
    engine's time at most. Contexts of less than `least_tokens` are computed again.
    """

    headroom: float = 0.5
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
    """Touches that ended; `computed_tokens` of them were no longer cached when they came."""

    done: int
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


class _Engine:
    """One engine's contexts, and how fast it writes new ones, tokens a second."""

    def __init__(self) -> None:
        self.recency = Recency()
        self.next_s = -inf
        self.under_way: Touch | None = None
        self._rate = 0.0
        self._rated_s = 0.0

    def wrote(self, tokens: int, now: float) -> None:
        self._rate = self.rate(now) + tokens / _WINDOW_S
        self._rated_s = now

    def rate(self, now: float) -> float:
        return self._rate * exp(min(0.0, self._rated_s - now) / _WINDOW_S)


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
        self.table = table
        self._fleet = fleet
        self._chance = chance
        self._engines: dict[WorkerId, _Engine] = {}
        self._changed: set[WorkerId] = set()
        self._done = 0
        self._failed = 0
        self._computed = 0

    def chosen(self, turn: Turn, worker: WorkerId) -> None:
        """Note that a turn was booked at `worker`: its context is the newest there."""
        self._at(worker).recency.use(turn.agent, turn.prompt_tokens, 0)
        self._changed.add(worker)

    def ended(self, turn: Turn, end: TurnEnd, now: float) -> None:
        """Note how a turn ended that was `chosen`."""
        if end.served:
            engine = self._at(end.worker)
            written = end.computed_tokens + end.output_tokens
            context = turn.prompt_tokens + end.output_tokens
            engine.recency.use(turn.agent, context, written)
            engine.wrote(written, now)
        self._changed.add(end.worker)

    def wrote(self, worker: WorkerId, tokens: int, now: float) -> None:
        """Note that so many tokens were computed there for a request that is part of no program."""
        engine = self._at(worker)
        engine.recency.write(tokens)
        engine.wrote(tokens, now)
        self._changed.add(worker)

    def removed(self, worker: WorkerId) -> None:
        """Forget a worker that left."""
        self._engines.pop(worker, None)
        self._changed.discard(worker)

    def plan(self, now: float, missing: Callable[[str, WorkerId], int | None]) -> list[Touch]:
        """Return what is to be touched now, one context a worker; each is under way until `done`.
        Asked twice a second it is soon enough.

        `missing` says how many tokens of an agent's last prompt a worker no longer holds, None
        where nobody here can send it again. Workers where nothing was used since they were looked
        at are not looked at.
        """
        found: list[Touch] = []
        usable = set(self._fleet.workers(now)) if self._changed else set[WorkerId]()
        for worker in sorted(self._changed & usable):
            engine = self._at(worker)
            if engine.under_way is not None or now < engine.next_s:
                continue
            touch = self._find(worker, now, missing)
            if touch is None:
                self._changed.discard(worker)
                continue
            engine.under_way = touch
            found.append(touch)
        return found

    def done(self, touch: Touch, computed_tokens: int | None, now: float) -> None:
        """Note that a touch has ended, and how many tokens had to be computed; None: it failed."""
        engine = self._at(touch.worker)
        if engine.under_way is touch:
            engine.under_way = None
        options, per_token = self.options, self._fleet.ms_per_token(touch.worker)
        computed = 0 if computed_tokens is None else max(0, computed_tokens)
        cost_s = (options.step_ms + computed * per_token) / 1000.0
        engine.next_s = now + cost_s / options.most_share
        if computed_tokens is None:
            self._failed += 1
            return
        self._done += 1
        self._computed += computed
        engine.recency.use(touch.agent, touch.tokens, 0)
        self._changed.add(touch.worker)

    def statistics(self) -> TouchStatistics:
        """Return the counts."""
        return TouchStatistics(self._done, self._failed, self._computed)

    def _at(self, worker: WorkerId) -> _Engine:
        known = self._engines.get(worker)
        if known is None:
            known = self._engines[worker] = _Engine()
        return known

    def _find(
        self, worker: WorkerId, now: float, missing: Callable[[str, WorkerId], int | None]
    ) -> Touch | None:
        """Return the context longest unused that pays; None where none does."""
        capacity, options = self._fleet.capacity_tokens(worker), self.options
        if not capacity:
            return None
        engine, per_token = self._at(worker), self._fleet.ms_per_token(worker)
        shortest, longest = LIFE_S
        life_s = min(max(shortest, capacity / max(engine.rate(now), 1.0)), longest)
        found: Touch | None = None
        newer: list[tuple[float, int]] = []
        for held, agent in self._held(engine, worker, capacity):
            chance = 0.0 if agent is None else self._chance(agent, now, life_s)
            reach = held.newer_tokens + held.tokens
            if (
                agent is not None
                and agent.phase == "paused"
                and held.tokens >= options.least_tokens
                and (1.0 - options.headroom) * capacity < reach <= capacity
                and (saved := _saved_tokens(held.tokens, chance, newer))
                and (lacks := missing(agent.key, worker)) is not None
                and saved * per_token > options.worth * (options.step_ms + lacks * per_token)
            ):
                found = Touch(agent.key, worker, held.tokens)
            newer.append((chance, held.tokens))
        return found

    def _held(
        self, engine: _Engine, worker: WorkerId, capacity: int
    ) -> Iterator[tuple[Held, Agent | None]]:
        for _, held in zip(range(_LOOKED_AT), engine.recency.held(capacity), strict=False):
            agent = self.table.find(held.agent) if held.agent else None
            gone = agent is not None and agent.worker not in (worker, None)
            yield held, None if gone else agent


def _saved_tokens(tokens: int, chance: float, newer: list[tuple[float, int]]) -> float:
    """Return what is saved on average if the least likely of what is newer goes first."""
    left, lost = tokens, 0.0
    for other, count in sorted(newer):
        if other >= chance or not left:
            break
        taken = min(left, count)
        lost += taken * other
        left -= taken
    return (tokens - left) * chance - lost
