"""An outbox of bookings, and what it was told of them."""

from kvmesh._native import ActiveSequences, Booking, BookingOutbox
from kvmesh.core.routing.booking_events import Ended, Prefilled
from kvmesh.core.routing.peer_records import Named, PlacedRecord, read_records


class NotedOutbox:
    """An outbox whose records are read, under the ids of the bookings that it was told here."""

    def __init__(self, sequences: ActiveSequences) -> None:
        self.outbox = BookingOutbox(sequences, 1)
        self._ids: list[str] = []
        self._reported: list[tuple[object, ...]] = []

    def place(self, booking: Booking) -> None:
        """Tell of a booking."""
        self.outbox.placed(booking)
        self._ids.append(booking.request_id)

    @property
    def reported(self) -> list[tuple[object, ...]]:
        """Return what became of these bookings."""
        for message in self.outbox.take(1 << 20, 1 << 20):
            for event in read_records("", message).events:
                match event:
                    case Prefilled(number):
                        self._reported.append(("first token", self._id(number)))
                    case Ended(number):
                        self._reported.append(("ended", self._id(number), event.attempt()))
                    case _:
                        assert isinstance(event, Named | PlacedRecord)
        return self._reported

    def _id(self, number: str) -> str:
        return self._ids[int(number.removeprefix("#")) - 1]
