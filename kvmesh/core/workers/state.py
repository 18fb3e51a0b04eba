"""All that is known of one worker."""

from collections.abc import Callable
from typing import Final, cast

from kvmesh.compiled import NATIVE
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.workers.info import LoadReport, WorkerInfo
from kvmesh.core.workers.loads import Loads
from kvmesh.core.workers.relative_speed import Ratio


class WorkerState:
    """A worker's load, speed and own words, for the loop over the candidates.

    `gaps`: load that nobody here booked, by its last reports. `failure_share` of the requests
    there fail beyond what is usual in the fleet, and `lost_ms` go by until they do. `blank_blocks`
    of its `capacity_blocks` hold nothing that is cached: they are taken before anything is evicted;
    0 while that is not known. In C where there is a compiled core (kvmesh/native/states.c).
    """

    __slots__ = (
        "blank_blocks",
        "capacity_blocks",
        "failure_share",
        "gaps",
        "info",
        "loads",
        "lost_ms",
        "prefill",
        "report",
        "worker",
    )

    def __init__(
        self, worker: WorkerId, loads: Loads, prefill: Ratio, info: WorkerInfo, report: LoadReport
    ) -> None:
        self.worker = worker
        self.loads = loads
        self.prefill = prefill
        self.info = info
        self.report = report
        self.capacity_blocks = 0
        self.blank_blocks = 0
        self.gaps: tuple[tuple[int, int, int], ...] = ()
        self.failure_share = 0.0
        self.lost_ms = 0.0


NewWorkerState = Callable[[WorkerId, Loads, Ratio, WorkerInfo, LoadReport], WorkerState]

new_worker_state: Final = cast("NewWorkerState", NATIVE.WorkerState) if NATIVE else WorkerState
"""Return what is known of a worker before it has said anything but this."""
