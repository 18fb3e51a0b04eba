"""What shows a router whether its workers' engines make progress."""

from collections.abc import Callable, Sequence
from math import inf

from kvmesh.actors.router import Router
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.progress import Due
from kvmesh.transport.http.upstream.client import UpstreamPool


class EngineSigns:
    """The `Evidence` of a router: its engines' figures, and the bytes that come from them.

    All of it is looked up in spare time: a request on its way notes nothing for it.
    """

    def __init__(self, router: Router, pool: UpstreamPool, clock: Callable[[], float]) -> None:
        self._router = router
        self._pool = pool
        self._clock = clock

    def shown_s(self, worker: str) -> float:
        """Return when the engine last showed progress, or a byte of an answer came."""
        served_s = self._router.scheduler.workers.membership.health.served_s(worker)
        return max(self._router.progress.moved_s(worker), served_s, self._byte_s(worker))

    def is_stalled(self, worker: str, dues: Sequence[Due]) -> bool:
        """Return whether the engine stands still though these requests wait there."""
        progress, byte_s = self._router.progress, self._byte_s(worker)
        return progress.is_stalled(worker, dues, self._clock(), byte_s=byte_s)

    def _byte_s(self, worker: str) -> float:
        beat = self._router.heartbeats.get(WorkerId(worker))
        return -inf if beat is None else self._clock() - self._pool.quiet_s(beat.url)
