"""What the other replicas have booked, as far as their messages came."""

from typing import Final

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.graded import grade, keys_of_strided
from kvmesh.core.blocks.hashing import pack_hashes, unpack_hashes
from kvmesh.core.health.outcomes import Verdict
from kvmesh.core.routing.booking_events import (
    BookingBatch,
    BookingEvent,
    Ended,
    Grew,
    Placed,
    Prefilled,
    StateBegins,
)
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.core.workers.loads import Demand

RENEW_S: Final = 0.5
"""A living peer renews all its bookings, but not with each of its 200 messages a second."""


MOST_PEERS: Final = 1024
"""Siblings and followers whose bookings are kept."""

MOST_BOOKINGS: Final = 1 << 16
"""Live bookings of one peer: it has far fewer connections than that."""

MOST_IN_ALL: Final = 1 << 18
"""Live bookings of all replicas together."""

COUNT_EVERY_S: Final = 1.0
"""So often the bookings of one peer that has many are counted."""

MOST_STRANGERS: Final = 1024
"""Workers of bookings that this replica does not know yet, or no more."""

STRANGE_S: Final = 60.0
"""How long what bookings tell of such a worker is kept: it may join."""


class _Peer:
    """One peer: how far it was heard, whether all of it, and which bookings a state leaves out.

    `retold` are bookings that came with a state: when they really began is not known.
    """

    __slots__ = (
        "booked",
        "complete",
        "counted_s",
        "epoch",
        "next_seq",
        "renewed_s",
        "retold",
        "unconfirmed",
    )

    def __init__(self, epoch: int, now: float) -> None:
        self.epoch = epoch
        self.renewed_s = now
        self.next_seq = 1
        self.complete = True
        self.unconfirmed: set[str] | None = None
        self.retold: set[str] = set()
        self.booked = 0
        self.counted_s = now


