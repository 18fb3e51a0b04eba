"""Figures of front doors: a meta-router's, the edges', tokens compared, URLs refused."""

from typing import Final

import msgspec

from kvmesh.app.care.url_refusals import UrlRefusals
from kvmesh.app.figures.figure import Table, counter, gauge
from kvmesh.app.prompts.token_check import TokenCheckStatistics
from kvmesh.app.serve.request_ends import RequestEnds
from kvmesh.transport.http.server.server import HttpStatistics


class EdgeRow(msgspec.Struct, frozen=True):
    """One edge process, for people."""

    edge: int
    pid: int
    open_requests: int
    unguided: int
    http: HttpStatistics | None


class MetaReplica(msgspec.Struct, frozen=True):
    """One replica as the meta-router knows it."""

    ready: bool
    active_requests: int


META: Final = Table[HttpStatistics](
    counter("kvmesh_meta_requests", "HTTP requests read.", lambda one: one.requests),
    counter(
        "kvmesh_meta_malformed_requests",
        "Requests refused unread.",
        lambda one: one.malformed_requests,
    ),
    gauge("kvmesh_meta_open_requests", "Requests open.", lambda one: one.open_requests),
    gauge("kvmesh_meta_connections", "Client connections.", lambda one: one.open_connections),
)

META_ENDS: Final = Table[RequestEnds](
    counter(
        "kvmesh_meta_forwarded",
        "Requests forwarded by how they ended and the class of the client's status.",
        lambda one: dict(one.items()),
        *("outcome", "status"),
    ),
)

META_REPLICAS: Final = Table[MetaReplica](
    gauge(
        "kvmesh_meta_replica_ready",
        "1 for a replica that gets requests, else 0.",
        lambda one: one.ready,
    ),
    gauge(
        "kvmesh_meta_replica_active_requests",
        "Requests of a replica, by its own word.",
        lambda one: one.active_requests,
    ),
    labels=("bucket", "replica"),
)

EDGES: Final = Table[EdgeRow](
    gauge(
        "kvmesh_edge_connections",
        "Client connections of an edge process.",
        lambda one: one.http.open_connections if one.http else None,
    ),
    counter(
        "kvmesh_edge_requests",
        "HTTP requests read by an edge process.",
        lambda one: one.http.requests if one.http else None,
    ),
    counter(
        "kvmesh_edge_malformed_requests",
        "Requests an edge refused.",
        lambda one: one.http.malformed_requests if one.http else None,
    ),
    counter(
        "kvmesh_edge_unguided_requests",
        "Requests an edge sent by load alone: the index process was away.",
        lambda one: one.unguided,
    ),
    labels=("edge",),
)

TOKENS: Final = Table[TokenCheckStatistics](
    counter(
        "kvmesh_token_parity_prompts",
        "Sampled prompts whose token ids were compared with the engine's.",
        lambda one: {
            "equal": one.parity.compared - one.parity.disagreements,
            "different": one.parity.disagreements,
            "untold": one.untold,
        },
        "result",
    ),
    gauge(
        "kvmesh_token_parity_doubted",
        "1 for a model that is not routed by our token ids: its engine's differ.",
        lambda one: dict.fromkeys(one.parity.untrusted, 1.0),
        "model",
    ),
    counter(
        "kvmesh_remote_prefixes",
        "Chats looked up among prefixes engines told.",
        lambda one: {"known": one.prefixes.hits, "unknown": one.prefixes.misses},
        "was",
    ),
)

URLS: Final = Table[UrlRefusals](
    counter(
        "kvmesh_refused_urls",
        "URLs of heartbeats and discovery that --upstream-allow refused.",
        lambda one: one.guard.refusals,
    ),
    gauge(
        "kvmesh_refused_members",
        "Workers, replicas and hosts refused in the last 10 s.",
        lambda one: len(one.refused()),
    ),
)
