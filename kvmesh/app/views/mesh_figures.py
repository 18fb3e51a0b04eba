"""Figures of a replica's part in the mesh: index, journal, snapshots, peers."""

from typing import Final

import msgspec

from kvmesh.actors.indexer import Indexer
from kvmesh.actors.messages import RouterHeartbeat
from kvmesh.actors.registry import RegistryStatistics
from kvmesh.actors.replica_sync import ReplicaSyncStatistics
from kvmesh.actors.snapshotter import SnapshotterStatistics
from kvmesh.app.process.build import count_versions
from kvmesh.app.views.figure import Figure, Shown, Table
from kvmesh.core.index.approx import ApproxStatistics
from kvmesh.core.index.statistics import IndexStatistics
from kvmesh.core.journal.unread import Newer
from kvmesh.core.members.link_health import LinkHealth
from kvmesh.formats import KINDS
from kvmesh.ports import Refusals

DIGEST_BITS: Final = 32
"""Of the digest as many bits are shown as a float holds exactly."""


class PeerCounts(msgspec.Struct, frozen=True):
    """Who else is heard of in the bucket."""

    replicas: int
    followers: int


class MemberVersions(msgspec.Struct, frozen=True):
    """The versions that the members of a bucket tell, by what they are."""

    routers: tuple[str, ...] = ()
    pickers: tuple[str, ...] = ()
    followers: tuple[str, ...] = ()
    workers: tuple[str, ...] = ()

    def counts(self) -> dict[tuple[str, str], float]:
        """Return how many of each role run each version."""
        return {
            (role, version): count
            for role, versions in self.by_role().items()
            for version, count in versions.items()
        }

    def by_role(self) -> dict[str, dict[str, int]]:
        """Return, for each role that is there, how many members run each version."""
        members = {
            "router": self.routers,
            "picker": self.pickers,
            "follower": self.followers,
            "worker": self.workers,
        }
        return {role: count_versions(versions) for role, versions in members.items() if versions}


class JournalFacts:
    """How far the journal is read, and what was wrong with it. `beats`: own one first."""

    def __init__(self, indexer: Indexer, beats: tuple[RouterHeartbeat, ...]) -> None:
        self.counts = indexer.statistics()
        self.folded = self.counts.replica
        self.caught_up = indexer.caught_up
        self.own = own = beats[0]
        same = [beat.applied_sequence for beat in beats if beat.created == own.created]
        self.seconds = indexer.lag.seconds
        self.lag = max(same) - own.applied_sequence


# How a figure is read, then what it is.
# fmt: off
INDEX: Final = Table[IndexStatistics](
    Figure("gauge", "kvmesh_index_blocks", lambda one: one.blocks,
           "Distinct KV blocks known."),
    Figure("gauge", "kvmesh_index_entries", lambda one: one.entries,
           "(worker, block) pairs known."),
    Figure("counter", "kvmesh_index_stored_blocks", lambda one: one.stored,
           "KV blocks that workers' events created; reported again, they count again."),
    Figure("counter", "kvmesh_index_removed_blocks", lambda one: one.removed,
           "KV blocks that workers' events removed, without those cleared wholesale."),
    Figure("counter", "kvmesh_index_evicted_entries", lambda one: one.evicted,
           "Entries given up to keep within the cap."),
    Figure("counter", "kvmesh_index_orphan_blocks", lambda one: one.orphans,
           "Blocks refused behind one not held."),
    Figure("gauge", "kvmesh_index_ends", lambda one: one.ends,
           "Distinct blocks that hits of workers with several cache groups may end behind."),
    Figure("gauge", "kvmesh_index_grouped_workers", lambda one: one.grouped,
           "Workers of several cache groups, or whose engine looks at the tokens behind blocks."),
)

JOURNAL: Final = Table[JournalFacts](
    Figure("gauge", "kvmesh_journal_applied_sequence", lambda one: one.own.applied_sequence,
           "Last journal message folded."),
    Figure("gauge", "kvmesh_journal_lag_messages", lambda one: one.lag,
           "Messages behind the furthest replica of the bucket."),
    Figure("histogram", "kvmesh_journal_lag_seconds", lambda one: one.seconds,
           "From an event message's storage in the journal until it was applied, by the clocks of"
           " the server and of this machine."),
    Figure("gauge", "", lambda one: one.counts.lag_ms_p99,
           "99 % of the last event messages were applied so soon after they were stored.",
           shown=Shown("event_lag_ms", top="event lag", format="ms")),
    Figure("gauge", "kvmesh_journal_caught_up", lambda one: one.caught_up,
           "1 once the history was read."),
    Figure("gauge", "kvmesh_index_digest",
           lambda one: one.own.digest & ((1 << DIGEST_BITS) - 1),
           "Low 32 bits of the index digest: equal at equal sequence."),
    Figure("counter", "kvmesh_journal_events", lambda one: one.folded.events,
           "KV events folded."),
    Figure("counter", "kvmesh_journal_gaps", lambda one: one.counts.gaps,
           "Gaps in a worker's events."),
    Figure("counter", "kvmesh_journal_resyncs_asked", lambda one: one.counts.resyncs_asked,
           "Dumps asked of workers."),
    Figure("counter", "kvmesh_journal_garbage_messages", lambda one: one.folded.garbage,
           "Messages that could not be read."),
    Figure("counter", "kvmesh_journal_crowded_messages", lambda one: one.folded.crowded,
           "Messages of workers beyond 4,096."),
    Figure("counter", "kvmesh_journal_redelivered_messages",
           lambda one: one.folded.redelivered,
           "Messages that came twice."),
    Figure("counter", "kvmesh_journal_recreations", lambda one: one.counts.recreations,
           "How often the stream was made again."),
    Figure("counter", "kvmesh_digests_compared", lambda one: one.folded.digests_compared,
           "Digests compared with peers."),
    Figure("counter", "kvmesh_digest_mismatches", lambda one: one.counts.mismatches,
           "Digests of peers that differed."),
)