class PeerBookings:
    """Applies peers' batches, each event once, under the peer's name as owner.

    What peers decide and see of speeds counts in `scheduler` as if this replica had decided and
    seen it, so that replicas that share a burst choose as one would. After a gap what comes is
    still applied, and the peer counts as incomplete until its whole state came without one.

    Who sends bookings, and how many, of which workers, is bounded; `refused` counts the batches
    and bookings beyond the bounds. A peer that is `heard` of otherwise is preferred to one that is
    not.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self._scheduler = scheduler
        self._sequences = scheduler.sequences
        self._peers: dict[str, _Peer] = {}
        self._heard: set[str] = set()
        self._strangers: dict[WorkerId, float] = {}
        self.applied = 0
        self.gaps = 0
        self.refused = 0

    def heard(self, peer: str) -> None:
        """Learn that a peer sends heartbeats."""
        self._heard.add(peer)

    def admits(self, peer: str) -> bool:
        """Return whether there is room for a peer, made if need be by one that is not heard."""
        if peer in self._peers or len(self._peers) < MOST_PEERS:
            return True
        unheard = next((one for one in self._peers if one not in self._heard), None)
        if unheard is None or peer not in self._heard:
            self.refused += 1
            return False
        self.remove(unheard)
        return True

    def apply(self, peer: str, batch: BookingBatch, now: float) -> bool:
        """Fold a batch and renew the peer's leases; return whether the peer is known completely."""
        known = self._peers.get(peer)
        if known is None or batch.epoch > known.epoch:
            self._sequences.remove_owner(peer)
            known = self._peers[peer] = _Peer(batch.epoch, now)
        elif batch.epoch < known.epoch:
            return known.complete
        if batch.shares is not None:
            self._scheduler.ledger.hear(peer, batch.epoch, batch.shares)
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

    def known_upto(self, peer: str) -> tuple[int, int] | None:
        """Return the epoch and number up to which all of the peer's bookings are known.

        None for a peer never heard, and while something of it is missing.
        """
        known = self._peers.get(peer)
        return (known.epoch, known.next_seq) if known is not None and known.complete else None

    def doubt(self, peer: str) -> None:
        """Have the peer's state asked for: it lives, but what it had booked is not known here."""
        known = self._peers.get(peer)
        if known is not None:
            known.complete = False

    def remove(self, peer: str) -> None:
        """Drop a dead peer and its bookings."""
        self._heard.discard(peer)
        self._peers.pop(peer, None)
        self._scheduler.ledger.forget_waiting(peer)
        self._sequences.remove_owner(peer)

    def incomplete(self) -> list[str]:
        """Return the peers whose state must be asked for."""
        return [name for name, peer in self._peers.items() if not peer.complete]

    def _fold(self, name: str, peer: _Peer, event: BookingEvent, now: float) -> None:
        if isinstance(event, Placed):
            added = self._admits(name, peer, event, now) and self._place(name, event, now)
            peer.booked += added
            if peer.unconfirmed is not None:
                peer.unconfirmed.discard(event.request_id)
                if added:
                    peer.retold.add(event.request_id)
        elif isinstance(event, Prefilled | Grew | Ended):
            booking = self._sequences.bookings.get(event.request_id)
            if booking is None or booking.owner != name:
                peer.retold.discard(event.request_id)
            elif event.request_id in peer.retold:
                self._follow(peer, event, now)
            else:
                self._learn(event, now)
        elif isinstance(event, StateBegins):
            peer.unconfirmed = {one.request_id for one in self._sequences.owned(name)}
        elif peer.unconfirmed is not None:
            for request_id in peer.unconfirmed:
                peer.retold.discard(request_id)
                self._sequences.finish(request_id)
            peer.unconfirmed = None
            peer.complete = True

    def forget_strangers(self, now: float) -> None:
        """Keep nothing of workers that did not join, and that no booking is left of."""
        scheduler = self._scheduler
        for worker, met_s in tuple(self._strangers.items()):
            known = worker in scheduler.workers.membership
            idle = not self._sequences.loads(worker).active_requests
            if not known and idle and now >= met_s + STRANGE_S:
                scheduler.remove_worker(worker)
                known = True
            if known:
                del self._strangers[worker]

    def _admits(self, name: str, peer: _Peer, event: Placed, now: float) -> bool:
        """Return whether there is room for a booking, and for its worker if it is a stranger."""
        if not self._has_room(name, peer, now):
            self.refused += 1
            return False
        worker, strangers = WorkerId(event.worker), self._strangers
        if worker not in self._scheduler.workers.membership and worker not in strangers:
            if len(strangers) >= MOST_STRANGERS:
                self.refused += 1
                return False
            strangers[worker] = now
        return True

    def _has_room(self, name: str, peer: _Peer, now: float) -> bool:
        """Return whether the peer may have another booking. O(1), O(bookings) once a second when it
        had many.
        """
        bookings = self._sequences.bookings
        if len(bookings) >= MOST_IN_ALL:
            return False
        if peer.booked < MOST_BOOKINGS:
            return True
        if now >= peer.counted_s + COUNT_EVERY_S:
            peer.counted_s = now
            peer.booked = len(self._sequences.owned(name))
            peer.retold.intersection_update(bookings)
        return peer.booked < MOST_BOOKINGS

    def _place(self, name: str, event: Placed, now: float) -> bool:
        """Book as the peer did and expect its worker to cache the prompt; False when known."""
        block_size = self._sequences.block_size
        worker = WorkerId(event.worker)
        known = unpack_hashes(event.hashes)
        graded = grade(known, len(known))
        demand = Demand(
            prompt_tokens=event.prompt_tokens,
            uncached_tokens=event.uncached_tokens,
            expected_output_tokens=event.expected_blocks * block_size,
            keys=tuple(keys_of_strided(unpack_hashes(event.keys))),
            streams=event.streams,
            hashes=pack_hashes(graded) if graded else None,
            turn=event.turn,
        )
        if not self._sequences.add(event.request_id, worker, demand, now, owner=name):
            return False
        if graded:
            self._scheduler.overlaps.hear(worker, graded, len(known), now)
        return True

    def _learn(self, event: Prefilled | Grew | Ended, now: float) -> None:
        """Fold what became of a booking followed from its beginning."""
        if isinstance(event, Prefilled):
            self._scheduler.first_token(event.request_id, now)
        elif isinstance(event, Grew):
            self._scheduler.grow(event.request_id, event.output_tokens, now)
        else:
            self._scheduler.finish(event.request_id, now, event.attempt())

    def _follow(self, peer: _Peer, event: Prefilled | Grew | Ended, now: float) -> None:
        """Fold what became of a booking whose times say nothing of its worker's speed; how it
        ended says all the more of its worker's health.
        """
        if isinstance(event, Prefilled):
            self._sequences.first_token(event.request_id, now)
        elif isinstance(event, Grew):
            self._sequences.grow(event.request_id, event.output_tokens, now)
        else:
            peer.retold.discard(event.request_id)
            self._follow_end(event, now)

    def _follow_end(self, event: Ended, now: float) -> None:
        attempt = event.attempt()
        if attempt.verdict is not Verdict.SERVED:
            self._scheduler.finish(event.request_id, now, attempt)
            return
        booking = self._sequences.finish(event.request_id)
        assert booking is not None, "only what is booked is followed"
        self._scheduler.workers.note(booking.worker, attempt, now, event.request_id)
