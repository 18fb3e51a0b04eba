"""Sends prompts of paused agents again, for one token, so that engines keep them."""

import asyncio
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable
from typing import Final, NamedTuple

import msgspec

from kvmesh.core.blocks.events import HASH_BYTES, WorkerId
from kvmesh.core.blocks.hashing import Hashes
from kvmesh.core.engines.handshake import one_token
from kvmesh.core.engines.sse import find_usage
from kvmesh.core.programs.governor import Governor
from kvmesh.core.programs.touch import Touch, Touches, TouchOptions
from kvmesh.core.programs.turn import Turn
from kvmesh.core.routing.program_fleet import GovernedFleet
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.errors import CodecError, TransportError
from kvmesh.observe import get_logger
from kvmesh.settings.requests import ProgramSettings
from kvmesh.tasks import Jobs, keep_running, to_next
from kvmesh.transport.http.fetch import HTTP_OK, fetch
from kvmesh.transport.http.forward.plan import Target
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.upstream.client import UpstreamPool
from kvmesh.transport.http.wire.headers import Headers

CHECK_EVERY_S: Final = 0.5
ANSWER_S: Final = 30.0
PROMPT_BYTES: Final = 64 << 20
"""Agents' last prompts that are kept, to be sent again: a thousand of 64 KB."""

MOST_WAIT_MS: Final = 200.0
"""A worker with a longer backlog is left alone: a touch would come late, and be in the way."""

PATHS: Final = frozenset({"/v1/chat/completions", "/v1/completions", "/v1/messages"})
"""Whose bodies name the length of the answer `max_tokens`, and the rest of it the prompt."""

_OVERHEAD: Final = 512
_PASSED_ON: Final = frozenset({b"authorization", b"anthropic-version", b"x-api-key"})


class Prompt(NamedTuple):
    """What was sent for an agent's last turn, its `turns`th; -1: not looked at since."""

    path: str
    body: bytes
    headers: Headers
    hashes: Hashes
    turns: int = -1

    def size(self) -> int:
        """Return about how many bytes it takes."""
        return len(self.body) + HASH_BYTES * self.hashes.blocks + _OVERHEAD


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
        self._pool = pool
        self._clock = clock
        self._most_bytes = most_bytes
        self._prompts: OrderedDict[str, Prompt] = OrderedDict()
        self._bytes = 0
        self._sent = 0

    def keep(self, turn: Turn, asked: Request, hashes: Hashes) -> None:
        """Keep a turn's prompt in place of the agent's last. The body is shared, not copied."""
        self._drop(turn.agent)
        if turn.final or asked.path not in PATHS or asked.method != "POST":
            return
        headers = tuple(one for one in asked.headers if one[0] in _PASSED_ON)
        prompt = self._prompts[turn.agent] = Prompt(asked.path, asked.body, headers, hashes)
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
            computed = await self._ask(touch)
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

    async def _ask(self, touch: Touch) -> int | None:
        """Return how many tokens the engine computed, 0 if it does not say; None: it did not."""
        prompt, target = self._prompts.get(touch.agent), self._target(touch.worker)
        if prompt is None or target is None:
            return None
        self._sent += 1
        headers = (*prompt.headers, *target.headers, (b"x-request-id", b"touch-%d" % self._sent))
        log = get_logger()
        try:
            body = msgspec.json.encode(one_token(prompt.body))
            status, answer = await fetch(
                self._pool,
                target.origin,
                prompt.path,
                timeout_s=ANSWER_S,
                headers=headers,
                json=body,
            )
        except (CodecError, TransportError) as error:
            log.debug("context not touched", worker=touch.worker, error=str(error))
            return None
        if status != HTTP_OK:
            log.debug("context not touched", worker=touch.worker, status=status)
            return None
        usage = find_usage(answer)
        if usage is None or usage.cached_tokens is None:
            return 0
        log.debug("context touched", worker=touch.worker, cached_tokens=usage.cached_tokens)
        return max(0, usage.prompt_tokens - usage.cached_tokens)

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


def touching(toucher: Toucher | None) -> list[Awaitable[None]]:
    """Return what runs as long as the router does."""
    return [] if toucher is None else [keep_running("touch contexts", toucher.run)]
