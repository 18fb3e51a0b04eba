"""The naive model of kvmesh/native/peers/message_fold.c: every record is folded by itself, in
Python.
"""

from kvmesh.core.routing.peer_bookings import PeerBookings


class BookingsOfEachRecord(PeerBookings):
    """`PeerBookings` that never folds a message in one call."""

    def receive(self, peer: str, data: bytes, now: float) -> bool | None:
        """Do as that one does."""
        return self._fold_each(peer, data, now)
