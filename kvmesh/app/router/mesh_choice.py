"""How a router learns of workers and caches, by its settings; loads that way and no other."""

from collections.abc import Callable
from typing import Final, Literal

import msgspec

from kvmesh.actors.router import Router
from kvmesh.app.members.worker_option import parse_workers
from kvmesh.app.mesh.router_mesh import MeshPart
from kvmesh.app.picker.pool_view import PoolView
from kvmesh.app.router.registered_workers import RegisteredWorkers
from kvmesh.core.index.index import KvIndex
from kvmesh.core.members.url_guard import UrlGuard
from kvmesh.errors import ConfigError
from kvmesh.observe import get_logger
from kvmesh.settings.roles import RouterSettings
from kvmesh.transport.http.upstream.client import UpstreamPool

LOCAL_NATS: Final = "nats://127.0.0.1:4222"
"""Where a mesh is looked for when nothing names one."""

POOL: Final = "inference-pool"
"""What --discover calls the pods of --inference-pool."""


class RouterParts(msgspec.Struct, frozen=True):
    """What of a replica its part in the mesh works on. `secret` keys the hashes of blocks, `pool`
    is that of --inference-pool, `registered` are workers that come by HTTP, None: none may.
    """

    router_id: str
    router: Router
    index: KvIndex
    guard: UrlGuard
    secret: bytes
    role: Literal["router", "picker"] = "router"
    pool: PoolView | None = None
    registered: RegisteredWorkers | None = None


def find_pool(settings: RouterSettings) -> PoolView | None:
    """Return the pool of --inference-pool, not watched yet; None without. Raises `ConfigError`."""
    if not settings.pool.inference_pool:
        if POOL in settings.discover:
            raise ConfigError(f"--discover {POOL}: say which by --inference-pool NAMESPACE/NAME")
        return None
    try:
        from kvmesh.app.picker.pool import watch_pool  # noqa: PLC0415  an extra
    except ModuleNotFoundError as error:
        raise ConfigError(
            f"--inference-pool needs {error.name}: pip install 'kvmesh[kubernetes]'"
        ) from error
    return watch_pool(settings.pool)


def is_alone(settings: RouterSettings) -> bool:
    """Return whether a router has workers of its own and no sibling, so that no other process
    shares its hashes.
    """
    own = bool(settings.worker or settings.discover or settings.pool.inference_pool)
    return own and not settings.nats.nats_url


def registered_workers(settings: RouterSettings, guard: UrlGuard) -> RegisteredWorkers | None:
    """Return the workers that come by HTTP; None where workers come from the mesh, and where each
    request meets another of several processes.
    """
    own = settings.worker or settings.discover or is_alone(settings)
    return RegisteredWorkers(settings.worker, guard) if own and settings.processes == 1 else None


def find_mesh(
    settings: RouterSettings, parts: RouterParts, pool: Callable[[], UpstreamPool]
) -> MeshPart:
    """Return a router's part in the mesh. Raises `ConfigError`."""
    if settings.worker or settings.discover or is_alone(settings):
        return _own_workers(settings, parts, pool)
    if not settings.nats.nats_url:
        get_logger().warning(
            "no --worker and no --nats-url: this router joins the mesh of a local NATS server",
            nats=LOCAL_NATS,
            remedy="without a mesh name the engines: --worker http://HOST:PORT, one each; with "
            "one its server: --nats-url nats://HOST:4222",
        )
    if parts.pool is not None:
        from kvmesh.app.picker.pool_members import PoolMembers  # noqa: PLC0415  where there is a pool

        PoolMembers(parts.pool, parts.router)
    if not settings.kv_events:
        from kvmesh.app.mesh.sharing_mesh import SharingMesh  # noqa: PLC0415  one of three

        return SharingMesh(settings, parts.router_id, parts.router, None, role=parts.role)
    from kvmesh.app.mesh.mesh import RouterMesh  # noqa: PLC0415  one of three

    return RouterMesh(settings, parts.router_id, parts.router, parts.index, role=parts.role)


def _own_workers(
    settings: RouterSettings, parts: RouterParts, pool: Callable[[], UpstreamPool]
) -> MeshPart:
    """Return what follows the engines of the command line, alone or among siblings."""
    from kvmesh.app.mesh.discovery import (  # noqa: PLC0415  with ZMQ
        Discovery,
        PoolSource,
        Source,
        parse_source,
    )
    from kvmesh.app.mesh.static_workers import StaticOptions, StaticWorkers  # noqa: PLC0415

    listed = parts.pool is not None or bool(settings.discover)
    static = StaticWorkers(
        parse_workers(settings.worker, empty=listed),
        parts.router,
        StaticOptions(settings.bucket, parts.secret),
        parts.index if settings.kv_events else None,
        pool,
    )
    if listed or parts.registered is not None:
        named = [text for text in settings.discover if text != POOL]
        sources: list[Source] = [parse_source(text) for text in named]
        if parts.pool is not None:
            sources.append(PoolSource(parts.pool))
        if parts.registered is not None:
            sources.append(parts.registered)
        discovery = Discovery(sources, settings.worker, parts.guard)
        if parts.registered is not None:
            parts.registered.changed = discovery.check_now
        if parts.pool is not None:
            parts.pool.listeners.append(discovery.check_now)
        static.discover_by(discovery)
    if not settings.nats.nats_url:
        return static
    from kvmesh.app.mesh.sharing_mesh import SharingMesh  # noqa: PLC0415  not alone

    return SharingMesh(settings, parts.router_id, parts.router, static, role=parts.role)
