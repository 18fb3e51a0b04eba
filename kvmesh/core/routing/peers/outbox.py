"""What this replica has yet to tell its siblings of its bookings, as the records that travel."""

from typing import Final, Protocol

from kvmesh._native import Booking
from kvmesh.core.health.outcomes import SERVED, Attempt

MOST_BYTES: Final = 4 << 20
"""Records that wait to be taken. Beyond it all of them are left out: peers find the gap in their
numbers, and ask for the state.
"""


class OtherOutbox(Protocol):
    """An outbox that writes another format, in place of the one that has it."""

    def placed(self, booking: Booking) -> None:
        """Do as `BookingOutbox.placed`."""
        ...

    def first_token(self, request_id: str) -> None:
        """Do as `BookingOutbox.first_token`."""
        ...

    def ended(self, request_id: str, attempt: Attempt = SERVED) -> None:
        """Do as `BookingOutbox.ended`."""
        ...


class Nobody:
    """In place of an outbox while nobody listens: the others ask for the state when they do."""

    def placed(self, booking: Booking) -> None:
        """Tell nobody."""

    def first_token(self, request_id: str) -> None:
        """Tell nobody."""

    def ended(self, request_id: str, attempt: Attempt = SERVED) -> None:
        """Tell nobody."""
