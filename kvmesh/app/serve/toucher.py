"""Sends prompts of paused agents again, for one token, so that engines keep them."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, NamedTuple

import msgspec

from kvmesh.app.serve.one_token import OneTokenRequests, SentPrompt, kept_size, sent_prompt
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import Hashes
from kvmesh.core.dispatch.dispatched import Dispatched
from kvmesh.core.programs.governor import Governor
from kvmesh.core.programs.touch import Touch, Touches, TouchOptions
from kvmesh.core.routing.program_fleet import GovernedFleet
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.settings.requests import ProgramSettings
from kvmesh.tasks import Jobs, to_next
from kvmesh.transport.http.forward.plan import Target
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.upstream.client import UpstreamPool

CHECK_EVERY_S: Final = 0.5
PROMPT_BYTES: Final = 64 << 20
"""Agents' last prompts that are kept, to be sent again: a thousand of 64 KB."""

MOST_WAIT_MS: Final = 200.0
"""A worker with a longer backlog is left alone: a touch would come late, and be in the way."""


class Prompt(NamedTuple):
    """What was sent for an agent's last turn, its `turns`th; -1: not looked at since."""

    sent: SentPrompt
    hashes: Hashes
    turns: int = -1

    def size(self) -> int:
        """Return about how many bytes it takes."""
        return kept_size(self.sent.body, self.hashes)


class TouchFigures(msgspec.Struct, frozen=True):
    """Counts since the start, and what is kept now."""

    done: int
    failed: int
    computed_tokens: int
    prompts: int
    prompt_bytes: int


class Toucher:
    """Keeps the last prompts of agents, `most_bytes` in all, the longest unused goes first; sends
    those again that `touches` plans.

    They are sent as the clients sent them, salts of tenants and keys included, and counted for
    nobody. `target` says where a worker is, None for one that has gone.
    """

    def __init__(
        self,
        touches: Touches,
        scheduler: Scheduler,
        target: Callable[[WorkerId], Target | None],
        pool: UpstreamPool,
        clock: Callable[[], float],
        most_bytes: int,
    ) -> None:
        self.touches = touches
        self._scheduler = scheduler
        self._target = target
        self._requests = OneTokenRequests(pool, "touch")
        self._clock = clock
        self._most_bytes = most_bytes
        self._prompts: OrderedDict[str, Prompt] = OrderedDict()
        self._bytes = 0

    def keep(self, one: Dispatched, asked: Request) -> None:
        """Keep a turn's prompt in place of the agent's last."""
        if (turn := one.turn) is None:
            return
        self._drop(turn.agent)
        sent = None if turn.final else sent_prompt(asked)
        if sent is None:
            return
        prompt = self._prompts[turn.agent] = Prompt(sent, one.known_hashes)
        self._bytes += prompt.size()
        while self._bytes > self._most_bytes:
            self._drop(next(iter(self._prompts)))

    def figures(self) -> TouchFigures:
        """Return the counts."""
        counts = self.touches.statistics()
        return TouchFigures(
            done=counts.done,
            failed=counts.failed,
            computed_tokens=counts.computed_tokens,
            prompts=len(self._prompts),
            prompt_bytes=self._bytes,
        )

    async def run(self) -> None:
        """Look what is to be touched, and do it, for ever."""
        jobs = Jobs("touch contexts")
        try:
            while True:
                for touch in self.plan():
                    jobs.start(self.send(touch))
                await asyncio.sleep(to_next(CHECK_EVERY_S))
        finally:
            await jobs.close()

    def plan(self) -> list[Touch]:
        """Return what is to be touched now; each is to be sent."""
        return self.touches.plan(self._clock(), self._missing)

    async def send(self, touch: Touch) -> None:
        """Touch a context, and report the result to the plan."""
        computed: int | None = None
        try:
            prompt, target = self._prompts.get(touch.agent), self._target(touch.worker)
            if prompt is not None and target is not None:
                computed = await self._requests.send(prompt.sent, target)
        finally:
            self.touches.done(touch, computed, self._clock())

    def _missing(self, agent: str, worker: WorkerId) -> int | None:
        prompt, known = self._prompts.get(agent), self.touches.table.find(agent)
        if prompt is None or known is None:
            return None
        if prompt.turns < 0:
            self._prompts[agent] = prompt = prompt._replace(turns=known.turns)
        if known.turns != prompt.turns:  # another replica took a later turn
            self._drop(agent)
            return None
        now = self._clock()
        if self._target(worker) is None or self._scheduler.wait_ms(worker, now) > MOST_WAIT_MS:
            return None
        found = self._scheduler.overlaps.find(prompt.hashes, now).overlaps.get(worker, 0)
        return self._scheduler.options.block_size * max(0, prompt.hashes.blocks - found)

    def _drop(self, agent: str) -> None:
        prompt = self._prompts.pop(agent, None)
        if prompt is not None:
            self._bytes -= prompt.size()


def toucher_of(
    settings: ProgramSettings,
    governor: Governor,
    scheduler: Scheduler,
    target: Callable[[WorkerId], Target | None],
    pool: UpstreamPool,
) -> Toucher | None:
    """Return what touches contexts, None where it is switched off."""
    if settings.re_touch == "off" or settings.program_turns == "off":
        return None
    touches = Touches(TouchOptions(), governor.table, GovernedFleet(scheduler))
    return Toucher(touches, scheduler, target, pool, time.monotonic, PROMPT_BYTES)
