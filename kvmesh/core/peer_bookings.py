"""What the other replicas have booked, as far as their messages came."""

from typing import Final

from kvmesh.core.booking_events import (
    BookingBatch,
    BookingEvent,
    Ended,
    Grew,
    Placed,
    Prefilled,
    StateBegins,
)
from kvmesh.core.events import WorkerId
from kvmesh.core.hashing import unpack_hashes
from kvmesh.core.loads import Demand
from kvmesh.core.sequences import ActiveSequences

RENEW_S: Final = 0.5
"""A living peer renews all its bookings, but not with each of its 200 messages a second."""


class _Peer:
    """One peer: how far it was heard, whether all of it, and which bookings a state leaves out."""

    __slots__ = ("complete", "epoch", "next_seq", "renewed_s", "unconfirmed")

    def __init__(self, epoch: int, now: float) -> None:
        self.epoch = epoch
        self.renewed_s = now
        self.next_seq = 1
        self.complete = True
        self.unconfirmed: set[str] | None = None


class PeerBookings:
    """Applies peers' batches to `sequences`, each event once, under the peer's name as owner.

    After a gap what comes is still applied, and the peer counts as incomplete until its whole
    state came without one.
    """

    def __init__(self, sequences: ActiveSequences) -> None:
        self._sequences = sequences
        self._peers: dict[str, _Peer] = {}
        self.applied = 0
        self.gaps = 0

    def apply(self, peer: str, batch: BookingBatch, now: float) -> bool:
        """Fold a batch and renew the peer's leases; return whether the peer is known completely."""
        known = self._peers.get(peer)
        if known is None or batch.epoch > known.epoch:
            self._sequences.remove_owner(peer)
            known = self._peers[peer] = _Peer(batch.epoch, now)
        elif batch.epoch < known.epoch:
            return known.complete
        if batch.first_seq > known.next_seq:
            self.gaps += 1
            known.complete = False
            known.unconfirmed = None
        for event in batch.events[max(0, known.next_seq - batch.first_seq) :]:
            self.applied += 1
            self._fold(peer, known, event, now)
        known.next_seq = max(known.next_seq, batch.first_seq + len(batch.events))
        if now >= known.renewed_s + RENEW_S:
            known.renewed_s = now
            self._sequences.renew((one.request_id for one in self._sequences.owned(peer)), now)
        return known.complete

    def remove(self, peer: str) -> None:
        """Drop a dead peer and its bookings."""
        self._peers.pop(peer, None)
        self._sequences.remove_owner(peer)

    def incomplete(self) -> list[str]:
        """Return the peers whose state must be asked for."""
        return [name for name, peer in self._peers.items() if not peer.complete]

    def _fold(self, name: str, peer: _Peer, event: BookingEvent, now: float) -> None:
        sequences = self._sequences
        if isinstance(event, Placed):
            demand = Demand(
                prompt_tokens=event.prompt_tokens,
                uncached_tokens=event.uncached_tokens,
                expected_output_tokens=event.expected_blocks * sequences.block_size,
                keys=tuple(unpack_hashes(event.keys)),
                streams=event.streams,
            )
            sequences.add(event.request_id, WorkerId(event.worker), demand, now, owner=name)
            if peer.unconfirmed is not None:
                peer.unconfirmed.discard(event.request_id)
        elif isinstance(event, Prefilled | Grew | Ended):
            self._progress(name, event, now)
        elif isinstance(event, StateBegins):
            peer.unconfirmed = {one.request_id for one in sequences.owned(name)}
        elif peer.unconfirmed is not None:
            for request_id in peer.unconfirmed:
                self._progress(name, Ended(request_id), now)
            peer.unconfirmed = None
            peer.complete = True

    def _progress(self, name: str, event: Prefilled | Grew | Ended, now: float) -> None:
        """Fold what became of a booking, if it is that peer's."""
        booking = self._sequences.booking(event.request_id)
        if booking is None or booking.owner != name:
            return
        if isinstance(event, Prefilled):
            self._sequences.first_token(event.request_id, now)
        elif isinstance(event, Grew):
            self._sequences.grow(event.request_id, event.output_tokens, now)
        else:
            self._sequences.finish(event.request_id)
