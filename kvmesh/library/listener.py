"""What of a live mesh the library reads, and the form in which cached prefixes are returned."""

from typing import Protocol

import msgspec

from kvmesh.core.index.index import KvIndex
from kvmesh.core.routing.scheduler import Scheduler


class Matches(dict[str, int]):
    """{worker id: cached prefix in blocks}.

    Source: `scores` is the attribute of NVIDIA Dynamo's `OverlapScores`, which is no mapping.
    """

    @property
    def scores(self) -> dict[str, int]:
        """Return this mapping, for code that expects it as an attribute."""
        return self


class MeshView(msgspec.Struct, frozen=True):
    """One bucket as it is known at `now`, seconds: its workers and loads (`scheduler`), what they
    cache by their events (`index`), and the namespace of plain prompts (`root`).

    Scheduler and index are live: read them in the turn of the event loop that got them.
    """

    scheduler: Scheduler
    index: KvIndex
    root: int
    now: float

    @property
    def block_size(self) -> int:
        """Return how many tokens a block has."""
        return self.scheduler.options.block_size


class Listener(Protocol):
    """Whoever follows a live mesh: `await kvmesh.follow(nats_url, bucket)` returns one."""

    def view(self) -> MeshView:
        """Return what is known now. Raises `TransportError` where the mesh is not followed."""
        ...
