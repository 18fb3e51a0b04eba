"""Prompts that wait at engines whose caches count only what has been prefilled."""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet

from kvmesh._native import Booking
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import Hashes


class LatePrompts:
    """Keeps prompts back from what is believed cached until their engine has begun with them.

    Some engines (`workers`) enter a prompt into their cache when its batch is prefilled: a request
    finds what is computed while it waits, and nothing of those that wait with it. So what is sent
    to such a worker behind others' prefills is believed cached there from the next end of one on.
    `waiting`: those bookings by worker, then by request id; `live` are all bookings. `believe`
    counts a prompt as cached.
    """

    def __init__(
        self,
        workers: AbstractSet[WorkerId],
        live: Mapping[str, Booking],
        believe: Callable[[WorkerId, Hashes, float, int], object],
    ) -> None:
        self.workers = workers
        self.waiting: dict[WorkerId, dict[str, Booking]] = {}
        self._live = live
        self._believe = believe

    def add(self, booking: Booking) -> None:
        """Keep a booking's prompt back."""
        self.waiting.setdefault(booking.worker, {})[booking.request_id] = booking

    def begin(self, worker: WorkerId, now: float) -> None:
        """Take that a prefill ended at a worker: what waited there was done with it, or is begun
        with now.
        """
        for request_id, booking in self.waiting.pop(worker, {}).items():
            if self._live.get(request_id) is booking:
                self._count(booking, now)

    def end(self, booking: Booking, now: float, served: bool) -> None:
        """Take the end of a booking, which is no longer live; of one that was not served nothing is
        to be believed.
        """
        waiting = self.waiting.get(booking.worker)
        if waiting is None:
            return
        waited = waiting.pop(booking.request_id, None)
        if not waiting:
            del self.waiting[booking.worker]
        if served and waited is not None:
            self._count(booking, now)
        if served and (booking.prefilling or not booking.streams):
            # Nobody saw its first token.
            self.begin(booking.worker, now)

    def remove_worker(self, worker: WorkerId) -> None:
        """Forget what waits at a worker that left."""
        self.waiting.pop(worker, None)

    def _count(self, booking: Booking, now: float) -> None:
        hashes = booking.hashes
        if hashes is not None and not isinstance(hashes, bytes):
            self._believe(booking.worker, hashes, now, booking.keep_s)
