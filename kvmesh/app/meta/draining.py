"""`/admin/drain` at a meta-router: passed on to the replicas, some of which know the worker."""

import asyncio
import time
from typing import Final

import msgspec

from kvmesh.actors.meta_router import MetaRouter
from kvmesh.app.front.admin_guard import AdminGuard
from kvmesh.app.front.drain_wish import ACCEPTED, PATH, DrainWish, read_wish
from kvmesh.app.front.front import NOT_FOUND, answer_json
from kvmesh.app.front.ports import Ports
from kvmesh.app.serve.engine_paths import BAD_GATEWAY, keys_of
from kvmesh.core.buckets.placing import RouterReplica
from kvmesh.errors import TransportError
from kvmesh.settings.http import HttpSettings
from kvmesh.settings.requests import AdmissionSettings
from kvmesh.transport.http.fetch import error_words, fetch
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.upstream.client import UpstreamPool
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.problem import Problem

TIMEOUT_S: Final = 5.0
HTTP_ERROR: Final = 400


class MetaDraining:
    """Answers for one meta-router. Without --api-keys only this machine may drain workers; replicas
    that ask for a token or a key are sent the client's.
    """

    def __init__(self, meta: MetaRouter, pool: UpstreamPool, settings: HttpSettings) -> None:
        self._meta = meta
        self._pool = pool
        self._checked = settings.api_keys is not None
        self._guard = AdminGuard(AdmissionSettings())

    def mount(self, ports: Ports) -> None:
        """Serve the path where operators are."""
        for door in ports.operated():
            checked = self._checked and ports.asks_for_keys(door)
            door.add("POST", PATH, self._by_key if checked else self._by_place)

    def _by_key(self, exchange: Exchange) -> None:
        self._serve(exchange, None)

    def _by_place(self, exchange: Exchange) -> None:
        self._serve(exchange, self._guard)

    def _serve(self, exchange: Exchange, guard: AdminGuard | None) -> None:
        wish = read_wish(exchange.request, guard)
        exchange.scope.start(self._pass_on(exchange, wish))

    async def _pass_on(self, exchange: Exchange, wish: DrainWish) -> None:
        """Tell every ready replica: one that does not know the worker answers 404."""
        table, now = self._meta.table, time.monotonic()
        replicas = [one for bucket in table.buckets() for one in table.ready(bucket, now)]
        headers = keys_of(exchange.request, self._pool.own_headers)
        answers = await asyncio.gather(*(self._ask(one, wish, headers) for one in replicas))
        if any(status == ACCEPTED for status, _ in answers):
            answer_json(exchange, wish, status=ACCEPTED)
            return
        nobody = NOT_FOUND, f"{PATH}: no ready replica knows a worker {wish.worker[:80]!r}"
        status, text = max(answers, key=lambda one: one[0] != NOT_FOUND, default=nobody)
        exchange.fail(Problem(*(nobody if status == NOT_FOUND else (status, text))))

    async def _ask(
        self, replica: RouterReplica, wish: DrainWish, headers: Headers
    ) -> tuple[int, str]:
        try:
            status, body = await fetch(
                self._pool,
                replica.url,
                PATH,
                timeout_s=TIMEOUT_S,
                headers=headers,
                json=msgspec.json.encode(wish),
            )
        except TransportError as error:
            return BAD_GATEWAY, f"{PATH}: replica {replica.name}: {error}"
        if status != ACCEPTED and status < HTTP_ERROR:
            return BAD_GATEWAY, f"{PATH}: replica {replica.name} answers {status}, not {ACCEPTED}"
        return status, f"{PATH}: replica {replica.name}: {error_words(body)}"
