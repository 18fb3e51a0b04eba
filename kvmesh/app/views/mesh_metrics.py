"""What Prometheus reads of a replica's part in the mesh: index, journal, snapshots, peers."""

from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from kvmesh.actors.journal.indexer import Indexer
from kvmesh.actors.journal.snapshotter import SnapshotterStatistics
from kvmesh.actors.members.replica_sync import ReplicaSyncStatistics
from kvmesh.actors.messages import RouterHeartbeat
from kvmesh.core.index.index import KvIndex
from kvmesh.core.members.hearing import Hearing
from kvmesh.core.overlap.approx import ApproxStatistics

DIGEST_BITS = 32
"""Of the digest as many bits are shown as a float holds exactly."""


def index_metrics(index: KvIndex) -> Iterator[Metric]:
    """Yield the size of an event-fed index and what it gave up."""
    counts = index.statistics()
    yield GaugeMetricFamily("kvmesh_index_blocks", "Distinct KV blocks known.", counts.blocks)
    yield GaugeMetricFamily("kvmesh_index_entries", "(worker, block) pairs known.", counts.entries)
    yield CounterMetricFamily(
        "kvmesh_index_evicted_entries", "Entries given up to keep within the cap.", counts.evicted
    )
    yield CounterMetricFamily(
        "kvmesh_index_orphan_blocks", "Blocks refused behind one not held.", counts.orphans
    )


def journal_metrics(indexer: Indexer, beats: tuple[RouterHeartbeat, ...]) -> Iterator[Metric]:
    """Yield how far the journal is read, and what was wrong with it. `beats`: own one first."""
    counts, replica = indexer.statistics(), indexer.statistics().replica
    own = beats[0]
    same = [beat.applied_sequence for beat in beats if beat.created == own.created]
    yield GaugeMetricFamily(
        "kvmesh_journal_applied_sequence", "Last journal message folded.", own.applied_sequence
    )
    yield GaugeMetricFamily(
        "kvmesh_journal_lag_messages",
        "Messages behind the furthest replica of the bucket.",
        max(same) - own.applied_sequence,
    )
    yield GaugeMetricFamily(
        "kvmesh_journal_caught_up", "1 once the history was read.", float(indexer.caught_up)
    )
    yield GaugeMetricFamily(
        "kvmesh_index_digest",
        "Low 32 bits of the index digest: equal at equal sequence.",
        own.digest & ((1 << DIGEST_BITS) - 1),
    )
    yield CounterMetricFamily("kvmesh_journal_events", "KV events folded.", replica.events)
    for name, text, value in (
        ("gaps", "Gaps in a worker's events.", counts.gaps),
        ("resyncs_asked", "Dumps asked of workers.", counts.resyncs_asked),
        ("garbage_messages", "Messages that could not be read.", replica.garbage),
        ("redelivered_messages", "Messages that came twice.", replica.redelivered),
        ("recreations", "How often the stream was made anew.", counts.recreations),
    ):
        yield CounterMetricFamily(f"kvmesh_journal_{name}", text, value)
    yield CounterMetricFamily(
        "kvmesh_digests_compared", "Digests compared with peers.", replica.digests_compared
    )
    yield CounterMetricFamily(
        "kvmesh_digest_mismatches", "Digests of peers that differed.", counts.mismatches
    )


def snapshot_metrics(counts: SnapshotterStatistics) -> Iterator[Metric]:
    """Yield who writes snapshots, and the newest this replica wrote."""
    yield GaugeMetricFamily(
        "kvmesh_snapshot_lease_held",
        "1 on the replica that writes snapshots.",
        float(counts.holder),
    )
    ended = CounterMetricFamily("kvmesh_snapshots", "Snapshots by how they ended.", labels=["how"])
    ended.add_metric(["taken"], counts.taken)
    ended.add_metric(["failed"], counts.failed)
    yield ended
    yield CounterMetricFamily(
        "kvmesh_journal_purged_messages",
        "Journal messages purged behind snapshots.",
        counts.purged_messages,
    )
    newest = counts.newest
    if newest is None or counts.age_s is None:
        return
    for name, text, value in (
        ("sequence", "Journal sequence of the newest snapshot.", newest.sequence),
        ("bytes", "Size of the newest snapshot.", newest.size),
        ("entries", "(worker, block) pairs in the newest snapshot.", newest.blocks),
        ("age_seconds", "Time since the newest snapshot was written.", counts.age_s),
        ("write_seconds", "What encoding, storing and verifying it took.", counts.took_s),
    ):
        yield GaugeMetricFamily(f"kvmesh_snapshot_{name}", text, value)


def sync_metrics(counts: ReplicaSyncStatistics, peers: int) -> Iterator[Metric]:
    """Yield how bookings travel between replicas."""
    yield GaugeMetricFamily("kvmesh_peers", "Other replicas of the bucket heard of.", peers)
    events = CounterMetricFamily(
        "kvmesh_booking_events", "Booking events by direction.", labels=["direction"]
    )
    events.add_metric(["sent"], counts.events_sent)
    events.add_metric(["applied"], counts.events_applied)
    yield events
    yield CounterMetricFamily(
        "kvmesh_booking_gaps", "Booking messages of peers that never came.", counts.gaps
    )


def silence_metrics(hearing: Hearing) -> Iterator[Metric]:
    """Yield whether heartbeats arrive at all, and whose do not."""
    yield GaugeMetricFamily(
        "kvmesh_nats_silent",
        "1 while nothing is heard over NATS: members that answer over HTTP stay as last heard of.",
        float(hearing.deaf),
    )
    yield GaugeMetricFamily(
        "kvmesh_silent_members",
        "Workers and replicas that are not heard over NATS but answer over HTTP.",
        hearing.silent(),
    )


def approx_metrics(counts: ApproxStatistics) -> Iterator[Metric]:
    """Yield the size of the index that is fed by decisions."""
    yield GaugeMetricFamily(
        "kvmesh_approx_entries", "(worker, block) pairs believed from decisions.", counts.entries
    )
    gone = CounterMetricFamily(
        "kvmesh_approx_gone_entries", "Entries no longer believed, by why.", labels=["why"]
    )
    for why in ("expired", "pruned", "displaced", "revoked"):
        gone.add_metric([why], getattr(counts, why))
    yield gone
