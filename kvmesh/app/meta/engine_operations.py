"""What operators do to engines, through a meta-router: every replica hears of it, each engine once.

The replicas are asked one after the other, each told what the engines answered that were asked
before: it asks the others, and follows all of it.
"""

import time

import msgspec

from kvmesh.actors.meta_router import MetaRouter
from kvmesh.app.front.admin_guard import AdminGuard
from kvmesh.app.front.fleet_pages import read_body
from kvmesh.app.front.front import NOT_FOUND, Routes, answer_json
from kvmesh.app.serve.engine_paths import (
    ASKED,
    BAD_GATEWAY,
    MOST_TEXT,
    OPERATED,
    TIMEOUT_S,
    Answers,
    EngineAnswer,
    in_header,
    keys_of,
)
from kvmesh.bounds import UNREADABLE
from kvmesh.errors import RequestError, TransportError
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.requests import AdmissionSettings
from kvmesh.transport.http.fetch import fetch
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.upstream.client import UpstreamPool
from kvmesh.transport.http.wire.problem import Problem


class MetaOperations:
    """Answers for one meta-router. Without --api-keys only this machine may change engines, and
    replicas that ask for a token are sent the client's.
    """

    def __init__(self, meta: MetaRouter, pool: UpstreamPool, settings: HttpSettings) -> None:
        self._meta = meta
        self._pool = pool
        self._guard = None if settings.api_keys else AdminGuard(AdmissionSettings())

    def mount(self, routes: Routes) -> None:
        """Serve the paths."""
        for path in sorted(OPERATED):
            routes.add("POST", path, self.serve)
        for method in ("GET", "POST", "DELETE"):
            routes.add(method, "/workers", _refuse_workers)
        routes.add_prefix("/workers/", _refuse_workers)

    def serve(self, exchange: Exchange) -> None:
        """Ask the replicas, answer when all have answered."""
        if self._guard is not None:
            self._guard.check(exchange.request, exchange.request.path)
        exchange.scope.start(self._serve(exchange))

    async def _serve(self, exchange: Exchange) -> None:
        table, now = self._meta.table, time.monotonic()
        replicas = [one for bucket in table.buckets() for one in table.ready(bucket, now)]
        answers = Answers({})
        for one in replicas:
            answers.workers.update(
                await self._ask(exchange.request, one.name, one.url, answers.workers)
            )
        if answers.workers:
            answer_json(exchange, answers, status=answers.status())
        else:
            text = f"{exchange.request.path}: no worker of any replica that is ready is meant"
            exchange.fail(Problem(NOT_FOUND, text, "no_worker_named"))

    async def _ask(
        self, request: Request, name: str, url: str, before: dict[str, EngineAnswer]
    ) -> dict[str, EngineAnswer]:
        """Return what a replica says of engines, or what it answered instead, as its own."""
        headers = [*keys_of(request, self._pool.own_headers)]
        if before:
            headers.append((ASKED, in_header(before)))
        target = request.target.decode("ascii")
        try:
            status, body = await fetch(
                self._pool, url, target, timeout_s=2 * TIMEOUT_S, headers=headers, json=request.body
            )
        except TransportError:
            return {f"replica {name}": EngineAnswer(BAD_GATEWAY, "the replica gave no answer")}
        try:
            return msgspec.json.decode(body, type=Answers).workers
        except UNREADABLE:
            if status == NOT_FOUND:
                return {}  # none of its workers is meant
            return {f"replica {name}": EngineAnswer(status, read_body(body, MOST_TEXT))}


def _refuse_workers(exchange: Exchange) -> None:
    raise RequestError(
        f"{exchange.request.path:.80}: workers are registered at a router, not at a meta-router",
        status=501,
    )
