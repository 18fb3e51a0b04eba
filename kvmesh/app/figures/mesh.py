"""Figures of a replica's part in the mesh: index, journal, snapshots, peers."""

from typing import Final

from kvmesh.actors.journal.indexer import Indexer
from kvmesh.actors.journal.snapshotter import SnapshotterStatistics
from kvmesh.actors.members.replica_sync import ReplicaSyncStatistics
from kvmesh.actors.messages import RouterHeartbeat
from kvmesh.app.figures.figure import Table, counter, gauge
from kvmesh.core.index.statistics import IndexStatistics
from kvmesh.core.members.hearing import Hearing
from kvmesh.core.overlap.approx import ApproxStatistics

DIGEST_BITS: Final = 32
"""Of the digest as many bits are shown as a float holds exactly."""


class JournalFacts:
    """How far the journal is read, and what was wrong with it. `beats`: own one first."""

    def __init__(self, indexer: Indexer, beats: tuple[RouterHeartbeat, ...]) -> None:
        self.counts = indexer.statistics()
        self.folded = self.counts.replica
        self.caught_up = indexer.caught_up
        self.own = own = beats[0]
        same = [beat.applied_sequence for beat in beats if beat.created == own.created]
        self.lag = max(same) - own.applied_sequence


INDEX: Final = Table[IndexStatistics](
    gauge("kvmesh_index_blocks", "Distinct KV blocks known.", lambda one: one.blocks),
    gauge("kvmesh_index_entries", "(worker, block) pairs known.", lambda one: one.entries),
    counter(
        "kvmesh_index_evicted_entries",
        "Entries given up to keep within the cap.",
        lambda one: one.evicted,
    ),
    counter(
        "kvmesh_index_orphan_blocks", "Blocks refused behind one not held.", lambda one: one.orphans
    ),
)

JOURNAL: Final = Table[JournalFacts](
    gauge(
        "kvmesh_journal_applied_sequence",
        "Last journal message folded.",
        lambda journal: journal.own.applied_sequence,
    ),
    gauge(
        "kvmesh_journal_lag_messages",
        "Messages behind the furthest replica of the bucket.",
        lambda journal: journal.lag,
    ),
    gauge(
        "kvmesh_journal_caught_up",
        "1 once the history was read.",
        lambda journal: journal.caught_up,
    ),
    gauge(
        "kvmesh_index_digest",
        "Low 32 bits of the index digest: equal at equal sequence.",
        lambda journal: journal.own.digest & ((1 << DIGEST_BITS) - 1),
    ),
    counter("kvmesh_journal_events", "KV events folded.", lambda journal: journal.folded.events),
    counter(
        "kvmesh_journal_gaps", "Gaps in a worker's events.", lambda journal: journal.counts.gaps
    ),
    counter(
        "kvmesh_journal_resyncs_asked",
        "Dumps asked of workers.",
        lambda journal: journal.counts.resyncs_asked,
    ),
    counter(
        "kvmesh_journal_garbage_messages",
        "Messages that could not be read.",
        lambda journal: journal.folded.garbage,
    ),
    counter(
        "kvmesh_journal_redelivered_messages",
        "Messages that came twice.",
        lambda journal: journal.folded.redelivered,
    ),
    counter(
        "kvmesh_journal_recreations",
        "How often the stream was made anew.",
        lambda journal: journal.counts.recreations,
    ),
    counter(
        "kvmesh_digests_compared",
        "Digests compared with peers.",
        lambda journal: journal.folded.digests_compared,
    ),
    counter(
        "kvmesh_digest_mismatches",
        "Digests of peers that differed.",
        lambda journal: journal.counts.mismatches,
    ),
)

SNAPSHOTS: Final = Table[SnapshotterStatistics](
    gauge(
        "kvmesh_snapshot_lease_held",
        "1 on the replica that writes snapshots.",
        lambda one: one.holder,
    ),
    counter(
        "kvmesh_snapshots",
        "Snapshots by how they ended.",
        lambda one: {"taken": one.taken, "failed": one.failed},
        "how",
    ),
    counter(
        "kvmesh_journal_purged_messages",
        "Journal messages purged behind snapshots.",
        lambda one: one.purged_messages,
    ),
    gauge(
        "kvmesh_snapshot_sequence",
        "Journal sequence of the newest snapshot.",
        lambda one: one.newest.sequence if one.newest else None,
    ),
    gauge(
        "kvmesh_snapshot_bytes",
        "Size of the newest snapshot.",
        lambda one: one.newest.size if one.newest else None,
    ),
    gauge(
        "kvmesh_snapshot_entries",
        "(worker, block) pairs in the newest snapshot.",
        lambda one: one.newest.blocks if one.newest else None,
    ),
    gauge(
        "kvmesh_snapshot_age_seconds",
        "Time since the newest snapshot was written.",
        lambda one: one.age_s,
    ),
    gauge(
        "kvmesh_snapshot_write_seconds",
        "What encoding, storing and verifying it took.",
        lambda one: one.took_s if one.newest else None,
    ),
)

BOOKINGS: Final = Table[ReplicaSyncStatistics](
    counter(
        "kvmesh_booking_events",
        "Booking events by direction.",
        lambda one: {"sent": one.events_sent, "applied": one.events_applied},
        "direction",
    ),
    counter(
        "kvmesh_booking_gaps", "Booking messages of peers that never came.", lambda one: one.gaps
    ),
)

PEERS: Final = Table[int](
    gauge("kvmesh_peers", "Other replicas of the bucket heard of.", lambda peers: peers),
)

HEARING: Final = Table[Hearing](
    gauge(
        "kvmesh_nats_silent",
        "1 while nothing is heard over NATS: members that answer over HTTP stay as last heard of.",
        lambda hearing: hearing.deaf,
    ),
    gauge(
        "kvmesh_silent_members",
        "Workers and replicas that are not heard over NATS but answer over HTTP.",
        lambda hearing: hearing.silent(),
    ),
)

APPROX: Final = Table[ApproxStatistics](
    gauge(
        "kvmesh_approx_entries",
        "(worker, block) pairs believed from decisions.",
        lambda one: one.entries,
    ),
    counter(
        "kvmesh_approx_gone_entries",
        "Entries no longer believed, by why.",
        lambda one: {
            "expired": one.expired,
            "pruned": one.pruned,
            "displaced": one.displaced,
            "revoked": one.revoked,
        },
        "why",
    ),
)
