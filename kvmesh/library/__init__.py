"""The index, the decision and the load figures as a library, for routers of one's own."""

from kvmesh.core.blocks.events import ENDS, ROOT, Cleared, Event, Removed, Reuse, Stored
from kvmesh.core.blocks.hashing import namespace_root, pack_hashes, sequence_hashes
from kvmesh.core.cost.catalogue import Formulas
from kvmesh.core.cost.own_function import cost_formula, own_cost
from kvmesh.core.cost.terms import Candidate, Fleet
from kvmesh.core.members.outcomes import (
    SERVED,
    UNKNOWN,
    Attempt,
    failed_attempt,
    status_attempt,
)
from kvmesh.core.members.worker_info import LoadReport, Trust, WorkerInfo
from kvmesh.core.routing.decision import RouterOptions
from kvmesh.core.routing.sessions import SessionOptions
from kvmesh.library.indexer import ApproxKvIndexer, KvIndexer
from kvmesh.library.kv_metrics import EndpointMetrics, KvMetrics, KvMetricsAggregator
from kvmesh.library.listener import Listener, Matches, MeshView
from kvmesh.library.router import BestMatch, KvRouter, RequestOptions, WorkerLoad

__all__ = [
    "ENDS",
    "ROOT",
    "SERVED",
    "UNKNOWN",
    "ApproxKvIndexer",
    "Attempt",
    "BestMatch",
    "Candidate",
    "Cleared",
    "EndpointMetrics",
    "Event",
    "Fleet",
    "Formulas",
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
    "Reuse",
    "RouterOptions",
    "SessionOptions",
    "Stored",
    "Trust",
    "WorkerInfo",
    "WorkerLoad",
    "cost_formula",
    "failed_attempt",
    "namespace_root",
    "own_cost",
    "pack_hashes",
    "sequence_hashes",
    "status_attempt",
]
