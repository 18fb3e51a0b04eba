"""How a simulated client tells the other replicas of what it books."""

from kvmesh._native import BookingOutbox
from kvmesh.actors.kernel import Effect, Send
from kvmesh.actors.messages import BookingsWait


class Teller:
    """The outbox of a replica, and the effects that have it sent."""

    def __init__(self, outbox: BookingOutbox) -> None:
        self.outbox = outbox
        self._waits = False
        outbox.on_first = self._note

    def updates(self) -> list[Effect]:
        """Return what to do for what was told in this turn."""
        waits, self._waits = self._waits, False
        return [Send("replica_sync", BookingsWait())] if waits else []

    def _note(self) -> None:
        self._waits = True
