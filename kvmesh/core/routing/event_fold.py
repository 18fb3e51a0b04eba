"""One event of a peer's bookings, folded into this replica's own view."""

from typing import Final

from kvmesh._native import Booking, Peer
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.graded import keys_of_graded
from kvmesh.core.blocks.hashing import unpack_hashes
from kvmesh.core.members.loads import Demand
from kvmesh.core.members.outcomes import SERVED, Verdict
from kvmesh.core.routing.booking_events import Ended, Grew, Prefilled, StateBegins
from kvmesh.core.routing.peer_records import (
    Named,
    PlacedRecord,
    Record,
    read_record,
    read_shares,
)
from kvmesh.core.routing.scheduler import Scheduler

MOST_BOOKINGS: Final = 1 << 16
"""Live bookings of one peer: it has far fewer connections than that."""

MOST_IN_ALL: Final = 1 << 18
"""Live bookings of all replicas together."""

COUNT_EVERY_S: Final = 1.0
"""So often the bookings of one peer that has many are counted."""

MOST_STRANGERS: Final = 1024
"""Workers of bookings that this replica does not know yet, or no more."""

MOST_NAMED: Final = 1 << 14
"""Workers that a peer has given a number; beyond that all of its numbers are asked for anew."""

MOST_NAMES: Final = 1 << 18
"""Such names of all peers together: one has up to 512 characters."""

STRANGE_S: Final = 60.0
"""How long what bookings tell of such a worker is kept: it may join."""


