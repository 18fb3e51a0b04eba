"""What each process may say and hear on NATS: the least it can work with."""

from typing import Any

import msgspec

from kvmesh.actors.site_reporter import digest_subject
from kvmesh.actors.wire import Subjects
from kvmesh.transport.nats.layout import (
    home_bucket,
    id_bucket,
    inbox_prefix,
    meta_bucket,
    program_bucket,
    session_bucket,
    snapshot_bucket,
    usage_stream,
)

ANSWER_S = 5
"""A process may answer the command it was sent, once, within so long."""


class Rights(msgspec.Struct, frozen=True):
    """What one process may do. `answers`: reply to a command it was sent."""

    publish: tuple[str, ...]
    subscribe: tuple[str, ...]
    answers: bool = False

    def to_config(self) -> dict[str, Any]:
        """Return the `permissions` block; an empty list of publish subjects forbids all."""
        publish = {"allow": list(self.publish)} if self.publish else {"deny": [">"]}
        config: dict[str, Any] = {
            "publish": publish,
            "subscribe": {"allow": list(self.subscribe)},
        }
        if self.answers:
            config["allow_responses"] = {"max": 1, "expires": f"{ANSWER_S}s"}
        return config


def worker_rights(subjects: Subjects, name: str, ranks: int = 1) -> Rights:
    """Return a worker's rights: its own subjects, its own inbox, its own commands.

    With more than one rank the worker speaks as NAME-dp0, NAME-dp1 and so on. No right to
    JetStream's API or to any KV bucket: who may write one key of a bucket may wipe it all.
    """
    names = rank_names(name, ranks)
    publish = [subjects.events(one) for one in names] + [subjects.heartbeats(one) for one in names]
    subscribe = [f"{inbox_prefix('worker', subjects.bucket, name)}.>"]
    subscribe += [subjects.control(one) for one in names]
    return Rights(tuple(publish), tuple(subscribe), answers=True)


def rank_names(name: str, ranks: int) -> tuple[str, ...]:
    """Return what a worker is called on the mesh, once for each of its data-parallel ranks."""
    return (name,) if ranks == 1 else tuple(f"{name}-dp{rank}" for rank in range(ranks))


def router_rights(subjects: Subjects, name: str) -> Rights:
    """Return a router's rights: read and purge its bucket's stream, keep snapshots, speak to all.

    Streams are made by the bucket's admin (`kvmesh nats-streams`), not by routers.
    """
    stream = subjects.stream()
    meta, snapshots = meta_bucket(subjects.namespace), snapshot_bucket(subjects)
    tables = (session_bucket(subjects), program_bucket(subjects), id_bucket(subjects))
    stores = (f"KV_{meta}", f"OBJ_{snapshots}")
    usage = usage_stream(subjects)
    followed = (stream, usage, *stores, *(f"KV_{table}" for table in tables))
    publish = [right for one in followed for right in follow_rights(one)]
    publish += [f"$JS.API.STREAM.MSG.GET.{one}" for one in stores]
    publish += [f"$JS.API.STREAM.PURGE.{one}" for one in (stream, f"OBJ_{snapshots}")]
    publish += [f"$KV.{one}.>" for one in (meta, *tables)]
    publish += [f"$O.{snapshots}.>"]
    publish += [subjects.control(), subjects.router_control()]
    publish += [subjects.bookings(name), subjects.routers(name), subjects.named_streams(name)]
    publish += [subjects.usage(name), subjects.limits(name)]
    subscribe = (
        f"{inbox_prefix('router', subjects.bucket, name)}.>",
        subjects.heartbeats(),
        subjects.bookings(),
        subjects.named_streams(),
        subjects.limits(),
        subjects.routers(),
        subjects.router_control(name),
    )
    return Rights(tuple(publish), subscribe, answers=True)


def biller_rights(subjects: Subjects, name: str) -> Rights:
    """Return a biller's rights: read the bucket's record of usage by a durable consumer of its own,
    acknowledge what it has read, and nothing else.
    """
    stream = usage_stream(subjects)
    verbs = ("CREATE", "DURABLE.CREATE", "INFO", "MSG.NEXT")  # clients make consumers either way
    publish = (
        f"$JS.API.STREAM.INFO.{stream}",
        f"$JS.API.CONSUMER.CREATE.{stream}.{name}.>",
        *(f"$JS.API.CONSUMER.{verb}.{stream}.{name}" for verb in verbs),
        f"$JS.ACK.{stream}.{name}.>",
    )
    return Rights(publish, (f"{inbox_prefix('biller', subjects.bucket, name)}.>",))


def follow_rights(stream: str) -> list[str]:
    """Return what following a stream by a named pull consumer takes."""
    used = [f"$JS.API.CONSUMER.{verb}.{stream}.*" for verb in ("DELETE", "MSG.NEXT")]
    return [f"$JS.API.STREAM.INFO.{stream}", f"$JS.API.CONSUMER.CREATE.{stream}.>", *used]


def meta_router_rights(namespace: str, site: str = "") -> Rights:
    """Return a meta-router's rights: hear the routers of all buckets, and share with the other
    meta-routers where conversations are; all of them have one key. With a `site` of its own it
    tells others of that one, and hears them.
    """
    homes = home_bucket(namespace)
    publish = [*follow_rights(f"KV_{homes}"), f"$KV.{homes}.>"]
    subscribe = [Subjects(namespace, "*").routers(), f"{inbox_prefix('meta-router')}.>"]
    if site:
        publish.append(digest_subject(site))
        subscribe.append(digest_subject())
    return Rights(tuple(publish), tuple(subscribe))


def site_rights(own: str, peer: str) -> Rights:
    """Return the rights of another site's servers, leaf nodes: tell of that site, hear of ours.

    Without them its key could tell `peer` itself of `own`: both are in one account.
    """
    return Rights((digest_subject(peer),), (digest_subject(own),))


def admin_rights() -> Rights:
    """Return the rights of the job that makes streams: JetStream's API in its own account."""
    return Rights(("$JS.API.>",), (f"{inbox_prefix('admin')}.>",))
