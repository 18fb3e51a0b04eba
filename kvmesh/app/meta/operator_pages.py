"""What operators see and change through a meta-router: engines, workers that drain, settings."""

import time

import msgspec

from kvmesh.actors.meta_router import MetaRouter
from kvmesh.app.front.front import Routes, answer_json
from kvmesh.app.front.ports import Ports
from kvmesh.app.front.viewers import Viewers
from kvmesh.app.meta.draining import MetaDraining
from kvmesh.app.meta.engine_operations import MetaOperations
from kvmesh.app.serve.engine_paths import keys_of
from kvmesh.app.views.settings_page import PATH, ProcessSettings, SettingsPage, SettingsView
from kvmesh.bounds import UNREADABLE
from kvmesh.settings.roles import MetaRouterSettings
from kvmesh.transport.http.fetch import fetch_ok
from kvmesh.transport.http.server.exchange import Exchange
from kvmesh.transport.http.upstream.client import UpstreamPool
from kvmesh.transport.http.wire.headers import Headers


class OperatorPages:
    """Answers for one meta-router; settings are its own and those of one replica of each bucket."""

    def __init__(
        self, meta: MetaRouter, pool: UpstreamPool, settings: MetaRouterSettings, viewers: Viewers
    ) -> None:
        self._meta = meta
        self._pool = pool
        self._http = settings.http
        self._viewers = viewers
        self._own = SettingsPage("meta-router", "meta-router", settings, dict, viewers)

    def mount(self, routes: Routes, ports: Ports) -> None:
        """Serve the paths: those of engines on `routes`."""
        MetaOperations(self._meta, self._pool, self._http).mount(routes)
        MetaDraining(self._meta, self._pool, self._http).mount(ports)
        for door in ports.operated():
            door.add("GET", PATH, self._settings)

    def _settings(self, exchange: Exchange) -> None:
        self._viewers.refuse_tenants(exchange.request)
        exchange.scope.start(self._show(exchange))

    async def _show(self, exchange: Exchange) -> None:
        headers, found = keys_of(exchange.request, self._pool.own_headers), [self._own.own()]
        table, now = self._meta.table, time.monotonic()
        for ready in (table.ready(bucket, now) for bucket in table.buckets()):
            for replica in ready[:1]:
                found += await self._ask(replica.url, headers)
        answer_json(exchange, SettingsView(found))

    async def _ask(self, url: str, headers: Headers) -> list[ProcessSettings]:
        """Return a replica's settings; nothing of one that does not show them."""
        body = await fetch_ok(self._pool, url, PATH, headers=headers)
        try:
            return [] if body is None else msgspec.json.decode(body, type=SettingsView).processes
        except UNREADABLE:
            return []