SNAPSHOTS: Final = Table[SnapshotterStatistics](
    Figure("gauge", "kvmesh_snapshot_lease_held", lambda one: one.holder,
           "1 on the replica that writes snapshots."),
    Figure("counter", "kvmesh_snapshots", lambda one: {"taken": one.taken, "failed": one.failed},
           "Snapshots by how they ended.", ("how",)),
    Figure("counter", "kvmesh_journal_purged_messages", lambda one: one.purged_messages,
           "Journal messages purged behind snapshots."),
    Figure("counter", "kvmesh_snapshot_keys_overridden", lambda one: one.overridden,
           "Leases and manifests written over that were garbage, unsigned, or did not expire."),
    Figure("gauge", "kvmesh_snapshot_sequence",
           lambda one: one.newest.sequence if one.newest else None,
           "Journal sequence of the newest snapshot."),
    Figure("gauge", "kvmesh_snapshot_bytes", lambda one: one.newest.size if one.newest else None,
           "Size of the newest snapshot."),
    Figure("gauge", "kvmesh_snapshot_entries",
           lambda one: one.newest.blocks if one.newest else None,
           "(worker, block) pairs in the newest snapshot."),
    Figure("gauge", "kvmesh_snapshot_age_seconds", lambda one: one.age_s,
           "Time since this replica wrote its newest snapshot, or since its start."),
    Figure("gauge", "kvmesh_snapshots_uncut", lambda one: one.uncut,
           "Newest snapshots in a row behind which the journal was not cut; /ready says why."),
    Figure("gauge", "kvmesh_snapshot_write_seconds", lambda one: one.took_s if one.newest else None,
           "What encoding, storing and verifying it took."),
)

BOOKINGS: Final = Table[ReplicaSyncStatistics](
    Figure("counter", "kvmesh_booking_events", lambda one: {
               "sent": one.events_sent, "applied": one.events_applied, "untold": one.untold},
           "Booking events by direction; those left out are not sent.", ("direction",)),
    Figure("gauge", "kvmesh_booking_format", lambda one: one.format,
           "Format in which this replica sends its bookings; the lowest that all live ones read."),
    Figure("counter", "kvmesh_booking_gaps", lambda one: one.gaps,
           "Booking messages of peers that never came."),
    Figure("counter", "kvmesh_refused_bookings", lambda one: {
               "garbage": one.garbage, "crowded": one.refused},
           "Booking messages of no sense, and bookings of peers beyond what one may have.",
           ("why",)),
)

HEARTBEATS: Final = Table[RegistryStatistics](
    Figure("counter", "kvmesh_refused_heartbeats", lambda one: {
               "garbage": one.garbage, "outdated": one.outdated, "url": one.refused,
               "crowded": one.crowded},
           "Heartbeats that did not count, by why; crowded: of newcomers beyond 4,096.",
           ("why",)),
)

PEERS: Final = Table[PeerCounts](
    Figure("gauge", "kvmesh_peers", lambda one: one.replicas,
           "Other replicas of the bucket heard of."),
    Figure("gauge", "kvmesh_followers", lambda one: one.followers,
           "Programs heard of that follow the bucket and book there, but take no requests."),
)

HEARING: Final = Table[LinkHealth](
    Figure("gauge", "kvmesh_nats_silent", lambda one: one.deaf,
           "1 while nothing is heard over NATS: members that answer over HTTP stay as last heard "
           "of."),
    Figure("gauge", "kvmesh_silent_members", lambda one: one.silent(),
           "Workers and replicas that are not heard over NATS but answer over HTTP."),
)

TRUST: Final = Table[Refusals](
    Figure("counter", "kvmesh_unverified_messages", lambda one: one.counts,
           "Messages and stored values refused by --nats-trust: unsigned, foreign (of a key that "
           "may not say it), stale (by its clock, or sent before), forged.", ("reason", "kind")),
    Figure("gauge", "kvmesh_clock_skew_seconds", lambda one: one.skews_s,
           "What members' clocks are ahead by whose messages are refused for it.", ("member",)),
)

HEARD: Final = Table[ApproxStatistics](
    Figure("gauge", "kvmesh_heard_entries", lambda one: one.entries,
           "(worker, graded block) pairs believed from what other replicas sent."),
    Figure("counter", "kvmesh_heard_gone_entries", lambda one: {
               "expired": one.expired, "pruned": one.pruned, "revoked": one.revoked},
           "Entries no longer believed, by why.", ("why",)),
)

VERSIONS: Final = Table[MemberVersions](
    Figure("gauge", "kvmesh_members", lambda one: one.counts(),
           "Members of the bucket by what they are and the version they run, this replica among "
           "them; `untold`: too old to say.", ("role", "version")),
)

UNREAD: Final = Table[list[Newer]](
    Figure("gauge", "kvmesh_unread_formats", lambda met: dict[str, float](
               (kind, sum(one.kind == kind for one in met)) for kind in KINDS),
           "Workers and stored things of a newer format than this replica reads, by kind.",
           ("kind",)),
)

APPROX: Final = Table[ApproxStatistics](
    Figure("gauge", "kvmesh_approx_entries", lambda one: one.entries,
           "(worker, block) pairs believed from own decisions."),
    Figure("counter", "kvmesh_approx_gone_entries", lambda one: {
               "expired": one.expired, "pruned": one.pruned, "displaced": one.displaced,
               "revoked": one.revoked},
           "Entries no longer believed, by why.", ("why",)),
)
