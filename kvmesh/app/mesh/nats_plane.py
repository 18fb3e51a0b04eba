"""Settings of NATS made into an event plane."""

from typing import Final

from kvmesh.settings.member_name import check_name
from kvmesh.settings.roles import NatsSettings
from kvmesh.transport.nats.layout import inbox_prefix
from kvmesh.transport.nats.link.connection import NatsOptions
from kvmesh.transport.nats.plane import NatsPlane, PlaneOptions

NATS_URL: Final = "nats://127.0.0.1:4222"

FOLLOWER: Final = "follower"
"""A program that follows a bucket with a router's account: the streams' settings are not its."""

AS_ROUTER: Final = frozenset({FOLLOWER, "picker"})
"""Roles that have a router's account."""

WITH_ACCOUNT: Final = frozenset({"worker", "router", "meta-router", "admin"})
"""Roles that `kvmesh nats-accounts` gives an inbox of their own; tools use everybody's."""


def nats_plane(settings: NatsSettings, role: str, *names: str) -> NatsPlane:
    """Return the plane of a process, not yet connected; `names` are its bucket and own name.

    Raises `ConfigError` for a bad namespace.
    """
    return NatsPlane(
        PlaneOptions(
            namespace=check_name(settings.namespace, "--namespace"),
            connection=connection_options(settings, role, *names),
            replicas=settings.stream_replicas,
            max_bytes=settings.stream_max_bytes,
        )
    )


def connection_options(settings: NatsSettings, role: str, *names: str) -> NatsOptions:
    """Return where the server is, how this process logs in, and where answers to it arrive."""
    account = "router" if role in AS_ROUTER else role
    return NatsOptions(
        url=settings.nats_url or NATS_URL,
        name=" ".join((role, *names[1:])),
        creds=settings.nats_creds,
        tls_ca=settings.nats_tls_ca,
        inbox_prefix=inbox_prefix(account, *names) if account in WITH_ACCOUNT else "_INBOX",
        adapts_streams=role != FOLLOWER,
        namespace=settings.namespace,
        trust=settings.nats_trust,
    )
