"""`kvmesh nats-streams`: make the streams of some buckets, as the one account that may."""

import asyncio
from dataclasses import dataclass, field
from typing import Annotated

from kvmesh.app.mesh.nats_link import (
    connection_for,
    inbox_prefix,
    journal_for,
    meta_bucket,
    session_bucket,
    snapshot_bucket,
    subjects_for,
)
from kvmesh.errors import ConfigError
from kvmesh.observe import configure_logging, get_logger
from kvmesh.settings.requests import SessionSettings
from kvmesh.settings.roles import LogSettings, NatsSettings
from kvmesh.settings.types import Flat, Positive
from kvmesh.transport.nats.stores.kv import KeyValueOptions, NatsKeyValue
from kvmesh.transport.nats.stores.objects import NatsObjects, ObjectOptions


@dataclass(frozen=True, kw_only=True)
class StreamsOptions:
    """`kvmesh nats-streams`."""

    bucket: tuple[str, ...]
    """Bucket whose event stream and stores to make; repeat."""
    session_ttl_s: Positive = SessionSettings.session_ttl_s
    """As the routers' --session-ttl-s."""
    nats: Annotated[NatsSettings, Flat] = field(default_factory=NatsSettings)
    log: Annotated[LogSettings, Flat] = field(default_factory=LogSettings)


async def make_streams(options: StreamsOptions) -> None:
    """Make what is missing, adapt what differs; safe to run again.

    Raises `TransportError` when the server does not answer or refuses.
    """
    connection = connection_for(options.nats, "admin", inbox_prefix("admin"))
    await connection.connect()
    try:
        replicas = options.nats.stream_replicas
        meta = meta_bucket(options.nats.namespace)
        await NatsKeyValue(connection, KeyValueOptions(bucket=meta, replicas=replicas)).open()
        for bucket in options.bucket:
            subjects = subjects_for(options.nats, bucket)
            journal = journal_for(options.nats, connection, subjects.stream(), subjects.events())
            await journal.open()
            await journal.close()
            objects = ObjectOptions(bucket=snapshot_bucket(subjects), replicas=replicas)
            await NatsObjects(connection, objects).open()
            sessions = KeyValueOptions(
                bucket=session_bucket(subjects),
                replicas=replicas,
                max_age_s=options.session_ttl_s,
            )
            await NatsKeyValue(connection, sessions).open()
            get_logger().info("streams ready", bucket=bucket, stream=subjects.stream())
    finally:
        await connection.close()


def command(*, options: Annotated[StreamsOptions, Flat]) -> None:
    """Make the event streams and stores of buckets; run once, as the admin account."""
    configure_logging(options.log.log_level, options.log.log_format, role="nats-streams")
    if not options.bucket:
        raise ConfigError("--bucket: name at least one")
    asyncio.run(make_streams(options))
