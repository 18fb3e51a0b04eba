"""Figures of a sidecar: what it reads of its engine, and what of it the journal has."""

from collections.abc import Callable
from typing import Final

import msgspec

from kvmesh._native import Histogram
from kvmesh.actors.messages import WorkerHeartbeat
from kvmesh.actors.publisher_options import PublisherStatistics
from kvmesh.app.process.aio import MailboxStatistics
from kvmesh.app.views.figure import Figure, Table
from kvmesh.transport.zmq.statistics import SubscriptionStatistics


class RankFacts(msgspec.Struct, frozen=True):
    """One data-parallel rank; `source` is None where no KV events are read."""

    beat: WorkerHeartbeat
    publisher: PublisherStatistics
    publish_seconds: Histogram
    source: SubscriptionStatistics | None
    mailbox: MailboxStatistics


class SidecarFacts(msgspec.Struct, frozen=True):
    """A sidecar as it is now. `joined`: the engine is on the mesh; `answering`: it answers its
    health path; `connected`: to NATS. `waiting` is what of NATS the start waits for, `refused` what
    NATS refuses, a line each.
    """

    engine: str
    joined: bool = False
    answering: bool = False
    connected: bool = False
    waiting: str = ""
    refused: tuple[str, ...] = ()
    ranks: tuple[RankFacts, ...] = ()

    def why_not(self) -> str:
        """Return why requests should not come to this engine; "" when they may.

        Once on the mesh neither NATS nor lost events count: routers then go by what they last
        heard, and a probe that failed for them would take the whole fleet out at once.
        """
        if not self.joined:
            return self.waiting or f"waiting for the engine at {self.engine} to answer /v1/models"
        if not self.answering:
            return f"the engine at {self.engine} does not answer"
        if any(one.beat.draining for one in self.ranks):
            return "draining"
        return ""

    def warnings(self) -> tuple[str, ...]:
        """Return what is wrong while requests may come all the same, a line each."""
        lines = list(self.refused)
        if self.joined and not self.connected:
            lines.append("NATS: not connected; routers use what they last heard")
        for one in self.ranks:
            if one.source is not None and not one.source.connected:
                lines.append(f"{one.beat.worker}: no connection to the engine's KV events")
            if not one.beat.complete:
                lines.append(
                    f"{one.beat.worker}: the engine's KV events are incomplete: routers guess what "
                    "it holds until it starts over"
                )
        return tuple(lines)


def _of_source(
    read: Callable[[SubscriptionStatistics], float],
) -> Callable[[RankFacts], float | None]:
    """Return how a figure of the KV events' source is read: None where none are read."""
    return lambda one: None if one.source is None else read(one.source)


# How a figure is read, then what it is.
# fmt: off
SIDECAR: Final = Table[SidecarFacts](
    Figure("gauge", "kvmesh_sidecar_ready", lambda one: not one.why_not(),
           "1 while requests may come to the engine of this sidecar; /ready says why not."),
    Figure("gauge", "kvmesh_sidecar_engine_answers", lambda one: one.answering,
           "1 while the engine answers its health path."),
    Figure("gauge", "kvmesh_sidecar_nats_connected", lambda one: one.connected,
           "1 while there is a connection to NATS."),
)

SIDECAR_RANKS: Final = Table[RankFacts](
    Figure("gauge", "kvmesh_sidecar_source_connected",
           _of_source(lambda source: source.connected),
           "1 while there is a connection to the engine's KV event publisher."),
    Figure("counter", "kvmesh_sidecar_read_batches",
           _of_source(lambda source: source.batches),
           "Batches of KV events read from the engine, live and replayed."),
    Figure("counter", "kvmesh_sidecar_lost_batches",
           _of_source(lambda source: source.lost_batches),
           "Batches of the engine that came neither live nor by replay."),
    Figure("counter", "kvmesh_sidecar_replays",
           _of_source(lambda source: source.replay_rounds),
           "Replays asked of the engine: at the start, after gaps and reconnects."),
    Figure("counter", "kvmesh_sidecar_engine_restarts",
           _of_source(lambda source: source.restarts),
           "Times the engine's numbering started again."),
    Figure("counter", "kvmesh_sidecar_malformed_messages",
           _of_source(lambda source: source.malformed),
           "Messages of the event socket of another form than the engine's."),
    Figure("counter", "kvmesh_sidecar_undecodable_batches",
           lambda one: one.publisher.cache.undecodable,
           "Batches that could not be read: another format, or no KV events."),
    Figure("counter", "kvmesh_sidecar_skipped_events",
           lambda one: sum(count for _, count in one.publisher.cache.odd),
           "Events left out because they could not be read; the log says why."),
    Figure("counter", "kvmesh_sidecar_unknown_states", lambda one: one.publisher.cache.lost,
           "Times the engine's cache became unknown, by lost or unreadable batches."),
    Figure("gauge", "kvmesh_sidecar_complete", lambda one: one.beat.complete,
           "1 while all that the engine holds is known; else routers guess."),
    Figure("gauge", "kvmesh_sidecar_cached_blocks",
           lambda one: one.publisher.cache.visible_blocks,
           "KV blocks the engine holds, by its events."),
    Figure("counter", "kvmesh_sidecar_published_events", lambda one: one.publisher.sender.events,
           "Events numbered for the journal, those of dumps among them."),
    Figure("counter", "kvmesh_sidecar_published_batches", lambda one: one.publisher.sender.batches,
           "Messages made for the journal."),
    Figure("counter", "kvmesh_sidecar_dumps", lambda one: one.publisher.sender.dumps,
           "Times the engine's whole cache was published: at the start, for resyncs of routers "
           "that the last messages do not repair, after overflows."),
    Figure("counter", "kvmesh_sidecar_resyncs", lambda one: one.publisher.resyncs,
           "Resyncs that routers asked for."),
    Figure("counter", "kvmesh_sidecar_resends", lambda one: one.publisher.sender.window.resends,
           "Times all messages in flight were sent again, for a lost one or its acknowledgement."),
    Figure("counter", "kvmesh_sidecar_journal_recreations", lambda one: one.publisher.remade,
           "Times the journal was found to be made again."),
    Figure("gauge", "kvmesh_sidecar_pending_events", lambda one: one.publisher.sender.pending,
           "Events that wait for room among the messages in flight."),
    Figure("gauge", "kvmesh_sidecar_inflight_batches",
           lambda one: one.publisher.sender.window.in_flight,
           "Messages sent and not yet acknowledged by the journal."),
    Figure("gauge", "kvmesh_sidecar_resend_bytes",
           lambda one: one.publisher.sender.window.recent_bytes,
           "Bytes of acknowledged messages kept for resyncs."),
    Figure("histogram", "kvmesh_sidecar_publish_seconds",
           lambda one: one.publish_seconds,
           "From a message's first sending until the journal had it."),
    Figure("gauge", "kvmesh_sidecar_mailbox", lambda one: one.mailbox.waiting,
           "Engine batches, commands and acknowledgements that wait to be worked off."),
    Figure("counter", "kvmesh_sidecar_garbage_messages", lambda one: one.publisher.garbage,
           "Commands over NATS that could not be read."),
    labels=("worker",),
)
