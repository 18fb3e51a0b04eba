"""Figures of front doors: a meta-router's, tokens compared, URLs refused, a gateway's pool."""

from typing import Final

import msgspec

from kvmesh.actors.meta_router import MetaRouterStatistics
from kvmesh.actors.site_reporter import SiteReporter
from kvmesh.app.front.otlp_messages import ExportStatistics
from kvmesh.app.front.tracing import Tracer
from kvmesh.app.members.warning_lines import UrlRefusals
from kvmesh.app.picker.pool_view import PoolStatistics
from kvmesh.app.prompts.token_check import TokenCheckStatistics
from kvmesh.app.serve.request_ends import RequestEnds
from kvmesh.app.views.figure import Figure, Source, Table
from kvmesh.core.sites.sites import SiteView
from kvmesh.transport.http.server.server import HttpStatistics


class MetaReplica(msgspec.Struct, frozen=True):
    """One replica as the meta-router knows it."""

    ready: bool
    active_requests: int


# How a figure is read, then what it is.
# fmt: off
META: Final = Table[HttpStatistics](
    Figure("counter", "kvmesh_meta_requests", lambda one: one.requests,
           "HTTP requests read."),
    Figure("counter", "kvmesh_meta_malformed_requests", lambda one: one.malformed_requests,
           "Requests refused unread."),
    Figure("gauge", "kvmesh_meta_open_requests", lambda one: one.open_requests,
           "Requests open."),
    Figure("gauge", "kvmesh_meta_connections", lambda one: one.open_connections,
           "Client connections."),
)

META_ENDS: Final = Table[RequestEnds](
    Figure("counter", "kvmesh_meta_forwarded", lambda one: dict(one.items()),
           "Requests forwarded by how they ended and the class of the client's status.",
           ("outcome", "status")),
)

META_HOMES: Final = Table[MetaRouterStatistics](
    Figure("gauge", "kvmesh_meta_homes", lambda one: one.homes,
           "Beginnings of conversations, and sessions, whose bucket is known."),
    Figure("counter", "kvmesh_meta_placed", lambda one: dict(one.placed),
           "Requests by what chose their bucket: named, rule, session, conversation, or the policy "
           "for one that begins.", ("why",)),
    Figure("counter", "kvmesh_meta_refused_heartbeats", lambda one: {
               "garbage": one.garbage, "url": one.refused, "crowded": one.crowded},
           "Heartbeats of replicas that did not count, by why.", ("why",)),
)

SITES: Final = Table[SiteView](
    Figure("gauge", "kvmesh_site_usable", lambda one: not one.why_not,
           "1 for another site that requests may go to, else 0."),
    Figure("gauge", "kvmesh_site_round_trip_seconds",
           lambda one: None if one.rtt_ms is None else one.rtt_ms / 1000.0,
           "Round trip to the site's door: the least of the last 8 probes."),
    Figure("counter", "kvmesh_site_requests", lambda one: one.sent,
           "Requests sent to the site."),
    labels=("site",),
)

SITE_DIGESTS: Final = Table[SiteReporter](
    Figure("counter", "kvmesh_site_digest_bytes", lambda one: one.told_bytes,
           "Bytes of digests told to the other sites, without NATS's own."),
    Figure("counter", "kvmesh_site_digests_refused", lambda one: one.refused.count,
           "Digests that could not be read, or of sites that --peer-site does not name."),
)

META_REPLICAS: Final = Table[MetaReplica](
    Figure("gauge", "kvmesh_meta_replica_ready", lambda one: one.ready,
           "1 for a replica that gets requests, else 0."),
    Figure("gauge", "kvmesh_meta_replica_active_requests", lambda one: one.active_requests,
           "Requests of a replica, by its own word."),
    labels=("bucket", "replica"),
)

TOKENS: Final = Table[TokenCheckStatistics](
    Figure("counter", "kvmesh_token_parity_prompts", lambda one: {
               "equal": one.parity.compared - one.parity.disagreements,
               "different": one.parity.disagreements, "untold": one.untold},
           "Sampled prompts whose token ids were compared with the engine's.", ("result",)),
    Figure("gauge", "kvmesh_token_parity_doubted",
           lambda one: one.parity.by_model(),
           "1 for a model that is not routed by our token ids: its engine's differ; of more than"
           " 16 how many others, as model (others).", ("model",)),
    Figure("counter", "kvmesh_remote_prefixes", lambda one: {
               "known": one.prefixes.hits, "unknown": one.prefixes.misses},
           "Chats looked up among prefixes that engines reported.", ("was",)),
    Figure("counter", "kvmesh_chats", lambda one: {
               "plain": one.tokenizer.plain_chats, "other": one.tokenizer.other_chats}
           if one.tokenizer else None,
           "Chats tokenised for a model, by how their prompt was made: plain without a run of the "
           "chat template, from what it prints around texts; other by a run, or known from before.",
           ("prompt",)),
    Figure("counter", "kvmesh_prompt_segments", lambda one: {
               "known": one.tokenizer.segments.hits, "new": one.tokenizer.segments.misses}
           if one.tokenizer else None,
           "Pieces of prompts from one special token to the next, by whether they were known.",
           ("text",)),
)

URLS: Final = Table[UrlRefusals](
    Figure("counter", "kvmesh_refused_urls", lambda one: one.guard.refusals,
           "URLs of heartbeats and discovery that --upstream-allow refused."),
    Figure("gauge", "kvmesh_refused_members", lambda one: len(one.refused()),
           "Workers, replicas and hosts refused in the last 10 s."),
)

SPANS: Final = Table[ExportStatistics](
    Figure("counter", "kvmesh_otlp_spans", lambda one: {
               "exported": one.exported, "rejected": one.rejected,
               "full": one.full, "failed": one.failed},
           "Spans that a collector took or rejected, and those dropped: full, too many waited; "
           "failed, no attempt to send them succeeded.", ("result",)),
    Figure("gauge", "kvmesh_otlp_spans_waiting", lambda one: one.waiting,
           "Spans that wait to be sent."),
)

POOL: Final = Table[PoolStatistics](
    Figure("gauge", "kvmesh_pool_endpoints", lambda one: one.endpoints,
           "Endpoints of the InferencePool: its ready pods times its target ports."),
    Figure("gauge", "kvmesh_pool_pods_out", lambda one: {
               "unready": one.unready_pods,
               **({} if one.unserved_pods is None else {"no_worker": one.unserved_pods})},
           "Pods of the pool that get no requests, by why: not ready, or ready without a worker's "
           "heartbeat.", ("why",)),
    Figure("gauge", "kvmesh_pool_synced", lambda one: one.synced,
           "1 once the pool and its pods were read from the API server."),
    Figure("gauge", "kvmesh_pool_objectives", lambda one: one.objectives,
           "InferenceObjectives of the pool whose priorities are known."),
    Figure("counter", "kvmesh_pool_lists", lambda one: one.lists,
           "Whole lists read from the API server.", ("collection",)),
    Figure("counter", "kvmesh_pool_events", lambda one: one.events,
           "Watch events read from the API server, bookmarks included.", ("collection",)),
    Figure("counter", "kvmesh_pool_failures", lambda one: one.failures,
           "What went wrong at the API server, by how: refused with a status, failed without an "
           "answer, or an object that cannot be read.", ("collection", "how")),
)


def span_figures(tracer: Tracer | None) -> tuple[Source, ...]:
    """Return what is counted of a process's spans: nothing where it traces nothing."""
    return () if tracer is None else (SPANS.of(tracer.export.statistics),)
