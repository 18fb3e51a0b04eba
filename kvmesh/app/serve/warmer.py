"""Gives workers that join the prefixes that will be asked for: sends kept prompts, for one token.

Prompts are kept in memory alone, as clients sent them, so each stays in its tenant's namespace.
Those of requests that may not go to every worker are not kept.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable
from typing import Final

import msgspec

from kvmesh.actors.messages import RouterHeartbeat
from kvmesh.app.serve.fetching import Fetching
from kvmesh.app.serve.one_token import OneTokenRequests, SentPrompt, sent_prompt
from kvmesh.app.serve.routing_context import RoutingContext, target_of
from kvmesh.core.blocks.events import HASH_BYTES, WorkerId
from kvmesh.core.blocks.hashing import Hashes
from kvmesh.core.dispatch.dispatched import Dispatched
from kvmesh.core.routing.decision import UNRESTRICTED, RouteRequest, Wished
from kvmesh.core.warming.kept_prompts import Kept, KeptPrompts, Sent
from kvmesh.core.warming.newcomers import Allowance, Newcomers, WarmOptions
from kvmesh.core.warming.plan import Candidate, WarmBounds, plan_prompts
from kvmesh.tasks import Jobs, to_next
from kvmesh.transport.http.forward.plan import Target
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.upstream.client import UpstreamPool

LOOK_S: Final = 0.25
MOST_FRESH: Final = 256
"""Prompts that wait to be looked at; of more only the first count, a sample of the traffic. No
tenant has more of them, nor of their bytes, than there is room left.
"""

MOST_FRESH_BYTES: Final = 32 << 20
AT_ONCE: Final = 16
"""Prompts that are looked at between two turns of the event loop: a millisecond."""

MOST_FAILED: Final = 3
"""A worker that fails so many in a row is sent no more."""

_OVERHEAD: Final = 512


class _Prompt(msgspec.Struct, frozen=True, gc=False):
    sent: SentPrompt
    model: str


class WarmFigures(msgspec.Struct, frozen=True):
    """Prompts and tokens that workers computed before they served, workers that are given some now,
    what is kept for it.
    """

    sent: int
    failed: int
    tokens: int
    waiting: int
    prompts: int
    prompt_bytes: int


class Warmer:
    """Sends a newcomer what `plan_prompts` finds worth most, one prompt at a time.

    One replica does so: of those `replicas` that keep prompts the one that runs longest. All keep
    newcomers out meanwhile.
    """

    def __init__(
        self,
        options: WarmOptions,
        context: RoutingContext,
        replicas: Callable[[], Iterable[RouterHeartbeat]],
        pool: UpstreamPool,
    ) -> None:
        self.kept = KeptPrompts[_Prompt]()
        self.newcomers = Newcomers(options, context.scheduler)
        self.allowance = Allowance(options.share)
        self._options = options
        self._context = context
        self._replicas = replicas
        self._requests = OneTokenRequests(pool, "warm")
        self._fresh: deque[tuple[Wished, str, Hashes, Request, bytes]] = deque()
        self._fresh_bytes = 0
        self._fresh_of: dict[str, tuple[int, int]] = {}
        self._under_way: set[WorkerId] = set()
        self._sent = self._failed = self._tokens = 0

    def keep(self, one: Dispatched, asked: Request) -> None:
        """Take a prompt that is sent; it is looked at later, so that a request is spared the calls.

        Beyond what is looked at in time prompts are not taken: what is kept is a sample.
        """
        made, placed, size = one.made, one.placed, len(asked.body)
        wished: Wished | None = one.wishes if made is None else made
        if wished is None or size > self.kept.options.most_bytes_each:
            return
        count, held = self._fresh_of.get(wished.tenant, (0, 0))
        if count >= MOST_FRESH - len(self._fresh):
            return
        if held + size > MOST_FRESH_BYTES - self._fresh_bytes:
            return
        if made is not None:
            self._fresh.append((made, made.model, made.hashes, asked, asked.body))
        elif placed is not None and placed.hashes is not None:
            self._fresh.append((wished, placed.model, placed.hashes, asked, asked.body))
        else:
            return
        self._fresh_bytes += size
        self._fresh_of[wished.tenant] = count + 1, held + size

    def figures(self) -> WarmFigures:
        """Return the counts."""
        return WarmFigures(
            sent=self._sent,
            failed=self._failed,
            tokens=self._tokens,
            waiting=len(self.newcomers.waiting),
            prompts=len(self.kept),
            prompt_bytes=self.kept.size,
        )

    async def run(self) -> None:
        """Take in what was sent, and warm who joins, for ever."""
        self.screen()
        jobs = Jobs("warm workers")
        try:
            while True:
                await asyncio.sleep(to_next(LOOK_S))
                for _ in range(0, MOST_FRESH, AT_ONCE):  # not for ever: more may come all the time
                    if not self.take_in(AT_ONCE):
                        break
                    await asyncio.sleep(0)  # others have their turn
                for worker in self.look():
                    jobs.start(self.warm(worker))
        finally:
            await jobs.close()

    def take_in(self, most: int = MOST_FRESH) -> int:
        """Look at prompts that were sent; return how many are left to be looked at."""
        size, now = self._context.scheduler.options.block_size, self._context.clock()
        for _ in range(min(most, len(self._fresh))):
            wished, model, hashes, asked, body = self._fresh.popleft()
            sent = sent_prompt(asked)
            read = not (isinstance(wished, RouteRequest) and wished.estimated)
            if sent is not None and read and wished.restriction() == UNRESTRICTED:
                held = len(body) + HASH_BYTES * hashes.blocks + _OVERHEAD
                prompt = _Prompt(sent._replace(body=body), model)
                self.kept.add(hashes, Sent(prompt, held, wished.tenant), size, now)
        if not self._fresh:
            self._fresh_bytes = 0
            self._fresh_of.clear()
        return len(self._fresh)

    def screen(self) -> None:
        """Leave newcomers out of the membership, beside those that its screens leave out."""
        membership = self._context.workers.membership
        membership.screens.append(self.newcomers.screen)
        membership.screen_anew()

    def look(self) -> list[WorkerId]:
        """Return who is to be warmed by this replica from now on."""
        context, now = self._context, self._context.clock()
        context.router.kept_prompts = len(self.kept)
        replicas = [one for one in self._replicas() if not one.draining]
        self._earn(max(1, len(replicas)))
        self.newcomers.armed = len(self.kept) > 0
        self.newcomers.forget(context.asleep.workers)
        self.newcomers.forget(context.workers.membership.unready())
        first = min(replicas, key=_precedence, default=None)
        self.newcomers.sends = first is None or first.router == context.router_id
        held = bool(context.gate.waiting or context.patience.waiting)
        before = self.newcomers.grown_blocks
        self.newcomers.look(now, held=held)
        if not self.newcomers.sends:
            # Who sends next, where the one that sends now leaves, has spent what that one did.
            grown = self.newcomers.grown_blocks - before
            self.allowance.spend(grown * context.scheduler.options.block_size)
            return []
        waiting, size_of = self.newcomers.waiting, context.workers.capacity_blocks
        # Over NATS a worker is there before its first report of what it holds.
        return [one for one in waiting if one not in self._under_way and size_of(one)]

    async def warm(self, worker: WorkerId) -> None:
        """Have a worker compute what it will be asked for, as long as it is kept out for that."""
        self._under_way.add(worker)
        try:
            tokens = await self._send_all(worker)
        finally:
            self._under_way.discard(worker)
        self._context.log.info("worker warmed", worker=worker, tokens=tokens)
        self.newcomers.done(worker)

    async def _send_all(self, worker: WorkerId) -> int:
        failed = total = 0
        for prompt, tokens in await self._plan(worker):
            beat = self._context.router.heartbeats.get(worker)
            if beat is None or worker not in self.newcomers.waiting or failed == MOST_FAILED:
                break
            target = self._fetched(target_of(beat), worker, prompt)
            body = prompt.what.sent.body if target.body is None else target.body
            computed = await self._requests.send(prompt.what.sent._replace(body=body), target)
            if computed is None:
                failed += 1
                self._failed += 1
                continue
            failed = 0
            computed = computed or tokens  # what an engine does not say counts as planned
            self._sent += 1
            self._tokens += computed
            total += computed
            self.allowance.spend(computed)
            self._context.scheduler.overlaps.record(worker, prompt.hashes, self._context.clock())
        return total

    async def _plan(self, worker: WorkerId) -> list[tuple[Kept[_Prompt], int]]:
        """Return what to send, of those prompts that the worker may be given; requests are served
        meanwhile.
        """
        context, scheduler = self._context, self._context.scheduler
        info, now = context.workers.info(worker), context.clock()
        candidates: list[Candidate[_Prompt]] = []
        for number, prompt in enumerate(tuple(self.kept.prompts())):
            if not number % AT_ONCE:
                await asyncio.sleep(0)
            asked = RouteRequest("", prompt.hashes, 0, model=prompt.what.model)
            if asked.kept_from(worker, info) is None:
                held = scheduler.overlaps.find(prompt.hashes, now).overlaps
                here = held.pop(worker, 0)
                candidates.append(Candidate(prompt, here, max(held.values(), default=0)))
        size = scheduler.options.block_size
        room = int(self._options.fill * context.workers.capacity_blocks(worker)) * size
        bounds = WarmBounds(tokens=int(self.allowance.tokens), room=room)
        engines = 1 + len(context.workers.everyone(now))
        return plan_prompts(self.kept.rates(now), candidates, engines, size, bounds)

    def _fetched(self, target: Target, worker: WorkerId, prompt: Kept[_Prompt]) -> Target:
        """Return a target that names whose cache the prompt is taken from, where that is sooner."""
        context, now = self._context, self._context.clock()
        if worker not in context.workers.fetchers:
            return target
        scheduler, size = context.scheduler, context.scheduler.options.block_size
        asked = RouteRequest(
            f"warm-{worker}-{self._sent + self._failed}",
            prompt.hashes,
            prompt.hashes.blocks * size,
            model=prompt.what.model,
            names_source=True,
        )
        found = scheduler.overlaps.find(prompt.hashes, now)
        brought = scheduler.planner.plan(found, asked, size, now).get(worker)
        fetching = Fetching(context.router.heartbeats, prompt.what.sent.body)
        return fetching.name_source(target, brought, asked.request_id)

    def _earn(self, replicas: int) -> None:
        tokens, workers = self._context.routing.tokens, self._context.workers
        size = self._context.scheduler.options.block_size
        most = max(map(workers.capacity_blocks, workers.known), default=0) * size
        self.allowance.earn(tokens.prompt - tokens.saved, replicas, most)


def _precedence(replica: RouterHeartbeat) -> tuple[bool, int, str]:
    """Return by what replicas stand in line to send: who runs longest knows and may spend most."""
    return not replica.prompts, replica.epoch, replica.router


def warmer_of(
    share: float,
    context: RoutingContext,
    replicas: Callable[[], Iterable[RouterHeartbeat]],
    pool: UpstreamPool,
) -> Warmer | None:
    """Return what warms workers, None where it is switched off."""
    return Warmer(WarmOptions(share=share), context, replicas, pool) if share else None
