"""The naive model of `ActiveSequences` in kvmesh/native/loads/sequences.c."""

from collections.abc import Callable, Iterable
from math import inf
from typing import Final

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.graded import key_count, key_depth
from kvmesh.core.members.loads import LOCAL, MOST_TOKENS, Demand, SequencesStatistics
from tests.reference.workers.arrivals import Arrivals
from tests.reference.workers.loads import Booking, Loads
from tests.reference.workers.turns import WorkerTurns

SETTLE_EVERY_S: Final = 0.01
OVERDUE: Final = 1.5


class ActiveSequences:
    """Bookings of this replica and of its peers, summed per worker.

    Every method is idempotent: a repeated `add`, an unknown id, an event after the end change
    nothing. Request ids must be unique among all replicas. A booking lives while life signs renew
    its lease, however long the request runs.

    Blocks shared by requests at one worker are counted once, as far as sharing keys tell
    (`core.blocks.graded`): to 15 blocks of the first 256, to 63 up to 1,024, to 255 beyond. `add`
    takes those of the hashes that the caller happens to know, and never asks for more.

    `bookings` are the live ones by request id, to be read alone. `generation` counts the workers
    removed, whose `Loads` are then no longer live.
    `arrivals` counts what anybody books, `turns` what of it was sent in turn.
    """

    def __init__(self, block_size: int, *, lease_s: float = 60.0) -> None:
        self.block_size = block_size
        self.lease_s = lease_s
        self.generation = 0
        self.arrivals = Arrivals()
        self.turns = WorkerTurns()
        self.bookings: dict[str, Booking] = {}
        self._loads: dict[WorkerId, Loads] = {}
        self._silent: dict[WorkerId, None] = {}
        self._settled_s = -inf
        self._unstreamed = 0
        self._expired = 0
        self._dropped_with_worker = 0
        self._dropped_with_owner = 0

    def loads(self, worker: WorkerId) -> Loads:
        """Return the worker's live sums; a worker never seen has zeros."""
        loads = self._loads.get(worker)
        if loads is None:
            loads = self._loads[worker] = Loads(worker)
        return loads

    def add(
        self,
        request_id: str,
        worker: WorkerId,
        demand: Demand,
        now: float,
        *,
        owner: str = LOCAL,
    ) -> bool:
        """Book a request; return False when it was already booked (at any worker)."""
        if request_id in self.bookings:
            return False
        self.arrivals.fold(now)
        loads = self._loads.get(worker) or self.loads(worker)
        prompt_tokens = min(max(0, demand.prompt_tokens), MOST_TOKENS)
        uncached_tokens = min(max(0, demand.uncached_tokens), prompt_tokens)
        expected_tokens = min(max(0, demand.expected_output_tokens), MOST_TOKENS)
        blocks = -(-prompt_tokens // self.block_size)
        keys = demand.keys[: key_count(blocks)]
        booking = self.bookings[request_id] = Booking(
            request_id=request_id,
            worker=worker,
            owner=owner,
            prompt_tokens=prompt_tokens,
            uncached_tokens=uncached_tokens,
            service_tokens=uncached_tokens,
            booked_s=now,
            renewed_s=now,
            output_s=now,
            streams=demand.streams,
            keys=keys,
            hashes=demand.hashes,
            private_blocks=blocks - key_depth(len(keys)),
            expected_blocks=-(-expected_tokens // self.block_size),
        )
        loads.begin(booking, now)
        if demand.turn:
            booking.turn = True
            self.turns.take(worker)
        if not booking.streams:
            self._silent[worker] = None
            self._unstreamed += 1
        return True

    def first_token(self, request_id: str, now: float) -> Booking | None:
        """Note the end of a request's prefill; return its booking the first time, else None.

        Engines prefill in order of arrival: older requests that show no first token are done too.
        """
        booking = self.bookings.get(request_id)
        if booking is None or not booking.prefilling:
            return None
        loads = self._loads[booking.worker]
        began_s = max(loads.progress_s, booking.booked_s)
        for older in list(loads.prefilling.values()) if loads.silent else ():
            if older is booking:
                break
            if not older.streams:
                began_s = max(loads.progress_s, min(began_s, older.booked_s))
                booking.service_tokens += older.uncached_tokens
                self._end_prefill(loads, older)
                older.prefilling = False
                older.output_s = now
        if booking.streams:
            loads.end_prefill(booking)
        else:
            self._end_prefill(loads, booking)
        booking.prefilling = False
        booking.hashes = None
        booking.service_s = max(0.0, now - began_s)
        booking.renewed_s = booking.output_s = loads.progress_s = now
        return booking

    def settle(self, now: float, ms_per_token: Callable[[WorkerId], float]) -> None:
        """End the prefills that nobody will see end, once they are overdue by half.

        O(workers that have such requests), but not more often than every `SETTLE_EVERY_S`; call it
        before reading loads.
        """
        if 0.0 <= now - self._settled_s < SETTLE_EVERY_S:
            return
        self._settled_s = now
        for worker in tuple(self._silent):
            loads = self._loads[worker]
            per_token_s = OVERDUE * ms_per_token(worker) / 1000.0
            while loads.prefilling:
                oldest = next(iter(loads.prefilling.values()))
                done_s = loads.progress_s + per_token_s * oldest.uncached_tokens
                if oldest.streams or now < done_s:
                    break
                self._end_prefill(loads, oldest)
                oldest.prefilling = False
                loads.progress_s = oldest.output_s = done_s

    def grow(self, request_id: str, output_tokens: int, now: float) -> None:
        """Raise a request's output to `output_tokens` in total, `MOST_TOKENS` at most; a lower
        figure is old news.
        """
        output_tokens = min(output_tokens, MOST_TOKENS)
        booking = self.bookings.get(request_id)
        if booking is None:
            return
        booking.renewed_s = max(booking.renewed_s, now)
        if output_tokens <= booking.output_tokens:
            return
        booking.output_s = now
        self.foresee(booking, 0)
        size = self.block_size
        before = -(-(booking.prompt_tokens + booking.output_tokens) // size)
        after = -(-(booking.prompt_tokens + output_tokens) // size)
        booking.output_tokens = output_tokens
        if after == before:
            return
        booking.private_blocks += after - before
        came_true = min(booking.expected_blocks, after - before)
        booking.expected_blocks -= came_true
        self._loads[booking.worker].grow(after - before, came_true)

    def foresee(self, booking: Booking, blocks: int) -> None:
        """Count so many blocks of a live booking's expected output as come unseen, in place of
        what was counted before.
        """
        change = blocks - booking.foreseen_blocks
        if change:
            booking.foreseen_blocks = blocks
            booking.private_blocks += change
            booking.expected_blocks -= change
            self._loads[booking.worker].grow(change, change)

    def finish(self, request_id: str) -> Booking | None:
        """Release a request, however it ended; return its booking the first time, else None."""
        booking = self.bookings.pop(request_id, None)
        if booking is None:
            return None
        loads = self._loads[booking.worker]
        self._unstreamed -= not booking.streams
        if booking.prefilling:
            self._end_prefill(loads, booking)
        loads.end(booking)
        return booking

    def correct(self, worker: WorkerId, requests: int, blocks: int, prefill_tokens: int) -> None:
        """Count load at a worker that nobody booked, in place of what was counted before.

        The prompts of those `requests` are taken to fill the `blocks`.
        """
        most = MOST_TOKENS
        self.loads(worker).correct(
            min(requests, most), min(blocks, most), min(prefill_tokens, most), self.block_size
        )

    def resize(self, block_size: int) -> None:
        """Count blocks of another size from now on; what is booked keeps those it was booked with.

        Load that nobody booked is forgotten until the next report of it. O(workers + requests).
        """
        for loads in self._loads.values():
            loads.correct(0, 0, 0, self.block_size)
        for booking in self.bookings.values():
            self.foresee(booking, 0)
        self.block_size = block_size

    def renew(self, request_ids: Iterable[str], now: float) -> None:
        """Take a sign of life for each: their leases run from `now`."""
        for request_id in request_ids:
            booking = self.bookings.get(request_id)
            if booking is not None:
                booking.renewed_s = max(booking.renewed_s, now)

    def renew_owner(self, owner: str, now: float) -> None:
        """Take a sign of life for every booking of one owner. O(requests)."""
        for booking in self.bookings.values():
            if booking.owner == owner:
                booking.renewed_s = max(booking.renewed_s, now)

    def expire(self, now: float) -> list[Booking]:
        """Release and return the bookings without a life sign for `lease_s`. O(requests)."""
        limit = now - self.lease_s
        dead = [one for one in self.bookings.values() if one.renewed_s < limit]
        for booking in dead:
            self.finish(booking.request_id)
        self._expired += len(dead)
        return dead

    def remove_worker(self, worker: WorkerId) -> list[Booking]:
        """Release and return every booking at `worker`, and forget the worker. O(requests)."""
        gone = [one for one in self.bookings.values() if one.worker == worker]
        for booking in gone:
            self.finish(booking.request_id)
        self._loads.pop(worker, None)
        self.turns.remove(worker)
        self.generation += 1
        self._dropped_with_worker += len(gone)
        return gone

    def remove_owner(self, owner: str) -> list[Booking]:
        """Release and return every booking of a peer that went away. O(requests)."""
        gone = self.owned(owner)
        for booking in gone:
            self.finish(booking.request_id)
        self._dropped_with_owner += len(gone)
        return gone

    def owned(self, owner: str = LOCAL) -> list[Booking]:
        """Return the live bookings of one owner, oldest first: what a joining peer asks for."""
        return [one for one in self.bookings.values() if one.owner == owner]

    def unseen(self) -> list[Booking]:
        """Return the live bookings whose answers grow without anybody seeing how far, oldest first.
        O(requests), O(1) while all of them stream.
        """
        if not self._unstreamed:
            return []
        return [
            one
            for one in self.bookings.values()
            if not (one.streams or one.prefilling or one.output_tokens)
        ]

    def statistics(self) -> SequencesStatistics:
        """Return totals. O(workers)."""
        loads = self._loads.values()
        return SequencesStatistics(
            workers=len(loads),
            active_requests=len(self.bookings),
            prefill_tokens=sum(one.prefill_tokens for one in loads),
            active_blocks=sum(one.active_blocks for one in loads),
            expired=self._expired,
            dropped_with_worker=self._dropped_with_worker,
            dropped_with_owner=self._dropped_with_owner,
        )

    def _end_prefill(self, loads: Loads, booking: Booking) -> None:
        """Take a request out of the backlog; whether it is done the caller knows."""
        loads.end_prefill(booking)
        if not booking.streams and not loads.silent:
            self._silent.pop(booking.worker, None)
