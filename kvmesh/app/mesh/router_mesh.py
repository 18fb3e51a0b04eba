"""What a router asks of its part of the mesh, whichever it is."""

from collections.abc import Callable, Iterable
from typing import Protocol

from kvmesh._native import Booking, BookingOutbox
from kvmesh.actors.kernel import Message
from kvmesh.actors.messages import RouterHeartbeat
from kvmesh.app.views.figure import Source
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.engines.kv_events.regaining import CacheHit
from kvmesh.core.insight.predictions import Distrust

Hear = Callable[[str, bytes], None]
"""Takes a message's subject and its bytes."""


class MeshPart(Protocol):
    """How a router learns of workers and caches.

    `RouterMesh` from a journal, `SharingMesh` from siblings, `StaticWorkers` alone.
    """

    draining: bool

    def why_not(self) -> str:
        """Return why no request should come; "" when they may."""
        ...

    def warnings(self) -> tuple[str, ...]:
        """Return what makes routing worse than it could be, one line each."""
        ...

    def describe(self) -> dict[str, object]:
        """Return the state of this part, for /v1/status."""
        ...

    def figures(self) -> Iterable[Source]:
        """Return what is counted in this part."""
        ...

    def replicas(self) -> tuple[RouterHeartbeat, ...]:
        """Return the last signs of life of this replica and its peers, own first."""
        ...

    def digests(self) -> tuple[int, int]:
        """Return how many digests of peers were compared, and how many differed."""
        ...

    @property
    def post(self) -> Callable[[Message], None] | None:
        """Return what publishes to the other replicas; None where there can be none."""
        ...

    @property
    def outbox(self) -> BookingOutbox | None:
        """Return what is told of bookings, for other replicas; None where there can be none."""
        ...

    @property
    def released(self) -> Callable[[Booking], None] | None:
        """Return what is called with each booking that this router released; None for nothing."""
        ...

    def share_streams(self, hear: Hear) -> Callable[[bytes], None] | None:
        """Have what siblings tell of named streams heard; return what tells them, None where there
        can be none.
        """
        ...

    def distrust(self, worker: WorkerId, distrust: Distrust) -> None:
        """Have what is known of the worker's cache sent anew, if it can be."""
        ...

    def served(self, worker: WorkerId, answer: CacheHit) -> None:
        """Tell who follows the worker's cache what an answer says of it."""
        ...

    def emptied(self, worker: WorkerId) -> None:
        """Tell who follows the worker's cache that its engine was told to forget it, and did."""
        ...

    def drain(self, worker: WorkerId, *, draining: bool) -> None:
        """Have all replicas of the bucket give the worker nothing new, or use it again."""
        ...

    async def start(self, advertise_url: str) -> None:
        """Begin."""
        ...

    async def failed(self) -> None:
        """Wait until a part fails, and raise its error."""
        ...

    async def stop(self) -> None:
        """End; safe to call twice."""
        ...
