"""`kvmesh nats-streams`: make the streams of some buckets, as the one account that may."""

import asyncio
from dataclasses import dataclass, field
from typing import Annotated

from kvmesh.actors.wire import Subjects
from kvmesh.app.nats.plane import nats_plane
from kvmesh.errors import ConfigError
from kvmesh.observe import configure_logging, get_logger
from kvmesh.settings.member_name import check_name
from kvmesh.settings.requests import SessionSettings
from kvmesh.settings.roles import HomeSettings, LogSettings, NatsSettings
from kvmesh.settings.types import Flat, Positive


@dataclass(frozen=True, kw_only=True)
class StreamsOptions:
    """`kvmesh nats-streams`."""

    bucket: tuple[str, ...]
    """Bucket whose event stream and stores to make; repeat."""
    session_ttl_s: Positive = SessionSettings.session_ttl_s
    """As the routers' --session-ttl-s."""
    home: Annotated[HomeSettings, Flat] = field(default_factory=HomeSettings)
    nats: Annotated[NatsSettings, Flat] = field(default_factory=NatsSettings)
    log: Annotated[LogSettings, Flat] = field(default_factory=LogSettings)


async def make_streams(options: StreamsOptions) -> None:
    """Make what is missing, adapt what differs; safe to run again.

    Raises `TransportError` when the server does not answer or refuses.
    """
    plane = nats_plane(options.nats, "admin")
    await plane.connect()
    try:
        for bucket in options.bucket:
            await plane.declare(check_name(bucket, "--bucket"), options.session_ttl_s)
            stream = Subjects(options.nats.namespace, bucket).stream()
            get_logger().info("streams ready", bucket=bucket, stream=stream)
        await plane.homes(options.home.home_ttl_s, options.home.max_homes)
    finally:
        await plane.close()


def command(*, options: Annotated[StreamsOptions, Flat]) -> None:
    """Make the event streams and stores of buckets; run once, as the admin account."""
    configure_logging(options.log.log_level, options.log.log_format, role="nats-streams")
    if not options.bucket:
        raise ConfigError("--bucket: name at least one")
    asyncio.run(make_streams(options))
