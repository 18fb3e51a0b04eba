"""Settings of NATS made into the transport's options."""

from typing import Final

from kvmesh.actors.wire import Subjects
from kvmesh.settings.member_name import check_name
from kvmesh.settings.roles import NatsSettings
from kvmesh.transport.nats.journal.durability import check_durability, warn_of_one_copy
from kvmesh.transport.nats.journal.log import JournalOptions, NatsJournal
from kvmesh.transport.nats.link.connection import NatsConnection, NatsOptions
from kvmesh.transport.nats.stores.kv import KeyValueOptions, NatsKeyValue
from kvmesh.transport.nats.stores.objects import NatsObjects, ObjectOptions

NATS_URL: Final = "nats://127.0.0.1:4222"


def inbox_prefix(role: str, *names: str) -> str:
    """Return where answers to one process arrive: its own, so that no other may listen there."""
    return ".".join(("_INBOX", role, *names))


def meta_bucket(namespace: str) -> str:
    """Return the KV bucket of leases and manifests; only routers may write it."""
    return f"{namespace}_meta"


def snapshot_bucket(subjects: Subjects) -> str:
    """Return the object bucket of one bucket's snapshots."""
    return f"{subjects.namespace}_snapshots_{subjects.bucket}"


def session_bucket(subjects: Subjects) -> str:
    """Return the KV bucket of one bucket's sessions; only its routers may write it."""
    return f"{subjects.namespace}_sessions_{subjects.bucket}"


def subjects_for(settings: NatsSettings, bucket: str) -> Subjects:
    """Return the subjects of `bucket`. Raises `ConfigError` for a name no subject may hold."""
    return Subjects(check_name(settings.namespace, "--namespace"), check_name(bucket, "--bucket"))


def connection_for(settings: NatsSettings, name: str, inbox: str = "_INBOX") -> NatsConnection:
    """Return the connection of one process, not yet connected; `inbox` is its `inbox_prefix`."""
    return NatsConnection(
        NatsOptions(
            url=settings.nats_url or NATS_URL,
            name=name,
            creds=settings.nats_creds,
            nkey_seed=settings.nats_nkey_seed,
            tls_ca=settings.nats_tls_ca,
            inbox_prefix=inbox,
        )
    )


def journal_for(
    settings: NatsSettings, connection: NatsConnection, stream: str, subjects: str
) -> NatsJournal:
    """Return the journal of one bucket, not yet open."""
    options = JournalOptions(
        stream=stream,
        subjects=(subjects,),
        replicas=settings.stream_replicas,
        max_bytes=settings.stream_max_bytes,
        max_age_s=settings.stream_max_age_s,
    )
    return NatsJournal(connection, options)


async def warn_of_risks(settings: NatsSettings, connection: NatsConnection) -> None:
    """Tell operators at the start what acknowledged events could still be lost to."""
    warn_of_one_copy(connection, settings.stream_replicas)
    await check_durability(connection, settings.nats_monitor_url)


async def stores_for(
    settings: NatsSettings, connection: NatsConnection, subjects: Subjects
) -> tuple[NatsKeyValue, NatsObjects]:
    """Return the mesh's key-value store and the bucket's snapshots, opened.

    Raises `TransportError`.
    """
    keys = NatsKeyValue(
        connection,
        KeyValueOptions(bucket=meta_bucket(settings.namespace), replicas=settings.stream_replicas),
    )
    objects = NatsObjects(
        connection,
        ObjectOptions(bucket=snapshot_bucket(subjects), replicas=settings.stream_replicas),
    )
    await keys.open()
    await objects.open()
    return keys, objects
