"""The index, the decision and the load figures as a library, for routers of one's own."""

from kvmesh.core.blocks.events import ROOT, Cleared, Event, Removed, Stored
from kvmesh.core.blocks.hashing import namespace_root, pack_hashes, sequence_hashes
from kvmesh.core.health.outcomes import (
    SERVED,
    UNKNOWN,
    Attempt,
    failed_attempt,
    status_attempt,
)
from kvmesh.core.routing.decision import RouterOptions
from kvmesh.core.routing.sessions import SessionOptions
from kvmesh.core.workers.info import LoadReport, Trust, WorkerInfo
from kvmesh.library.indexer import ApproxKvIndexer, KvIndexer
from kvmesh.library.kv_metrics import EndpointMetrics, KvMetrics, KvMetricsAggregator
from kvmesh.library.listener import Listener, Matches, MeshView
from kvmesh.library.router import BestMatch, KvRouter, RequestOptions, WorkerLoad

__all__ = [
    "ROOT",
    "SERVED",
    "UNKNOWN",
    "ApproxKvIndexer",
    "Attempt",
    "BestMatch",
    "Cleared",
    "EndpointMetrics",
    "Event",
    "KvIndexer",
    "KvMetrics",
    "KvMetricsAggregator",
    "KvRouter",
    "Listener",
    "LoadReport",
    "Matches",
    "MeshView",
    "Removed",
    "RequestOptions",
    "RouterOptions",
    "SessionOptions",
    "Stored",
    "Trust",
    "WorkerInfo",
    "WorkerLoad",
    "failed_attempt",
    "namespace_root",
    "pack_hashes",
    "sequence_hashes",
    "status_attempt",
]
