"""Rules for turns of programs, as rivals of the governor: agents that never move, as cache-aware
routers have them, and ThunderAgent's.

ThunderAgent's is from its paper (arXiv 2602.13692) and wiki/Scheduler.md of its source at 260e2277,
defaults: every 5 s first resume, then pause. A program is charged its whole context and 100 tokens,
while it acts, too. Where an engine is over its cache, programs that act are paused, the smallest
first, then those that compute are marked, which pauses them when they have answered. Paused ones
are resumed while they fit: those with a request first, then new ones, then those that act, the
smallest first; of those that fit the largest is placed first, where most is free. Who waits for 30
minutes goes anyway. Its `shared_tokens` are 0, as in its source, where nothing updates them.
"""

from collections.abc import Collection
from typing import Final

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.programs.bookkeeper import Fleet
from kvmesh.core.programs.governor import Governor
from kvmesh.core.programs.held import GovernorOptions
from kvmesh.core.programs.turn import Grant, Turn, TurnEnd

TICK_S: Final = 5.0
BUFFER_TOKENS: Final = 100
MOST_WAIT_S: Final = 1800.0
LIVE_S: Final = 12.0
"""An agent that asked nothing for so long is no longer live."""


class _Program(msgspec.Struct, eq=False):
    """`worker` None: it is paused, or new. `turn` is its request under way or held."""

    tokens: int = 0
    steps: int = 0
    worker: WorkerId | None = None
    turn: Turn | None = None
    since_s: float = 0.0
    marked: bool = False

    @property
    def charge(self) -> int:
        """Return the tokens it takes of a cache."""
        return self.tokens + BUFFER_TOKENS

    @property
    def order(self) -> tuple[bool, bool, int]:
        """Return its place among those to be resumed."""
        return self.turn is None, self.steps == 1, self.tokens

    def is_late(self, now: float) -> bool:
        """Return whether it goes though it does not fit."""
        return self.turn is not None and now - self.since_s >= MOST_WAIT_S


class Homes(Governor):
    """Keeps each agent where the fewest tokens of live ones were when it came."""

    def __init__(self, options: GovernorOptions, fleet: Fleet) -> None:
        super().__init__(options, fleet)
        self._at: dict[str, tuple[WorkerId, float, int]] = {}

    def ask(
        self, turn: Turn, now: float, among: Collection[WorkerId] | None = None
    ) -> Grant | None:
        """Return the agent's engine."""
        del among
        if turn.agent in self._at:
            home = self._at[turn.agent][0]
        else:
            tokens = dict.fromkeys(self._fleet.workers(now), 0)
            for worker, asked_s, length in self._at.values():
                tokens[worker] += length * (now - asked_s < LIVE_S)
            home = min(tokens, key=tokens.__getitem__)
        self._at[turn.agent] = home, now, turn.prompt_tokens
        return Grant(frozenset((home,)))


class ThunderAgent(Governor):
    """Holds turns by ThunderAgent's rule; its clients say which turn is a program's last."""

    def __init__(self, options: GovernorOptions, fleet: Fleet) -> None:
        super().__init__(options, fleet)
        self._programs: dict[str, _Program] = {}
        self._tick_s = 0.0

    def ask(
        self, turn: Turn, now: float, among: Collection[WorkerId] | None = None
    ) -> Grant | None:
        """Return the program's engine, None: it waits."""
        del among
        others_wait = bool(self._paused())
        program = self._programs.setdefault(turn.agent, _Program())
        program.tokens, program.turn, program.since_s = turn.prompt_tokens, turn, now
        program.steps += 1
        if program.steps == 1 and not others_wait:
            free = self._free(now)
            fits = [worker for worker, room in free.items() if room >= program.charge]
            program.worker = max(fits, key=free.__getitem__, default=None)
        if program.worker is not None:
            return Grant(frozenset((program.worker,)))
        self.waiting.hold(turn, MOST_WAIT_S, None, now)
        self._counts["held"] += 1
        return None

    def release(self, now: float) -> list[tuple[str, Grant]]:
        """Resume and pause, once each 5 s; return the turns that go."""
        self._tick_s = now + TICK_S
        free = self._free(now)
        room, chosen = sum(one for one in free.values() if one > 0), list[_Program]()
        for one in sorted(self._paused(), key=lambda one: one.order):
            if one.charge <= room or one.is_late(now):
                chosen.append(one)
                room -= one.charge
        released: list[tuple[str, Grant]] = []
        for one in sorted(chosen, key=lambda one: -one.tokens):
            worker = max(free, key=free.__getitem__)
            if one.charge > free[worker] and not one.is_late(now):
                continue
            free[worker] -= one.charge
            one.worker = worker
            if one.turn is not None:
                self.waiting.let_go(one.turn.request_id)
                self._counts["released"] += 1
                self._waited_s += now - one.since_s
                released.append((one.turn.request_id, Grant(frozenset((worker,)))))
        for worker, left in free.items():
            self._pause(worker, left)
        return released

    def next_s(self, now: float) -> float:
        """Return when it looks again."""
        del now
        return self._tick_s

    def chosen(self, turn: Turn, worker: WorkerId, now: float) -> None:
        """Note where the turn went."""
        del now
        self._programs[turn.agent].worker = worker

    def ended(self, turn: Turn, end: TurnEnd, now: float) -> None:
        """Note that the program acts, or is over."""
        del now
        program = self._programs[turn.agent]
        program.turn = None
        program.tokens = turn.prompt_tokens + end.output_tokens
        if program.marked:
            program.marked, program.worker = False, None
        if turn.final:
            del self._programs[turn.agent]

    def _paused(self) -> list[_Program]:
        return [one for one in self._programs.values() if one.worker is None]

    def _free(self, now: float) -> dict[WorkerId, int]:
        """Return how many tokens are free at each worker, below 0: missing."""
        free = {one: self._fleet.capacity_tokens(one) for one in self._fleet.workers(now)}
        for one in self._programs.values():
            if one.worker is not None and not one.marked:
                free[one.worker] -= one.charge
        return free

    def _pause(self, worker: WorkerId, free: int) -> None:
        there = [one for one in self._programs.values() if one.worker == worker and not one.marked]
        for one in sorted(there, key=lambda one: (one.turn is not None, one.tokens)):
            if free >= 0:
                return
            free += one.charge
            if one.turn is None:
                one.worker = None
            else:
                one.marked = True
