"""Which workers may take a request, and what they say of themselves."""

from collections.abc import Sequence
from typing import Final

from kvmesh.core.decision import BusyThresholds, LoadReport, RouteRequest, Trust, WorkerInfo
from kvmesh.core.events import WorkerId
from kvmesh.core.membership import Membership
from kvmesh.core.sequences import ActiveSequences
from kvmesh.errors import NoWorkerError

NAMED_IN_ERRORS: Final = 8

_NO_INFO: Final = WorkerInfo()
_NO_REPORT: Final = LoadReport()


class WorkerRegistry:
    """Filters the living (`membership`) by model, pins, exclusions and load (`sequences`).

    `thresholds` may be changed at any time. `distrusted` are the workers whose events do not count.
    """

    def __init__(self, membership: Membership, sequences: ActiveSequences) -> None:
        self.membership = membership
        self.thresholds = BusyThresholds()
        self.distrusted: set[WorkerId] = set()
        self._sequences = sequences
        self._infos: dict[WorkerId, WorkerInfo] = {}
        self._reports: dict[WorkerId, LoadReport] = {}
        self._picky = 0

    def describe(self, worker: WorkerId, info: WorkerInfo) -> None:
        """Note what a worker serves and how far its events are trusted."""
        self._picky += bool(info.models) - bool(self.info(worker).models)
        self._infos[worker] = info
        if info.trust in (Trust.DEGRADED, Trust.APPROX):
            self.distrusted.add(worker)
        else:
            self.distrusted.discard(worker)

    def report(self, worker: WorkerId, report: LoadReport) -> None:
        """Note an engine's own load figures."""
        self._reports[worker] = report

    def remove(self, worker: WorkerId) -> None:
        """Forget what a worker said."""
        self._picky -= bool(self.info(worker).models)
        self._infos.pop(worker, None)
        self._reports.pop(worker, None)
        self.distrusted.discard(worker)

    def info(self, worker: WorkerId) -> WorkerInfo:
        """Return what a worker says of itself; the default for one that said nothing."""
        return self._infos.get(worker, _NO_INFO)

    def last_report(self, worker: WorkerId) -> LoadReport:
        """Return the engine's last figures; zeros when there are none."""
        return self._reports.get(worker, _NO_REPORT)

    def capacity_blocks(self, worker: WorkerId) -> int:
        """Return the KV blocks the engine has; 0 when unknown."""
        return self.last_report(worker).total_blocks or self.info(worker).total_blocks

    def eligible(self, request: RouteRequest, now: float) -> Sequence[WorkerId]:
        """Return the workers that may take `request`, sorted.

        O(1) for a request without wishes while no worker names models and no threshold is set.
        Raises `NoWorkerError` with the reason for each worker.
        """
        alive: Sequence[WorkerId] = [WorkerId(name) for name in self.membership.usable(now)]
        plain = not (
            self._picky
            or request.excluded
            or request.allowed_workers is not None
            or request.pinned_worker is not None
            or self.thresholds != BusyThresholds()
        )
        if not plain:
            alive = [worker for worker in alive if self._refusal(worker, request) is None]
        if not alive:
            raise NoWorkerError(self._reasons(request, now))
        return alive

    def _refusal(self, worker: WorkerId, request: RouteRequest) -> str | None:
        if request.pinned_worker is not None and worker != request.pinned_worker:
            return "not the pinned worker"
        if worker in request.excluded:
            return "already failed this request"
        if request.allowed_workers is not None and worker not in request.allowed_workers:
            return "not allowed for this request"
        models = self.info(worker).models
        if request.model and models and request.model not in models:
            return f"does not serve {request.model!r}"
        return self._busy(worker)

    def _busy(self, worker: WorkerId) -> str | None:
        limits = self.thresholds
        loads = self._sequences.loads(worker)
        if (
            limits.active_prefill_tokens is not None
            and loads.prefill_tokens > limits.active_prefill_tokens
        ):
            return f"busy: {loads.prefill_tokens} prefill tokens queued"
        capacity = self.capacity_blocks(worker)
        if (
            limits.active_decode_blocks is not None
            and capacity
            and loads.active_blocks > limits.active_decode_blocks * capacity
        ):
            return f"busy: {loads.active_blocks} of {capacity} blocks in use"
        return None

    def _reasons(self, request: RouteRequest, now: float) -> str:
        members = self.membership.members()
        reasons: list[str] = []
        for name in members[:NAMED_IN_ERRORS]:
            why = self.membership.why_not(name, now) or self._refusal(WorkerId(name), request)
            reasons.append(f"{name}: {why}")
        if len(members) > NAMED_IN_ERRORS:
            reasons.append(f"and {len(members) - NAMED_IN_ERRORS} more")
        listed = "; ".join(reasons) or "no worker has joined"
        return f"request {request.request_id}: no worker may take it ({listed})"
