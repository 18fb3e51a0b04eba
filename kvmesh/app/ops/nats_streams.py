"""`kvmesh nats-streams`: make the streams of some buckets, each as the admin of its account."""

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated

from kvmesh.actors.wire import Subjects
from kvmesh.app.mesh.nats_plane import nats_plane
from kvmesh.core.buckets.homes import HomeOptions
from kvmesh.core.routing.sessions import SessionOptions
from kvmesh.errors import ConfigError
from kvmesh.observe import configure_logging, get_logger
from kvmesh.settings.member_name import check_name
from kvmesh.settings.roles import LogSettings, NatsSettings
from kvmesh.settings.types import Flat
from kvmesh.transport.nats.plane import NatsPlane


@dataclass(frozen=True, kw_only=True)
class StreamsOptions:
    """`kvmesh nats-streams`."""

    bucket: tuple[str, ...]
    """Bucket whose event stream and stores to make; repeat."""
    admin_keys: Path | None = None
    """The directory in which `kvmesh nats-accounts` keeps seeds or credentials: admin.BUCKET.nk (or
    .creds) makes a bucket's streams, admin.nk the meta-routers' table. Default: one login, of
    --nats-creds, for all, on a server with one account."""
    nats: Annotated[NatsSettings, Flat] = field(default_factory=NatsSettings)
    log: Annotated[LogSettings, Flat] = field(default_factory=LogSettings)


async def make_streams(options: StreamsOptions) -> None:
    """Make what is missing, adapt what differs; safe to run again.

    Raises `ConfigError` for an admin's key that is missing, before anything is made, and
    `TransportError` when the server does not answer or refuses.
    """
    logins = {
        bucket: login_as_admin(options, check_name(bucket, "--bucket")) for bucket in options.bucket
    }
    meta = login_as_admin(options, "")
    for bucket, settings in logins.items():
        async with connected(settings) as plane:
            await plane.declare(bucket, int(SessionOptions().ttl_s))
        stream = Subjects(options.nats.namespace, bucket).stream()
        get_logger().info("streams ready", bucket=bucket, stream=stream)
    async with connected(meta) as plane:
        homes = HomeOptions()
        await plane.homes(int(homes.ttl_s), homes.max_homes)


def login_as_admin(options: StreamsOptions, bucket: str) -> NatsSettings:
    """Return the settings with the key of the bucket's admin, of the meta-routers' for "".

    Raises `ConfigError` naming the file that is missing.
    """
    if options.admin_keys is None:
        return options.nats
    stem = f"admin.{bucket}" if bucket else "admin"
    creds, seed = options.admin_keys / f"{stem}.creds", options.admin_keys / f"{stem}.nk"
    for path in (creds, seed):
        if path.is_file():
            return replace(options.nats, nats_creds=path)
    whose = f"bucket {bucket}" if bucket else "the meta-routers' table"
    raise ConfigError(
        f"--admin-keys {options.admin_keys}: no {stem}.nk nor {stem}.creds for {whose}: run kvmesh "
        "nats-accounts with all members of the mesh"
    )


@asynccontextmanager
async def connected(settings: NatsSettings) -> AsyncGenerator[NatsPlane]:
    """Give an admin's plane, connected. Raises `TransportError`."""
    plane = nats_plane(settings, "admin")
    await plane.connect()
    try:
        yield plane
    finally:
        await plane.close()


def command(*, options: Annotated[StreamsOptions, Flat]) -> None:
    """Make the event streams and stores of buckets; run once, with the admins' keys."""
    configure_logging(options.log.log_level, options.log.log_format, role="nats-streams")
    if not options.bucket:
        raise ConfigError("--bucket: name at least one")
    asyncio.run(make_streams(options))
