"""Late binding: a request is given a worker when one can begin soon, and waits until then."""

from collections.abc import Callable
from math import inf
from typing import Final

import msgspec

from kvmesh.core.admission.queue import (
    AdmissionOptions,
    AdmissionStatistics,
    HoldQueue,
    Refusal,
    WaitingRequest,
)
from kvmesh.core.routing.decision import Decision, RouteRequest
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.errors import NoWorkerError

LOOK_EVERY_S: Final = 0.02
"""While requests wait: backlogs also shrink with time, and by what other replicas see."""

PAUSE_S: Final = 0.002
"""At least so long between two looks: a burst of first tokens is one event."""


class Released(msgspec.Struct, frozen=True):
    """A request that waits no longer, and why: its worker, none that could ever take it, or an
    error of ours, which is this request's alone.
    """

    request_id: str
    verdict: Decision | Exception


class LateBinding:
    """The scheduler behind a `HoldQueue`.

    A request waits while the worker it would get has a longer predicted backlog than
    `max_backlog_ms`, while all workers that could take it are above a busy threshold, and behind
    those that wait already. Its worker is chosen, and booked, when its turn comes.
    Neither `bounded` nor anybody in `waiting`: no request has to be asked about.
    """

    def __init__(self, scheduler: Scheduler, options: AdmissionOptions) -> None:
        self._scheduler = scheduler
        self._queue = HoldQueue(options)
        self.bounded = options.max_backlog_ms > 0.0
        self.waiting: dict[str, RouteRequest] = {}

    @property
    def options(self) -> AdmissionOptions:
        """Return how requests are held."""
        return self._queue.options

    def __len__(self) -> int:
        return len(self.waiting)

    def change(self, options: AdmissionOptions) -> None:
        """Go by other options from now on; what waits already keeps its place."""
        self._queue.options = options
        self.bounded = options.max_backlog_ms > 0.0

    def ask(self, request: RouteRequest, now: float) -> Decision | Refusal | None:
        """Choose and book, or hold (None: `release` will name the request), or refuse.

        Raises `NoWorkerError` when waiting would not help.
        """
        if not self.waiting:
            decision = self._try(request, now)
            if decision is not None:
                return decision
        held = WaitingRequest(
            request.request_id, self._work(request, now), request.tenant, request.priority
        )
        refusal = self._queue.offer(held, now)
        if refusal is None:
            self.waiting[request.request_id] = request
        return refusal

    def release(self, now: float, weigh_all: Callable[[], bool]) -> list[Released]:
        """Choose and book for those whose turn it is. Call it whenever load may have fallen.

        `weigh_all` says whether the next decision shall carry every candidate. A request that
        cannot be decided about leaves the queue with its error; those behind it are asked.
        """
        verdicts: list[Released] = []

        def admit(held: WaitingRequest) -> bool:
            verdict = self._find(self.waiting[held.request_id], now, weigh_all)
            if verdict is None:
                return False
            verdicts.append(Released(held.request_id, verdict))
            return True

        for held in self._queue.release(now, admit):
            del self.waiting[held.request_id]
        return verdicts

    def expire(self, now: float) -> list[str]:
        """Return the ids of those that waited too long; they wait no longer."""
        late = [held.request_id for held in self._queue.expire(now)]
        for request_id in late:
            del self.waiting[request_id]
        return late

    def cancel(self, request_id: str) -> bool:
        """Forget a request whose client went away; False when it does not wait here."""
        if self.waiting.pop(request_id, None) is None:
            return False
        return self._queue.cancel(request_id)

    def retry_after_s(self) -> int:
        """Return after how many seconds a new request would probably go at once."""
        return self._queue.retry_after_s()

    def statistics(self) -> AdmissionStatistics:
        """Return sizes and counts."""
        return self._queue.statistics()

    def _find(
        self, request: RouteRequest, now: float, weigh_all: Callable[[], bool]
    ) -> Decision | Exception | None:
        """Do as `_try`, and return what that raises.

        Whoever is told of the error drops its traceback: through its frames and their callers an
        error that was returned holds itself, and the request, until the collector comes.
        """
        try:
            self._scheduler.trace = weigh_all()
            return self._try(request, now)
        except Exception as error:  # noqa: BLE001  one of many: the others wait behind it
            return error

    def _try(self, request: RouteRequest, now: float) -> Decision | None:
        """Choose and book; None when waiting may help. Raises `NoWorkerError` when it will not."""
        bound = self._queue.options.max_backlog_ms
        try:
            return self._scheduler.schedule_within(request, now, bound or inf)
        except NoWorkerError as error:
            if error.busy and bound:
                return None
            raise

    def _work(self, request: RouteRequest, now: float) -> int:
        """Return the prompt tokens that no worker has cached."""
        _, groups = self._scheduler.overlaps.find_groups(request.hashes, now)
        cached = groups[0][0] * self._scheduler.options.block_size if groups else 0
        return max(1, request.prompt_tokens - cached)
