"""Paths by which operators change engines: asked of all of them at once, an answer for each."""

import asyncio
import time
from collections.abc import Mapping
from typing import Final
from urllib.parse import parse_qs, urlencode

from kvmesh.actors.messages import WorkerHeartbeat
from kvmesh.app.front.admin_guard import AdminGuard
from kvmesh.app.front.fleet_pages import read_body
from kvmesh.app.front.front import NOT_FOUND, Routes, answer_json
from kvmesh.app.serve.engine_paths import (
    BAD_GATEWAY,
    LOADS,
    MOST_TEXT,
    OPERATED,
    RESETS,
    SLEEPS,
    TIMEOUT_S,
    UNLOADS,
    WAKES,
    WEIGHTS,
    Answers,
    EngineAnswer,
    adapter_of,
    asked_before,
    is_whole_wake,
    keys_of,
)
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.outcomes import SUCCESS
from kvmesh.errors import TransportError
from kvmesh.transport.http.fetch import fetch
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.upstream.client import UpstreamPool
from kvmesh.transport.http.wire.problem import Problem

AT_ONCE: Final = 32
SEEN_S: Final = 6.0
"""How long an answer about an adapter waits until heartbeats tell of it."""

CONFLICT: Final = 409
_FAILED: Final = {"success": False}
"""What an engine answers, with status 200, whose requests under way hold blocks."""

_LOOK_S: Final = 0.05


class EngineOperations:
    """Answers for one router. Without --api-keys only who may change a router may change engines;
    with them the key's role was checked before.
    """

    def __init__(
        self, context: RoutingContext, pool: UpstreamPool, guard: AdminGuard | None
    ) -> None:
        self._context = context
        self._pool = pool
        self._guard = guard
        self._slots = asyncio.Semaphore(AT_ONCE)

    def mount(self, routes: Routes) -> None:
        """Serve the paths."""
        for path in sorted(OPERATED):
            routes.add("POST", path, self.serve)

    def serve(self, exchange: Exchange) -> None:
        """Ask the engines, answer when all have answered."""
        if self._guard is not None:
            self._guard.check(exchange.request, exchange.request.path)
        exchange.scope.start(self._serve(exchange))

    async def _serve(self, exchange: Exchange) -> None:
        request = exchange.request
        before = asked_before(request)
        engines, query = self._chosen(request, before)
        if not engines and not before:
            text = f"{request.path}: no worker of this router is what worker= and model= name"
            exchange.fail(Problem(NOT_FOUND, text, "no_worker_named"))
            return
        found = await asyncio.gather(*(self._ask(request, query, one) for one in engines))
        answers = Answers(
            {str(one[0].worker): told for one, told in zip(engines, found, strict=True)}
        )
        named = {name: one.status for name, one in answers.workers.items()} | before
        succeeded = [self._ranks(WorkerId(one)) for one, code in named.items() if code in SUCCESS]
        await self._follow(request, [beat for ranks in succeeded for beat in ranks])
        answer_json(exchange, answers, status=answers.status())

    def _chosen(
        self, request: Request, before: Mapping[str, int]
    ) -> tuple[list[list[WorkerHeartbeat]], str]:
        """Return the ranks of each engine to be asked, and the query that it is sent."""
        query = parse_qs(request.query, keep_blank_values=True)
        names, models = query.pop("worker", []), query.pop("model", [])
        engines: dict[str, list[WorkerHeartbeat]] = {}
        for beat in self._context.router.workers():
            if names and beat.worker not in names:
                continue
            if models and not set(models) & set(beat.models):
                continue
            engines.setdefault(beat.url, []).append(beat)
        fresh = [one for one in engines.values() if not any(rank.worker in before for rank in one)]
        return fresh, urlencode(query, doseq=True)

    def _ranks(self, worker: WorkerId) -> list[WorkerHeartbeat]:
        """Return the workers at the URL of one."""
        beats = self._context.router.heartbeats
        known = beats.get(worker)
        return [] if known is None else [one for one in beats.values() if one.url == known.url]

    async def _ask(
        self, request: Request, query: str, ranks: list[WorkerHeartbeat]
    ) -> EngineAnswer:
        path, asleep = request.path, self._context.asleep
        url, names = ranks[0].url, [one.worker for one in ranks]
        before = [one for one in names if one in asleep.workers]
        asleep.busy.add(url)
        if path in SLEEPS:
            asleep.note(names, asleep=True)
        try:
            async with self._slots:
                answer = await self._post(url, f"{path}?{query}" if query else path, request)
                if answer.status in SUCCESS and path in WEIGHTS and ranks[0].engine_kind == "":
                    await self._post(url, "/reset_prefix_cache", request, body=b"")
        finally:
            asleep.busy.discard(url)
        if path in SLEEPS and answer.status not in SUCCESS:
            asleep.note(set(names).difference(before), asleep=False)
        return answer

    async def _post(
        self, url: str, path: str, request: Request, *, body: bytes | None = None
    ) -> EngineAnswer:
        sent = request.body if body is None else body
        keys = keys_of(request, self._pool.own_headers)
        try:
            status, told = await fetch(
                self._pool,
                url,
                path,
                timeout_s=TIMEOUT_S,
                headers=keys,
                json=sent,
            )
        except TransportError as error:
            self._context.log.warning("engine was not changed", path=path, error=str(error))
            return EngineAnswer(BAD_GATEWAY, {"error": "the engine gave no answer"})
        found = read_body(told, MOST_TEXT)
        if path.partition("?")[0] in RESETS and found == _FAILED:
            status = CONFLICT
        return EngineAnswer(status, found)

    async def _follow(self, request: Request, beats: list[WorkerHeartbeat]) -> None:
        """Have routing follow what engines were told with success."""
        path, context = request.path, self._context
        names = [one.worker for one in beats]
        if path in WAKES and is_whole_wake(request.query):
            context.asleep.note(names, asleep=False)
        elif path in SLEEPS:
            context.asleep.note(names, asleep=True)
        if path in RESETS | WEIGHTS or path in {"/sleep", "/release_memory_occupation"}:
            for worker in names:
                context.scheduler.overlaps.remove_worker(worker)
                context.emptied(worker)
        if path in LOADS | UNLOADS and (adapter := adapter_of(request.body)):
            await self._seen(names, adapter, there=path in LOADS)

    async def _seen(self, names: list[WorkerId], adapter: str, *, there: bool) -> None:
        """Wait until the heartbeats of all tell of the adapter, or no more."""
        beats, until_s = self._context.router.heartbeats, time.monotonic() + SEEN_S
        while time.monotonic() < until_s:
            known = [beats[one] for one in names if one in beats]
            if all((adapter in one.models) == there for one in known):
                return
            await asyncio.sleep(_LOOK_S)
