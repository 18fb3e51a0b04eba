"""An outbox of bookings that notes what it is told."""

from kvmesh._native import ActiveSequences, Booking, BookingOutbox
from kvmesh.core.health.outcomes import SERVED, Attempt


class ToldOutbox:
    """Takes what an outbox is told in its place, as one that writes another format does."""

    def __init__(self) -> None:
        self.told: list[tuple[object, ...]] = []

    def placed(self, booking: Booking) -> None:
        """Note it."""
        self.told.append(("placed", booking.request_id))

    def first_token(self, request_id: str) -> None:
        """Note it."""
        self.told.append(("first token", request_id))

    def ended(self, request_id: str, attempt: Attempt = SERVED) -> None:
        """Note it."""
        self.told.append(("ended", request_id, attempt))


def noted_outbox(sequences: ActiveSequences) -> tuple[BookingOutbox, list[tuple[object, ...]]]:
    """Return an outbox and the list of what it is told."""
    outbox, other = BookingOutbox(sequences, 1), ToldOutbox()
    outbox.other = other
    return outbox, other.told
