"""What a worker that leaves keeps alone is computed where its next requests will go."""

import asyncio
from collections.abc import Sequence
from math import inf
from typing import Final

from kvmesh.app.serve.prefix_sender import MOST_FAILED, PrefixSender
from kvmesh.app.serve.prompt_keeper import KeptPrompt, KeptRequest, PromptKeeper
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.buckets.placing import rendezvous
from kvmesh.core.cost.terms import Candidate as Home
from kvmesh.core.members.loads import Demand
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.core.warming.leaving import next_home, worth_moving
from kvmesh.core.warming.newcomers import WarmOptions
from kvmesh.core.warming.plan import Candidate, WarmBounds, plan_prompts
from kvmesh.errors import NoWorkerError
from kvmesh.tasks import to_next

AGAIN_S: Final = 2.0
"""While a worker drains it is looked so often what else is worth it: its last requests end, and
what failed is tried again.
"""

LONGEST_S: Final = 30.0
"""For so long what was planned is sent, also once the worker is gone: sidecars end at once."""

_WAIT_S: Final = 0.25


class HandOver:
    """Sends what `plan_prompts` finds worth most of what a draining worker alone keeps, one prompt
    at a time, to the workers that the scheduler would choose for it.

    Sessions and programs follow: their next requests are decided by who holds their prefixes. These
    requests are booked, so that others avoid the worker meanwhile, at all replicas. Each replica
    sends what it has sent before: first what begins with a block that is its own by rendezvous
    hash, then the rest that nobody has computed by then, so that no two send the same.
    """

    def __init__(
        self,
        options: WarmOptions,
        context: RoutingContext,
        keeper: PromptKeeper,
        sender: PrefixSender,
    ) -> None:
        self._options = options
        self._context = context
        self._keeper = keeper
        self._sender = sender
        self._next_s: dict[WorkerId, float] = {}
        self._given: dict[WorkerId, int] = {}
        self._replicas: Sequence[str] = ()
        self._begun: set[WorkerId] = set()
        self._number = 0

    def look(self, replicas: Sequence[str]) -> list[WorkerId]:
        """Return the workers whose prompts are to be handed over from now on; `replicas` do so,
        this one among them. O(members).
        """
        self._replicas = replicas
        context, now = self._context, self._context.clock()
        if context.scheduler.options.mode != "kv":
            return []
        leaving = [WorkerId(one) for one in context.workers.membership.draining()]
        self._next_s = {one: self._next_s.get(one, now) for one in leaving}
        self._begun.intersection_update(leaving)
        if not leaving:
            self._given.clear()
        return [one for one, next_s in self._next_s.items() if next_s <= now]

    async def hand_over(self, worker: WorkerId) -> None:
        """Have others compute what this worker alone keeps, unless it drains no more."""
        self._next_s[worker] = inf  # until this has ended
        try:
            prompts, tokens = await self._send_all(worker)
        finally:
            if worker in self._next_s:
                self._next_s[worker] = self._context.clock() + AGAIN_S
        if prompts:
            log = self._context.log
            log.info("worker handed over", worker=worker, prompts=prompts, tokens=tokens)

    async def _send_all(self, worker: WorkerId) -> tuple[int, int]:
        """Return how many prompts were computed elsewhere, and how many tokens of them."""
        sent = tokens = failed = 0
        ends_s = self._context.clock() + LONGEST_S
        for prompt, _ in await self._plan(worker):
            home = await self._choose(worker, prompt, ends_s)
            if home is None or failed == MOST_FAILED:
                break
            if home.overlap_blocks >= prompt.hashes.blocks:
                continue  # a request of its client came first
            computed = await self._send(prompt, home)
            failed = failed + 1 if computed is None else 0
            sent += computed is not None
            tokens += computed or 0
        return sent, tokens

    async def _plan(self, worker: WorkerId) -> list[tuple[KeptPrompt, int]]:
        """Return what to send, what saves most first."""
        context, scheduler = self._context, self._context.scheduler
        leaving, now = context.workers.membership.draining(), context.clock()
        begins = worker not in self._begun
        self._begun.add(worker)
        candidates: list[Candidate[KeptRequest]] = []
        async for prompt, held in self._keeper.find_all():
            candidate = worth_moving(prompt, held, worker, leaving)
            if candidate is not None and not (begins and self._is_others(prompt)):
                candidates.append(candidate)
        size = scheduler.options.block_size
        bounds = WarmBounds(
            tokens=int(self._sender.allowance.tokens),
            room=self._room() * size,
            least_rate=self._options.moved_rate,
        )
        return plan_prompts(self._keeper.kept.rates(now), candidates, 1, size, bounds)

    def _is_others(self, prompt: KeptPrompt) -> bool:
        """Return whether another replica sends what begins like this before all others do."""
        names = self._replicas
        return len(names) > 1 and rendezvous(names, prompt.marks[0]) != self._context.router_id

    def _room(self) -> int:
        """Return how many blocks those that stay have for it beside what runs there."""
        workers, loads = self._context.workers, self._context.scheduler.sequences.loads
        fill, staying = self._options.fill, workers.everyone(self._context.clock())
        room = (fill * workers.capacity_blocks(one) - loads(one).active_blocks for one in staying)
        return int(sum(max(0.0, one) for one in room))

    async def _choose(self, leaver: WorkerId, prompt: KeptPrompt, ends_s: float) -> Home | None:
        """Return where the scheduler would send a prompt, once that worker is idle; None: nowhere,
        its time is over, or the leaver drains no more.
        """
        scheduler = self._context.scheduler
        tokens = prompt.hashes.blocks * scheduler.options.block_size
        asked = RouteRequest("", prompt.hashes, tokens, model=prompt.what.model, streams=False)
        while (now := self._context.clock()) < ends_s and self._leaves(leaver):
            try:
                decision = scheduler.explain(asked, now)
            except NoWorkerError:
                return None
            home = next_home(decision, self._given)
            if home.wait_ms <= self._options.idle_ms:
                return home
            await asyncio.sleep(to_next(_WAIT_S))
        return None

    def _leaves(self, worker: WorkerId) -> bool:
        """Return whether a worker drains, or is gone since."""
        membership = self._context.workers.membership
        return worker not in membership or worker in membership.draining()

    async def _send(self, prompt: KeptPrompt, home: Home) -> int | None:
        """Return how many tokens a worker computed of a prompt; None: it did not."""
        context, sequences = self._context, self._context.scheduler.sequences
        self._number += 1
        name = f"hand-over-{context.router_id}-{self._number}"
        tokens = prompt.hashes.blocks * context.scheduler.options.block_size
        demand = Demand(tokens, home.uncached_tokens, streams=False)
        sequences.add(name, home.worker, demand, context.clock())
        context.report_booked(name)
        try:
            computed = await self._sender.send(home.worker, prompt, home.uncached_tokens)
        finally:
            context.take_back(name)
        self._given[home.worker] = self._given.get(home.worker, 0) + (computed or 0)
        return computed
