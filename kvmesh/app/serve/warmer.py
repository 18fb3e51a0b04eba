"""Gives workers that join the prefixes that will be asked for, and those that stay what only one
that leaves keeps: sends kept prompts, for one token.
"""

import asyncio
from collections.abc import Callable, Iterable, Mapping
from typing import Final

import msgspec

from kvmesh.actors.messages import RouterHeartbeat
from kvmesh.app.serve.hand_over import HandOver
from kvmesh.app.serve.prefix_sender import MOST_FAILED, PrefixSender, SentFigures
from kvmesh.app.serve.prompt_keeper import KeptPrompt, KeptRequest, PromptKeeper
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.core.warming.leaving import Losses
from kvmesh.core.warming.newcomers import Allowance, Newcomers, WarmOptions
from kvmesh.core.warming.plan import Candidate, WarmBounds, plan_prompts
from kvmesh.tasks import Jobs, to_next
from kvmesh.transport.http.upstream.client import UpstreamPool

LOOK_S: Final = 0.25
FORETOLD_S: Final = 15.0
"""So old is what is foretold of losses, at most: it takes a look into the index for each prompt."""


class WarmFigures(msgspec.Struct, frozen=True):
    """What workers computed before they served, and of what another one kept that left; workers
    that are given some now, what is kept for it.
    """

    warmed: SentFigures
    handed_over: SentFigures
    waiting: int
    prompts: int
    prompt_bytes: int