class EventFold:
    """Folds peers' events, each under its peer's name as owner, into `scheduler`.

    How many bookings there are, and of which workers, is bounded; `refused` counts those beyond.
    `strangers` are the workers of bookings that are no members, with when they were met.
    """

    def __init__(self, scheduler: Scheduler) -> None:
        self.strangers: dict[WorkerId, float] = {}
        self.refused = 0
        self._names = 0
        self._scheduler = scheduler
        self._sequences = scheduler.sequences
        self._health = scheduler.workers.membership.health

    def fold(self, peer: Peer, event: Record, now: float) -> None:
        """Fold one event."""
        if isinstance(event, PlacedRecord):
            self._fold_placed(peer, event, now)
        elif isinstance(event, Prefilled | Grew | Ended):
            booking = self._sequences.bookings.get(event.request_id)
            if booking is None or booking.owner != peer.name:
                peer.republished.discard(event.request_id)
            elif event.request_id in peer.republished:
                self._follow(peer, event, now)
            else:
                self._learn(event, now)
        elif isinstance(event, Named):
            self._name(peer, event)
        elif isinstance(event, StateBegins):
            peer.unconfirmed = {one.request_id for one in self._sequences.owned(peer.name)}
        elif peer.unconfirmed is not None:
            for request_id in peer.unconfirmed:
                peer.republished.discard(request_id)
                self._sequences.finish(request_id)
            peer.unconfirmed = None
            peer.complete = True

    def forget(self, peer: Peer) -> None:
        """Drop the names of a peer that is gone."""
        self._names -= len(peer.workers)
        peer.workers.clear()

    def fold_record(self, peer: Peer, record: bytes, now: float) -> None:
        """Fold one record that was read before."""
        self.fold(peer, read_record(peer.name, record, 0)[0], now)

    def receive_shares(self, peer: Peer, data: bytes) -> None:
        """Take the shares of a message. Raises `CodecError`."""
        self._scheduler.ledger.receive(peer.name, peer.epoch, read_shares(data))

    def keep_back(self, booking: Booking, blocks: int) -> None:
        """Believe a prompt of so many blocks cached only when its worker has begun with it."""
        self._scheduler.late.add(booking, blocks)

    def end_late(self, booking: Booking, ended: bool, now: float) -> None:
        """Take a first token, or the end, of a peer's answer from a worker that caches late."""
        late = self._scheduler.late
        if ended:
            late.end(booking, now, served=True)
        else:
            late.begin(booking.worker, now)

    def note_answers(
        self, worker: WorkerId, began: bool, served: int, now: float, request_id: str
    ) -> None:
        """Take that an answer began at a worker, or none, and that so many were complete.

        One that was complete says of a worker that it is well all that one which began does.
        """
        if began and not served:
            self._health.began(worker, now)
        for _ in range(served):
            if not self._health.served(worker, now):
                self._scheduler.workers.note(worker, SERVED, now, request_id)

    def forget_strangers(self, now: float) -> None:
        """Keep nothing of workers that did not join, and that no booking is left of."""
        scheduler = self._scheduler
        for worker, met_s in tuple(self.strangers.items()):
            known = worker in scheduler.workers.membership
            idle = not self._sequences.loads(worker).active_requests
            if not known and idle and now >= met_s + STRANGE_S:
                scheduler.remove_worker(worker)
                known = True
            if known:
                del self.strangers[worker]

    def _name(self, peer: Peer, event: Named) -> None:
        number = as_name_key(event.worker)
        if number not in peer.workers:
            if len(peer.workers) >= MOST_NAMED:
                self.forget(peer)
            if self._names >= MOST_NAMES:
                self.refused += 1
                return
            self._names += 1
        peer.workers[number] = event.name

    def _fold_placed(self, peer: Peer, event: PlacedRecord, now: float) -> None:
        name = peer.workers.get(as_name_key(event.worker))
        if name is None:
            # Its name was lost, or never told: the state that is asked for now tells it.
            booking = self._sequences.bookings.get(event.request_id)
            if booking is not None and booking.owner == peer.name:
                self._sequences.finish(event.request_id)
            lose(peer)
            return
        worker = WorkerId(name)
        added = self._admits(peer, worker, now) and self._place(peer, worker, event, now)
        peer.booked += added
        if peer.unconfirmed is not None:
            peer.unconfirmed.discard(event.request_id)
            if added:
                peer.republished.add(event.request_id)

    def _admits(self, peer: Peer, worker: WorkerId, now: float) -> bool:
        """Return whether there is room for a booking, and for its worker if it is a stranger."""
        if not self._has_room(peer, now):
            self.refused += 1
            return False
        strangers = self.strangers
        if worker not in self._scheduler.workers.membership and worker not in strangers:
            if len(strangers) >= MOST_STRANGERS:
                self.refused += 1
                return False
            strangers[worker] = now
        return True

    def _has_room(self, peer: Peer, now: float) -> bool:
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
            peer.booked = len(self._sequences.owned(peer.name))
            peer.republished.intersection_update(bookings)
        return peer.booked < MOST_BOOKINGS

    def _place(self, peer: Peer, worker: WorkerId, event: PlacedRecord, now: float) -> bool:
        """Book as the peer did and expect its worker to cache the prompt; False when known."""
        graded = unpack_hashes(event.graded)
        believed = event.believed and bool(graded)
        demand = Demand(
            prompt_tokens=event.prompt_tokens,
            uncached_tokens=event.uncached_tokens,
            expected_output_tokens=event.expected_blocks * self._sequences.block_size,
            keys=tuple(keys_of_graded(graded, event.blocks)),
            streams=event.streams,
            hashes=event.graded if believed else None,
            turn=event.turn,
        )
        self._end_other(peer.name, worker, event)
        late = peer.unconfirmed is None and self._scheduler.is_late(worker)
        if not self._sequences.add(event.request_id, worker, demand, now, owner=peer.name):
            return False
        if believed and late:
            self.keep_back(self._sequences.bookings[event.request_id], event.blocks)
        elif believed:
            self._scheduler.overlaps.receive(worker, graded, event.blocks, now)
        return True

    def _end_other(self, owner: str, worker: WorkerId, event: PlacedRecord) -> None:
        """End what was booked under the same number before and failed, where that was not heard."""
        booking = self._sequences.bookings.get(event.request_id)
        if booking is None or booking.owner != owner:
            return
        booked = (worker, event.prompt_tokens, min(event.uncached_tokens, event.prompt_tokens))
        if booked != (booking.worker, booking.prompt_tokens, booking.uncached_tokens):
            self._sequences.finish(event.request_id)

    def _learn(self, event: Prefilled | Grew | Ended, now: float) -> None:
        """Fold what became of a booking followed from its beginning."""
        if isinstance(event, Prefilled):
            self._scheduler.first_token(event.request_id, now)
        elif isinstance(event, Grew):
            self._scheduler.grow(event.request_id, event.output_tokens, now)
        else:
            self._scheduler.finish(event.request_id, now, event.attempt())

    def _follow(self, peer: Peer, event: Prefilled | Grew | Ended, now: float) -> None:
        """Fold what became of a booking whose times say nothing of its worker's speed; how it
        ended says all the more of its worker's health.
        """
        if isinstance(event, Prefilled):
            self._sequences.first_token(event.request_id, now)
        elif isinstance(event, Grew):
            self._sequences.grow(event.request_id, event.output_tokens, now)
        else:
            peer.republished.discard(event.request_id)
            self._follow_end(event, now)

    def _follow_end(self, event: Ended, now: float) -> None:
        attempt = event.attempt()
        if attempt.verdict is not Verdict.SERVED:
            self._scheduler.finish(event.request_id, now, attempt)
            return
        booking = self._sequences.finish(event.request_id)
        assert booking is not None, "only what is booked is followed"
        self._scheduler.workers.note(booking.worker, attempt, now, event.request_id)


def as_name_key(number: int) -> bytes:
    """Return the number of a worker's name as a key: an int of its choice would be placed by it."""
    return number.to_bytes(4, "little")


def lose(peer: Peer) -> None:
    """Request a peer's whole state, also where one is being received: it misses something."""
    peer.complete = False
    peer.unconfirmed = None
