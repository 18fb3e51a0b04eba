"""What the other replicas have booked, as far as their messages came."""

from typing import Final

import msgspec

from kvmesh._native import RENEW_S as _RENEW_S
from kvmesh._native import MessageFold, Peer
from kvmesh.core.routing import event_fold
from kvmesh.core.routing.event_fold import EventFold, lose
from kvmesh.core.routing.peer_records import RecordBatch, read_records
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.formats import OWN, FormatRange


def new_message_fold(scheduler: Scheduler, events: EventFold) -> MessageFold:
    """Return what folds messages into `scheduler`."""
    overlaps = scheduler.overlaps
    membership = scheduler.workers.membership
    return MessageFold(
        events=events,
        sequences=scheduler.sequences,
        speeds=scheduler.speeds,
        hints=overlaps.hints,
        members=membership.by_name,
        strangers=events.strangers,
        out=membership.health.out,
        distrusted=scheduler.workers.distrusted,
        late=scheduler.workers.late,
        ttls=(scheduler.options.predict_ttl_s, scheduler.options.approx_ttl_s),
        has_index=overlaps.index is not None,
        limits=(event_fold.MOST_BOOKINGS, event_fold.MOST_IN_ALL),
    )


RENEW_S: Final = _RENEW_S
"""A living peer renews all its bookings, but not with each of its 200 messages a second."""

MOST_PEERS: Final = 1024
"""Siblings and followers whose bookings are kept."""


class PeerStatistics(msgspec.Struct, frozen=True):
    """Counts since the start: events folded, messages that never came, and batches and bookings for
    which there was no room.
    """

    applied: int
    gaps: int
    refused: int


class PeerBookings:
    """Applies peers' batches, each event once, under the peer's name as owner.

    What peers decide and see of speeds counts in `scheduler` as if this replica had decided and
    seen it, so that replicas that share a burst choose as one would. After a gap what comes is
    still applied, and the peer counts as incomplete until its whole state came without one.

    Who sends bookings, and how many, of which workers, is bounded; `refused` counts the batches
    and bookings beyond the bounds. A peer that is `hints` of otherwise is preferred to one that is
    not.

    The ordinary records of a known peer's message are folded in one call of the compiled core
    (kvmesh/native/peers/message_fold.c). `reads` are the formats of messages that are read.
    """

    def __init__(self, scheduler: Scheduler, reads: FormatRange = OWN.bookings) -> None:
        self._scheduler = scheduler
        self._sequences = scheduler.sequences
        self._reads = reads
        self._peers: dict[str, Peer] = {}
        self._received: set[str] = set()
        self._events = EventFold(scheduler)
        self._compiled = new_message_fold(scheduler, self._events)
        self._applied = self._gaps = self._refused = 0

    def note_alive(self, peer: str) -> None:
        """Learn that a peer sends heartbeats."""
        self._received.add(peer)

    def admits(self, peer: str) -> bool:
        """Return whether there is room for a peer, made if need be by one that is not heard."""
        if peer in self._peers or len(self._peers) < MOST_PEERS:
            return True
        unheard = next((one for one in self._peers if one not in self._received), None)
        if unheard is None or peer not in self._received:
            self._refused += 1
            return False
        self.remove(unheard)
        return True

    def receive(self, peer: str, data: bytes, now: float) -> bool | None:
        """Fold a message and renew the peer's leases; return whether the peer is
        known completely, None where there is no room for it.

        Raises `CodecError` for a message that cannot be read, of which nothing is folded.
        """
        known = self._peers.get(peer)
        complete = None if known is None else self._compiled.fold(known, data, now)
        return self._fold_each(peer, data, now) if complete is None else complete

    def _fold_each(self, peer: str, data: bytes, now: float) -> bool | None:
        """Fold a message event by event."""
        batch = read_records(peer, data, self._reads)
        return self.apply(peer, batch, now) if self.admits(peer) else None

    def apply(self, peer: str, batch: RecordBatch, now: float) -> bool:
        """Fold a batch and renew the peer's leases; return whether the peer is known completely."""
        known = self._peers.get(peer)
        if known is None or batch.epoch > known.epoch:
            self._sequences.remove_owner(peer)
            if known is not None:
                self._events.forget(known)
            known = self._peers[peer] = Peer(peer, batch.epoch, now)
        elif batch.epoch < known.epoch:
            return known.complete
        if batch.shares is not None:
            self._scheduler.ledger.receive(peer, batch.epoch, batch.shares)
        if batch.first_seq > known.next_seq:
            self._gaps += 1
            lose(known)
        for event in batch.events[max(0, known.next_seq - batch.first_seq) :]:
            self._applied += 1
            self._events.fold(known, event, now)
        known.next_seq = max(known.next_seq, batch.first_seq + len(batch.events))
        if now >= known.renewed_s + RENEW_S:
            known.renewed_s = now
            self._sequences.renew_owner(peer, now)
        return known.complete

    def known_upto(self, peer: str) -> tuple[int, int] | None:
        """Return the epoch and number up to which all of the peer's bookings are known.

        None for a peer never heard, and while something of it is missing.
        """
        known = self._peers.get(peer)
        return (known.epoch, known.next_seq) if known is not None and known.complete else None

    def distrust(self, peer: str) -> None:
        """Have the peer's state asked for: it lives, but what it had booked is not known here."""
        known = self._peers.get(peer)
        if known is not None:
            known.complete = False

    def remove(self, peer: str) -> None:
        """Drop a dead peer and its bookings."""
        self._received.discard(peer)
        known = self._peers.pop(peer, None)
        if known is not None:
            self._events.forget(known)
        self._scheduler.ledger.forget_waiting(peer)
        self._sequences.remove_owner(peer)

    def incomplete(self) -> list[str]:
        """Return the peers whose state must be asked for."""
        return [name for name, peer in self._peers.items() if not peer.complete]

    def statistics(self) -> PeerStatistics:
        """Return the present counts."""
        applied = self._applied + self._compiled.applied
        gaps = self._gaps + self._compiled.gaps
        return PeerStatistics(applied, gaps, self._refused + self._events.refused)

    def forget_strangers(self, now: float) -> None:
        """Keep nothing of workers that did not join, and that no booking is left of."""
        self._events.forget_strangers(now)