class Warmer:
    """Sends a newcomer what `plan_prompts` finds worth most, one prompt at a time, and has
    prompts handed over (`leaving`).

    One of the `replicas` warms: of those that keep prompts the one that runs longest. All keep
    newcomers out meanwhile, and all hand over, each what it has sent.
    `alone_tokens` are those expected to be asked for that one worker alone keeps, by worker.
    """

    def __init__(
        self,
        options: WarmOptions,
        context: RoutingContext,
        replicas: Callable[[], Iterable[RouterHeartbeat]],
        pool: UpstreamPool,
    ) -> None:
        self.alone_tokens: Mapping[WorkerId, float] = {}
        self.keeper = PromptKeeper(context)
        self.keep = self.keeper.keep
        self.newcomers = Newcomers(options, context.scheduler)
        self.allowance = Allowance(options.share)
        self._handing = PrefixSender(context, pool, Allowance(options.share), "hand-over")
        self.leaving = HandOver(options, context, self.keeper, self._handing)
        self._warming = PrefixSender(context, pool, self.allowance, "warm")
        self._options = options
        self._context = context
        self._replicas = replicas
        self._under_way: set[WorkerId] = set()
        self._foretold_s = 0.0

    def figures(self) -> WarmFigures:
        """Return the counts."""
        return WarmFigures(
            warmed=self._warming.figures(),
            handed_over=self._handing.figures(),
            waiting=len(self.newcomers.waiting),
            prompts=len(self.keeper.kept),
            prompt_bytes=self.keeper.kept.size,
        )

    async def run(self) -> None:
        """Take in what was sent, and warm who joins, for ever."""
        self.screen()
        jobs = Jobs("warm workers")
        try:
            while True:
                await asyncio.sleep(to_next(LOOK_S))
                await self.keeper.take_in_all()
                for worker in self.look():
                    jobs.start(self.warm(worker))
                for worker in self.leaving.look(self._names()):
                    jobs.start(self.leaving.hand_over(worker))
                await self.foretell()
        finally:
            await jobs.close()

    def screen(self) -> None:
        """Leave newcomers out of the membership, beside those that its screens leave out."""
        membership = self._context.workers.membership
        membership.screens.append(self.newcomers.screen)
        membership.screen_anew()

    def look(self) -> list[WorkerId]:
        """Return who is to be warmed by this replica from now on."""
        context, now = self._context, self._context.clock()
        context.router.kept_prompts = len(self.keeper.kept)
        replicas = [one for one in self._replicas() if not one.draining]
        self._earn(max(1, len(replicas)))
        self.newcomers.armed = len(self.keeper.kept) > 0
        self.newcomers.forget(context.asleep.workers)
        self.newcomers.forget(context.workers.membership.lost())
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
        return [one for one in self.newcomers.waiting if self._may_begin(one)]

    def _may_begin(self, worker: WorkerId) -> bool:
        newcomers = self.newcomers
        if worker in self._under_way or newcomers.is_out(worker) or newcomers.is_behind(worker):
            return False
        return self._blocks_of(worker) > 0

    async def warm(self, worker: WorkerId) -> None:
        """Have a worker compute what it will be asked for, as long as it is kept out for that."""
        self._under_way.add(worker)
        try:
            tokens = await self._send_all(worker)
        finally:
            self._under_way.discard(worker)
        self._context.log.info("worker warmed", worker=worker, tokens=tokens)
        self.newcomers.done(worker)

    async def foretell(self) -> None:
        """Sum anew what would be computed again if a worker left, unless that was done of late."""
        context, now = self._context, self._context.clock()
        if now - self._foretold_s < FORETOLD_S:
            return
        self._foretold_s = now
        leaving = context.workers.membership.draining()
        rates = self.keeper.kept.rates(now)
        losses = Losses(rates, leaving, context.scheduler.options.block_size)
        async for prompt, held in self.keeper.find_all():
            losses.add(prompt, held)
        self.alone_tokens = losses.tokens

    def _names(self) -> list[str]:
        """Return the replicas that do not drain, sorted; this one where none is known."""
        names = sorted(one.router for one in self._replicas() if not one.draining)
        return names or [self._context.router_id]

    async def _send_all(self, worker: WorkerId) -> int:
        failed = total = 0
        for prompt, tokens in await self._plan(worker):
            here = worker in self._context.router.heartbeats
            if not here or worker not in self.newcomers.waiting or failed == MOST_FAILED:
                break
            computed = await self._warming.send(worker, prompt, tokens)
            failed = failed + 1 if computed is None else 0
            total += computed or 0
        return total

    async def _plan(self, worker: WorkerId) -> list[tuple[KeptPrompt, int]]:
        """Return what to send, of those prompts that the worker may be given."""
        context, scheduler = self._context, self._context.scheduler
        info, now = context.workers.info(worker), context.clock()
        candidates: list[Candidate[KeptRequest]] = []
        async for prompt, held in self.keeper.find_all():
            asked = RouteRequest("", prompt.hashes, 0, model=prompt.what.model)
            if asked.kept_from(worker, info) is None:
                elsewhere = max((n for one, n in held.items() if one != worker), default=0)
                candidates.append(Candidate(prompt, held.get(worker, 0), elsewhere))
        size = scheduler.options.block_size
        room = int(self._options.fill * self._blocks_of(worker)) * size
        bounds = WarmBounds(tokens=int(self.allowance.tokens), room=room)
        engines = 1 + len(context.workers.everyone(now))
        return plan_prompts(self.keeper.kept.rates(now), candidates, engines, size, bounds)

    def _blocks_of(self, worker: WorkerId) -> int:
        """Return the KV blocks of an engine; one that has just come may not have reported them yet,
        and is taken for no larger than any other. 0 when nobody has.
        """
        workers = self._context.workers
        others = filter(None, map(workers.capacity_blocks, workers.known))
        return workers.capacity_blocks(worker) or min(others, default=0)

    def _earn(self, replicas: int) -> None:
        tokens, workers = self._context.routing.tokens, self._context.workers
        size = self._context.scheduler.options.block_size
        most = max(map(workers.capacity_blocks, workers.known), default=0) * size
        computed = tokens.prompt - tokens.saved
        self.allowance.earn(computed, replicas, most)
        self._handing.allowance.earn(computed, 1, most)


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
