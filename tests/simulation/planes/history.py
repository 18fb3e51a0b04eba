"""What was published and what was stored: the models that replicas are held against."""

import contextlib

from kvmesh.actors.wire import last_token
from kvmesh.core.blocks.events import Cleared, Removed, Stored, WorkerId, decode_batch
from kvmesh.core.blocks.hashing import unpack_hashes
from kvmesh.core.journal.ordering import Ordering
from kvmesh.core.routing.booking_events import Ended, StateBegins, StateEnds
from kvmesh.core.routing.peer_records import PlacedRecord, Record, read_records
from kvmesh.errors import CodecError
from kvmesh.formats import FormatRange
from tests.doubles.sim.journal import SimJournal
from tests.simulation.planes.engine import MASK

ALL = FormatRange(1, 9)
"""A model reads what any process of a run may write."""


class PublishedHistory:
    """What each worker's events amount to, folded plainly as they are first sent."""

    def __init__(self) -> None:
        self._digests: dict[tuple[WorkerId, int], list[int]] = {}
        self._held: dict[tuple[WorkerId, int], set[tuple[int, int]]] = {}

    def sent(self, worker: WorkerId, data: bytes) -> None:
        batch = decode_batch(data, ALL)
        key = worker, batch.epoch
        digests = self._digests.setdefault(key, [0])
        held = self._held.setdefault(key, set())
        if batch.first_seq != len(digests):
            assert batch.first_seq < len(digests), "a publisher skipped numbers"
            return
        for event in batch.events:
            if isinstance(event, Stored):
                held.update((block, event.tier) for block in unpack_hashes(event.hashes))
            elif isinstance(event, Removed):
                held.difference_update((block, event.tier) for block in unpack_hashes(event.hashes))
            else:
                assert isinstance(event, Cleared)
                held.clear()
            digests.append(sum((2 * tier + 1) * block for block, tier in held) & MASK)

    def digest(self, worker: WorkerId, epoch: int, seq: int) -> int:
        return self._digests[worker, epoch][seq]


class PerfectReader:
    """Reads every record the moment it is stored: what any replica can know at best."""

    def __init__(self, journal: SimJournal) -> None:
        self._ordering = Ordering()
        journal.on_stored.append(self._read)

    def _read(self, _: int, subject: str, data: bytes) -> None:
        with contextlib.suppress(CodecError):
            self._ordering.admit(WorkerId(last_token(subject)), decode_batch(data, ALL))

    def has_read(self, worker: WorkerId, epoch: int, seq: int) -> bool:
        """Whether it could apply that event, or knows the epoch to be over."""
        cursor = self._ordering.cursor(worker)
        if cursor is None or cursor.epoch != epoch:
            return seq == 0 or (cursor is not None and cursor.epoch > epoch)
        return seq < cursor.next_seq


class BookedHistory:
    """Which requests each replica's numbered events leave booked, folded plainly as they are sent.

    Between `StateBegins` and `StateEnds` the bookings are told again, and no others are left.
    """

    def __init__(self) -> None:
        self._live: dict[tuple[str, int], list[frozenset[str]]] = {}
        self._reported: dict[tuple[str, int], set[str] | None] = {}

    def sent(self, router: str, data: bytes) -> None:
        batch = read_records(router, data, ALL)
        key = router, batch.epoch
        history = self._live.setdefault(key, [frozenset()])
        assert batch.first_seq == len(history), "a replica skipped numbers"
        for event in batch.events:
            history.append(self._after(key, history[-1], event))

    def booked(self, router: str, epoch: int, next_seq: int) -> frozenset[str]:
        return self._live[router, epoch][next_seq - 1]

    def _after(self, key: tuple[str, int], live: frozenset[str], event: Record) -> frozenset[str]:
        reported = self._reported.get(key)
        match event:
            case PlacedRecord():
                request_id = event.request_id
                if reported is not None:
                    reported.add(request_id)
                return live | {request_id}
            case Ended(request_id):
                if reported is not None:
                    reported.discard(request_id)
                return live - {request_id}
            case StateBegins():
                self._reported[key] = set()
            case StateEnds():
                assert reported is not None
                self._reported[key] = None
                return frozenset(reported)
            case _:
                pass
        return live
