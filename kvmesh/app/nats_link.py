"""Settings of NATS made into the transport's options."""

from kvmesh.settings import NatsSettings
from kvmesh.transport.nats.connection import NatsConnection, NatsOptions
from kvmesh.transport.nats.log import JournalOptions, NatsJournal


def connection_for(settings: NatsSettings, name: str) -> NatsConnection:
    """Return the connection of one process, not yet connected."""
    return NatsConnection(
        NatsOptions(
            url=settings.nats_url,
            name=name,
            creds=settings.nats_creds,
            nkey_seed=settings.nats_nkey_seed,
            tls_ca=settings.nats_tls_ca,
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
