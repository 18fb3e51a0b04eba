"""Has workers compute kept prompts, or fetch them from another worker's cache, within a budget."""

from typing import Final

import msgspec

from kvmesh.app.serve.fetching import Fetching
from kvmesh.app.serve.one_token import OneTokenRequests
from kvmesh.app.serve.prompt_keeper import KeptPrompt
from kvmesh.app.serve.routing_context import RoutingContext, target_of
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.core.warming.newcomers import Allowance
from kvmesh.transport.http.forward.plan import Target
from kvmesh.transport.http.upstream.client import UpstreamPool

MOST_FAILED: Final = 3
"""After so many failures in a row nothing more of a plan is sent."""


class SentFigures(msgspec.Struct, frozen=True):
    """Prompts that were computed for one purpose, those that were not, and tokens."""

    sent: int
    failed: int
    tokens: int


class PrefixSender:
    """Sends prompts one after another for a purpose, whose `name` begins the ids of requests. What
    they compute is taken from the `allowance`, which others may take from, too.
    """

    def __init__(
        self, context: RoutingContext, pool: UpstreamPool, allowance: Allowance, name: str
    ) -> None:
        self.allowance = allowance
        self._context = context
        self._requests = OneTokenRequests(pool, name)
        self._name = name
        self._sent = self._failed = self._tokens = 0

    def figures(self) -> SentFigures:
        """Return the counts."""
        return SentFigures(self._sent, self._failed, self._tokens)

    async def send(self, worker: WorkerId, prompt: KeptPrompt, tokens: int) -> int | None:
        """Return how many tokens the worker computed, `tokens` if its engine does not say; None: it
        did not. Raises `KeyError` for a worker that is gone.
        """
        context = self._context
        target = self._fetched(target_of(context.router.heartbeats[worker]), worker, prompt)
        body = prompt.what.sent.body if target.body is None else target.body
        computed = await self._requests.send(prompt.what.sent._replace(body=body), target)
        if computed is None:
            self._failed += 1
            return None
        computed = computed or tokens
        self._sent += 1
        self._tokens += computed
        self.allowance.spend(computed)
        context.scheduler.overlaps.record(worker, prompt.hashes, context.clock())
        return computed

    def _fetched(self, target: Target, worker: WorkerId, prompt: KeptPrompt) -> Target:
        """Return a target that names whose cache the prompt is taken from, where that is sooner."""
        context, now = self._context, self._context.clock()
        if worker not in context.workers.fetchers:
            return target
        scheduler, size = context.scheduler, context.scheduler.options.block_size
        asked = RouteRequest(
            f"{self._name}-{worker}-{self._sent + self._failed}",
            prompt.hashes,
            prompt.hashes.blocks * size,
            model=prompt.what.model,
            names_source=True,
        )
        found = scheduler.overlaps.find(prompt.hashes, now)
        brought = scheduler.planner.plan(found, asked, size, now).get(worker)
        fetching = Fetching(context.router.heartbeats, prompt.what.sent.body)
        return fetching.name_source(target, brought, asked.request_id)
