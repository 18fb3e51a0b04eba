"""Which event plane a process has: where another journal than JetStream would be chosen."""

from kvmesh.actors.wire import Subjects
from kvmesh.ports import EventPlane
from kvmesh.settings.member_name import check_name
from kvmesh.settings.roles import NatsSettings


def subjects_for(settings: NatsSettings, bucket: str) -> Subjects:
    """Return the subjects of `bucket`. Raises `ConfigError` for a name no subject may hold."""
    return Subjects(check_name(settings.namespace, "--namespace"), check_name(bucket, "--bucket"))


def event_plane(settings: NatsSettings, role: str, *names: str) -> EventPlane:
    """Return the event plane of one process, not yet connected.

    `role` and `names` (its bucket and its own name, where it has them) tell whose account it uses.
    Raises `ConfigError` for a bad namespace.
    """
    # Loaded when a plane is wanted: a router alone must run where NATS is not installed.
    from kvmesh.app.mesh.nats_plane import nats_plane  # noqa: PLC0415

    return nats_plane(settings, role, *names)
