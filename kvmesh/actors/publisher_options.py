"""What a publisher is made with, and what it counts."""

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.engines.kv_events.cache import EngineCacheStatistics
from kvmesh.core.journal.event_sender import (
    SenderLimits,
    SenderStatistics,
)
from kvmesh.formats import OWN, Formats


class PublisherOptions(msgspec.Struct, frozen=True):
    """Who the worker is, and the publisher's limits.

    `epoch` orders incarnations: a guess, e.g. milliseconds since 1970, that routers have raised
    when it is not larger than every one before. `incarnation` is drawn at random: they can tell.
    `block_size` None is learned from the engine's events; it `drops` the last block that it matched
    (EAGLE). `secret` keys the namespaces' roots.
    Without `events` the journal is left alone: routers guess what is cached. `log_batches` writes
    a line for each batch of events. `formats` are those that this process, of `version`, writes.
    """

    worker: WorkerId
    bucket: str
    epoch: int
    url: str
    models: tuple[str, ...] = ()
    block_size: int | None = None
    drops: bool = False
    namespace: str = "kvmesh"
    dp_rank: int | None = None
    labels: tuple[str, ...] = ()
    taints: tuple[str, ...] = ()
    secret: bytes = b""
    flush_s: float = 0.003
    heartbeat_s: float = 1.0
    limits: SenderLimits = SenderLimits()
    adapters: tuple[str, ...] = ()
    weights: str = ""
    events: bool = True
    bootstrap_port: int = 0
    connector: str = ""
    health_path: str = "/health"
    engine: str = ""
    log_batches: bool = False
    version: str = ""
    formats: Formats = OWN
    incarnation: int = 0


class PublisherStatistics(msgspec.Struct, frozen=True):
    """Counters since the start; `garbage` are bus messages that are none, `resyncs` those asked,
    `resumed` how often what an earlier sidecar knew was gone on from.
    """

    garbage: int
    remade: int
    sender: SenderStatistics
    cache: EngineCacheStatistics
    resyncs: int = 0
    resumed: int = 0
