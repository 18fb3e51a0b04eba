"""What all requests of a router share: its scheduler, its clock, its counters."""

from collections import Counter
from collections.abc import Callable
from typing import Final

import msgspec
from structlog.typing import FilteringBoundLogger

from kvmesh.actors.kernel import Message
from kvmesh.actors.messages import WorkerHeartbeat
from kvmesh.actors.router import Router
from kvmesh.app.admission import AdmissionGate
from kvmesh.app.hang_watch import HangWatch
from kvmesh.app.patience import Patience
from kvmesh.app.phases import Phases
from kvmesh.app.prediction_check import PredictionCheck
from kvmesh.app.tracing import Tracer
from kvmesh.core.decision import RouteRequest
from kvmesh.core.decision_log import DecisionLog
from kvmesh.core.events import WorkerId
from kvmesh.core.hashing import Hashes
from kvmesh.core.retry_budget import RetryBudget
from kvmesh.errors import NoWorkerError
from kvmesh.transport.http.headers import Headers
from kvmesh.transport.http.proxy import Target

KNOWN_STATUSES: Final = frozenset({"429", "500", "502", "503", "504"})

OUTCOMES: Final = {
    "client_gone": "client_gone",
    "cut": "cut",
    "failed": "unserved",
    "finished": "finished",
    "refused": "refused",
}
"""Kinds of `plan.Outcome`, as metrics and people call them."""


class RoutingCounters:
    """What became of requests and what caches gave, since the start. Tokens are prompt tokens.

    `ends` counts requests by (kind of `plan.Outcome`, hundreds of the client's status), `failures`
    attempts by (worker, kind).
    """

    __slots__ = (
        "attempts_failed",
        "cached_tokens",
        "ends",
        "failures",
        "predicted_tokens",
        "prompt_tokens",
        "reported_tokens",
        "requests",
    )

    def __init__(self) -> None:
        self.requests = 0
        self.attempts_failed = 0
        self.prompt_tokens = 0
        self.predicted_tokens = 0
        self.reported_tokens = 0
        self.cached_tokens = 0
        self.ends: Counter[tuple[str, int]] = Counter()
        self.failures: Counter[tuple[WorkerId, str]] = Counter()

    def end(self, kind: str, status: int) -> None:
        """Count the end of a request; `status` is what the client got, 0 for nothing."""
        self.ends[kind, status // 100] += 1

    def by_outcome(self) -> dict[tuple[str, str], int]:
        """Return the requests by outcome and class of their status, e.g. ("finished", "2xx")."""
        found = dict.fromkeys(((outcome, "none") for outcome in OUTCOMES.values()), 0)
        for (kind, hundreds), count in sorted(self.ends.items()):
            found[OUTCOMES[kind], f"{hundreds}xx" if hundreds else "none"] = count
        return found

    def fail(self, worker: WorkerId, kind: str) -> None:
        """Count a failed attempt; what engines make up is no kind of its own."""
        if kind[:1].isdigit() and kind not in KNOWN_STATUSES:
            kind = f"{kind[0]}xx"
        self.failures[worker, kind] += 1

    def forget(self, worker: WorkerId) -> None:
        """Drop what was counted of a worker that is gone."""
        for key in [one for one in self.failures if one[0] == worker]:
            del self.failures[key]

    def as_dict(self) -> dict[str, int]:
        """Return every plain counter by name."""
        names = (name for name in self.__slots__ if name not in {"ends", "failures"})
        found = {name: getattr(self, name) for name in names}
        found.update(dict.fromkeys(OUTCOMES.values(), 0))
        for (kind, _), count in self.ends.items():
            found[OUTCOMES[kind]] += count
        return dict(sorted(found.items()))


class RoutingContext(msgspec.Struct, frozen=True):
    """What all requests of a router share.

    `open_requests` are those booked and not released; `tell` passes bookings on to the replicas.
    `hang_s` is how long beyond all prediction a first byte is awaited, 0 for ever.
    """

    router: Router
    router_id: str
    bucket: str
    counters: RoutingCounters
    clock: Callable[[], float]
    log: FilteringBoundLogger
    fixed_headers: Headers
    open_requests: set[str]
    tell: Callable[[Message], None]
    decisions: DecisionLog
    check: PredictionCheck
    gate: AdmissionGate
    phases: Phases
    tracer: Tracer
    budget: RetryBudget
    patience: Patience
    hangs: HangWatch
    hang_s: float

    def find_holder(self, model: str, hashes: Hashes) -> Target | None:
        """Return the worker that holds most of a prompt, of several the least busy one.

        None when nobody serves `model`.
        """
        scheduler, now = self.router.scheduler, self.clock()
        try:
            names = scheduler.workers.eligible(RouteRequest("", hashes, 0, model=model), now)
        except NoWorkerError:
            return None
        overlaps, _ = scheduler.overlaps.find_groups(hashes, now)
        loads = scheduler.sequences.loads
        best = max(names, key=lambda name: (overlaps.get(name, 0), -loads(name).active_requests))
        beat = self.router.heartbeat(best)
        return None if beat is None else target_of(beat)


def target_of(worker: WorkerHeartbeat) -> Target:
    """Return where requests for a worker go; a rank is one of several behind its engine's URL."""
    if worker.dp_rank is None:
        return Target(worker.url)
    return Target(worker.url, headers=((b"x-data-parallel-rank", b"%d" % worker.dp_rank),))
