"""One replica that hears of others' bookings, and all that they may have changed in it."""

import random
from collections.abc import Sequence

import msgspec

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.index.approx import new_approx
from kvmesh.core.index.index import KvIndex
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.worker_info import WorkerInfo
from kvmesh.core.routing.decision import RouterOptions
from kvmesh.core.routing.event_fold import EventFold
from kvmesh.core.routing.peer_bookings import PeerBookings
from kvmesh.core.routing.scheduler import Scheduler
from tests.reference.routing.peer_bookings import BookingsOfEachRecord
from tests.reference.workers.speed_report import speed_report

FIGURES = (
    *("prefill_tokens", "prompt_tokens", "active_requests", "active_blocks", "expected_blocks"),
    *("silent", "progress_s"),
)
BOOKED = (
    *("request_id", "worker", "owner", "prompt_tokens", "uncached_tokens", "service_tokens"),
    *("booked_s", "renewed_s", "output_s", "streams", "keys", "hashes", "private_blocks"),
    *("expected_blocks", "output_tokens", "prefilling", "service_s", "turn"),
)


class Replica:
    """A scheduler over `members`, and what it knows of its peers; record by record in Python unless
    `compiled`. One that does not `believe` takes no prompt for cached where a peer sent it. Workers
    that are `late` cache what they have prefilled, and tell events.
    """

    def __init__(
        self,
        *members: str,
        block_size: int = 4,
        compiled: bool = True,
        lease_s: float = 10.0,
        believes: bool = True,
        late: Sequence[str] = (),
    ) -> None:
        self.membership = Membership()
        for member in members:
            self.membership.add(member, 0.0)
        self.sequences = new_sequences(block_size, lease_s=lease_s)
        options = RouterOptions(block_size=block_size)
        self.scheduler = Scheduler(
            options,
            random.Random(1),
            membership=self.membership,
            sequences=self.sequences,
            index=KvIndex() if late else None,
        )
        for worker in late:
            self.scheduler.workers.describe(WorkerId(worker), WorkerInfo(caches_late=True))
        self.hints = new_approx(graded=True)
        if believes:
            self.scheduler.listen(self.hints)
        self.peers = (PeerBookings if compiled else BookingsOfEachRecord)(self.scheduler)

    def events(self) -> EventFold:
        """Return what folds single events here."""
        return EventFold(self.scheduler)

    def ids(self, peer: str) -> list[str]:
        """Return the ids of a peer's live bookings, oldest first."""
        return [one.request_id for one in self.sequences.owned(peer)]

    def view(self) -> dict[str, object]:
        """Return all that a peer's bookings can have changed, to the last bit."""
        bookings = self.sequences.bookings.values()
        workers = sorted({one.worker for one in bookings} | set(self.membership.members()))
        names = [WorkerId(one) for one in workers]
        loads = [self.sequences.loads(one) for one in names]
        health = self.membership.health
        speeds = self.scheduler.speeds
        return {
            "bookings": [[getattr(one, name) for name in BOOKED] for one in bookings],
            "loads": [[getattr(one, name) for name in FIGURES] for one in loads],
            "shared": [dict(one.shared) for one in loads],
            "prefilling": [list(one.prefilling) for one in loads],
            "believed": (self.hints.sizes(names), self.hints.statistics()),
            "speeds": [msgspec.to_builtins(speed_report(speeds, one)) for one in names],
            "health": [
                (health.recent(one), health.served_s(one), health.standing(one, 1e6))
                for one in names
            ],
            "records": {
                name: [getattr(one, slot) for slot in type(one).__slots__]
                for name, one in health._records.items()
            },
            "out": sorted(health.out),
            "late": [(name, *kept) for name, kept in self.scheduler.late.waiting.items()],
            "incomplete": self.peers.incomplete(),
            "statistics": self.peers.statistics(),
            "arrivals": self.sequences.arrivals.per_ms(1e6),
        }
