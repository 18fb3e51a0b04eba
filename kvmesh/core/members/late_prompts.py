"""Prompts that wait at engines whose caches count only what has been prefilled."""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from kvmesh._native import Booking
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import Hashes, unpack_hashes

MOST_WAITING: Final = 4096
"""Prompts kept back at one worker; those beyond are believed when events tell of them."""

MOST_SCORE: Final = 8
"""How surely a worker is known by its answers, either way."""

MISSED: Final = 4
"""An answer that did not find what was sent before it weighs as much as so many that found more
than events had told of, which may only be late.
"""


class LatePrompts:
    """Keeps prompts back from what is believed cached until their engine has begun with them.

    Some engines (`workers`) enter a prompt into their cache when its batch is prefilled: a request
    finds what is computed while it waits, and nothing of those that wait with it. So what is sent
    to such a worker behind others' prefills is believed cached there from the next end of one on.

    What comes while an idle worker prefills finds that prompt if the engine is free to wait for its
    end. SGLang forms a batch before it enters the one before into its cache. On a GPU it does so at
    once, with what is there by then, and waits; on a CPU the batch computes in its loop, and all
    that came meanwhile is the next batch, which finds nothing of it. So a worker has a score of
    what its answers found; below 0 nothing is believed cached there until events tell of it.

    `waiting`: what is kept back, by worker, then by request id; `live` are all bookings. `believe`
    counts a prompt of this replica as cached, `hear` the graded hashes of a peer's.
    """

    def __init__(
        self,
        workers: dict[WorkerId, int],
        live: Mapping[str, Booking],
        believe: Callable[[WorkerId, Hashes, float, int], object],
        hear: Callable[[WorkerId, Sequence[int], int, float], object],
    ) -> None:
        self.workers = workers
        self.waiting: dict[WorkerId, dict[str, tuple[Booking, int]]] = {}
        self._live = live
        self._believe = believe
        self._hear = hear

    def add(self, booking: Booking, blocks: int = 0) -> None:
        """Keep a booking's prompt back; of a peer's it has so many blocks."""
        if self.workers.get(booking.worker, 0) < 0:
            return
        waiting = self.waiting.setdefault(booking.worker, {})
        if len(waiting) < MOST_WAITING:
            waiting[booking.request_id] = (booking, blocks)

    def begin(self, worker: WorkerId, now: float) -> None:
        """Take that a prefill ended at a worker: what waited there was done with it, or is begun
        with now.
        """
        for request_id, (booking, blocks) in self.waiting.pop(worker, {}).items():
            if self._live.get(request_id) is booking:
                self._count(booking, blocks, now)

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
            self._count(*waited, now)
        if served and (booking.prefilling or not booking.streams):
            # Nobody saw its first token.
            self.begin(booking.worker, now)

    def judge(self, worker: WorkerId, predicted: int, reported: int, cached: int) -> None:
        """Learn of an answer's blocks: what was `predicted`, what events had `reported` of that,
        and what was cached.
        """
        score = self.workers.get(worker)
        if score is None:
            return
        if reported <= cached < predicted - 1:
            self.workers[worker] = max(score - MISSED, -MOST_SCORE)
        elif cached > reported + 1:
            self.workers[worker] = min(score + 1, MOST_SCORE)

    def remove_worker(self, worker: WorkerId) -> None:
        """Forget what waits at a worker that left."""
        self.waiting.pop(worker, None)

    def _count(self, booking: Booking, blocks: int, now: float) -> None:
        hashes = booking.hashes
        if isinstance(hashes, bytes):
            self._hear(booking.worker, unpack_hashes(hashes), blocks, now)
        elif hashes is not None:
            self._believe(booking.worker, hashes, now, booking.keep_s)
