"""How a router learns of workers and caches, by its settings; loads that way and no other."""

from collections.abc import Callable

import msgspec

from kvmesh.actors.members.router import Router
from kvmesh.app.engines.worker_option import parse_workers
from kvmesh.app.mesh.router_mesh import MeshPart
from kvmesh.core.index.index import KvIndex
from kvmesh.core.members.url_guard import UrlGuard
from kvmesh.settings.roles import RouterSettings
from kvmesh.transport.http.upstream.client import UpstreamPool


class RouterParts(msgspec.Struct, frozen=True):
    """What of a router its part in the mesh works on. `secret` keys the hashes of blocks."""

    router_id: str
    router: Router
    index: KvIndex
    guard: UrlGuard
    secret: bytes


def find_mesh(
    settings: RouterSettings, parts: RouterParts, pool: Callable[[], UpstreamPool]
) -> MeshPart:
    """Return a router's part in the mesh. Raises `ConfigError`."""
    if settings.worker or settings.discover:
        return _own_workers(settings, parts, pool)
    if not settings.kv_events:
        from kvmesh.app.mesh.sharing_mesh import SharingMesh  # noqa: PLC0415  one of three

        return SharingMesh(settings, parts.router_id, parts.router, None)
    from kvmesh.app.mesh.mesh import RouterMesh  # noqa: PLC0415  one of three

    return RouterMesh(settings, parts.router_id, parts.router, parts.index)


def _own_workers(
    settings: RouterSettings, parts: RouterParts, pool: Callable[[], UpstreamPool]
) -> MeshPart:
    """Return what follows the engines of the command line, alone or among siblings."""
    from kvmesh.app.alone.discovery import Discovery, parse_source  # noqa: PLC0415  with ZMQ
    from kvmesh.app.alone.static_workers import StaticOptions, StaticWorkers  # noqa: PLC0415

    static = StaticWorkers(
        parse_workers(settings.worker, empty=bool(settings.discover)),
        parts.router,
        StaticOptions(settings.bucket, parts.secret, settings.probe_panic),
        parts.index if settings.kv_events else None,
        pool,
    )
    if settings.discover:
        sources = [parse_source(text) for text in settings.discover]
        most = settings.max_workers
        static.discover_by(Discovery(sources, settings.worker, parts.guard, most=most))
    if not settings.nats.nats_url:
        return static
    from kvmesh.app.mesh.sharing_mesh import SharingMesh  # noqa: PLC0415  not alone

    return SharingMesh(settings, parts.router_id, parts.router, static)
