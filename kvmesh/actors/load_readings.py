"""The load that engines tell: each reading counts once, and not for ever."""

from typing import Final

from kvmesh.actors.messages import WorkerHeartbeat
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.routing.registry import WorkerRegistry

STALE_BEATS: Final = 10
"""So many heartbeats in a row with the same reading: the engine no longer tells its load."""


class LoadReadings:
    """Passes readings on to `workers`. A sidecar that does not count them is believed each time."""

    def __init__(self, workers: WorkerRegistry) -> None:
        self._workers = workers
        self._repeats: dict[WorkerId, int] = {}

    def receive(self, beat: WorkerHeartbeat, former: WorkerHeartbeat | None) -> None:
        """Take a reading of the load once; one that stays the same for long says nothing."""
        worker = beat.worker
        reading = (beat.epoch, beat.reading)
        if not beat.reading or former is None or reading != (former.epoch, former.reading):
            self._repeats.pop(worker, None)
            self._workers.report(worker, beat.load.report())
            return
        repeats = self._repeats[worker] = self._repeats.get(worker, 0) + 1
        if repeats == STALE_BEATS:
            self._workers.forget_report(worker)

    def forget(self, worker: WorkerId) -> None:
        """Drop what was counted of a worker that is gone."""
        self._repeats.pop(worker, None)
