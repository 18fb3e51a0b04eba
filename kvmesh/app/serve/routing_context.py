"""What all requests of a router share: its scheduler, its clock, its counters."""

from collections import Counter, deque
from collections.abc import Callable, Iterable
from typing import Final

import msgspec
from structlog.typing import FilteringBoundLogger

from kvmesh._native import Booking, BookingOutbox, Head, Record, TokenCounts
from kvmesh.actors.messages import RouterHeartbeat, WorkerHeartbeat
from kvmesh.actors.router import Router
from kvmesh.app.front.tracing import Tracer
from kvmesh.app.members.failure_care import FailureCounts
from kvmesh.app.members.hang_watch import HangWatch
from kvmesh.app.members.open_streams import OpenStreams
from kvmesh.app.members.patience import Patience
from kvmesh.app.members.sleeping import SleepingEngines
from kvmesh.app.serve.admission import AdmissionGate
from kvmesh.app.serve.alternatives import Alternatives
from kvmesh.app.serve.open_sockets import OpenSockets
from kvmesh.app.serve.request_ends import RequestEnds
from kvmesh.app.serve.response_holders import ResponseHolders
from kvmesh.app.serve.stream_sharing import StreamSharing
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import Hashes
from kvmesh.core.dispatch.dispatch import Dispatch
from kvmesh.core.dispatch.dispatched import Dispatched
from kvmesh.core.engines.registry import DEFAULT_KIND, engine_of
from kvmesh.core.insight.decision_log import DecisionLog
from kvmesh.core.insight.prefix_texts import PrefixTexts
from kvmesh.core.insight.scaling import ScalingOptions
from kvmesh.core.members.answer_check import AnswerCheck
from kvmesh.core.members.outcomes import UNKNOWN
from kvmesh.core.members.retry_budget import RetryBudget
from kvmesh.core.members.worker_info import Trust
from kvmesh.core.routing.decision import RouteRequest, RouterMode
from kvmesh.core.routing.registry import WorkerRegistry
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.errors import NoWorkerError
from kvmesh.transport.http.forward.plan import Target
from kvmesh.transport.http.forward.resume import StreamKeep
from kvmesh.transport.http.server.incoming import Incoming
from kvmesh.transport.http.server.request import Request
from kvmesh.transport.http.server.scope import End
from kvmesh.transport.http.wire.headers import Headers

MOST_ENDED: Final = 1 << 12
"""Requests that ended and wait to be counted by model and tenant; beyond it the oldest are dropped.
"""


MOST_TARGETS: Final = 4096
"""Workers whose targets are kept; beyond it all are made anew."""

Ended = tuple[Record | None, str, str, End, int, Dispatched, Head, int | None]
"""A request that ended: its record, None of one that was never decided; model, tenant, how it ended
(`server.scope`), what status its client got, what was asked and decided, and its head, whose
body is let go; how many tokens its client had of the stream that it asked for again. A plain tuple:
named ones take 0.3 us more.
"""


class RoutingCounters:
    """What became of requests and what caches gave, since the start: `tokens` of prompts.

    `splits` are requests that might have been prefilled elsewhere, by why they were not, "" for
    those that were.
    `ends` are requests by outcome and class of the client's status, `failures` are attempts at
    workers. `ended` are those that somebody may count who has more time. `streams` keeps what
    streams need to go on elsewhere, and counts those that did.
    """

    __slots__ = (
        "attempts_failed",
        "ended",
        "ends",
        "failures",
        "requests",
        "splits",
        "streams",
        "tokens",
    )

    def __init__(
        self, failures: FailureCounts, tokens: TokenCounts, streams: StreamKeep | None = None
    ) -> None:
        self.requests = 0
        self.attempts_failed = 0
        self.splits: Counter[str] = Counter()
        self.tokens = tokens
        self.streams = streams or StreamKeep(0)
        self.ends = RequestEnds()
        self.ended: deque[Ended] = deque(maxlen=MOST_ENDED)
        self.failures = failures

    def as_dict(self) -> dict[str, int]:
        """Return every plain counter by name, requests by how they ended among them.

        `saved_tokens` of `prompt_tokens` were not computed since they were cached, which would have
        taken `saved_ms`: `cached_tokens` of them by engines' word, the others as predicted.
        Of the finished ones `errors_passed_on` were the worker's own answers of 5xx.
        """
        found = {
            "requests": self.requests,
            "attempts_failed": self.attempts_failed,
            "errors_passed_on": self.ends.count("finished", "5xx"),
            "prompt_tokens": self.tokens.prompt,
            "reported_tokens": self.tokens.reported,
            "predicted_tokens": self.tokens.predicted,
            "cached_tokens": self.tokens.cached,
            "saved_tokens": self.tokens.saved,
            "saved_ms": round(self.tokens.saved_s * 1000.0),
            **self.ends.by_outcome(),
        }
        return dict(sorted(found.items()))


Keep = Callable[[Dispatched, Request], None]
"""A request, and what is sent for it."""


def target_of(worker: WorkerHeartbeat, check: AnswerCheck | None = None) -> Target:
    """Return where requests for a worker go; a rank is one of several behind its engine's URL."""
    ids = engine_of(worker.engine_kind or DEFAULT_KIND).stream_ids
    headers: Headers = ()
    if worker.dp_rank is not None:
        headers = engine_of(worker.engine_kind).rank_headers(worker.dp_rank)
    return Target(worker.url, headers=headers, worker=worker.worker, check=check, gives_ids=ids)


class ReadAgain:
    """Reads the request of a stream that is to go on at another worker. `read` is told which, its
    prompt and answer so far as packed ids if they are known, and who takes what is to be routed.
    """

    read: Callable[[Incoming, bytes | None, Callable[[RouteRequest], None]], None]


class Targets:
    """Where requests for workers go, made once a heartbeat, with what judges the worker's answers
    for as long as it tells of the same models.
    """

    def __init__(self) -> None:
        self._made: dict[str, tuple[WorkerHeartbeat, Target]] = {}

    def of(self, worker: WorkerHeartbeat) -> Target:
        """Return where requests for a worker go."""
        made = self._made.get(worker.worker)
        if made is not None and made[0] is worker:
            return made[1]
        if made is not None and made[0].models == worker.models:
            check = made[1].check
        else:
            if len(self._made) >= MOST_TARGETS:
                self._made.clear()
            check = AnswerCheck(worker.models)
        target = target_of(worker, check)
        self._made[worker.worker] = worker, target
        return target


class RoutingContext(msgspec.Struct, frozen=True):
    """What all requests of a router share.

    `routing` decides, `decisions` is its log, `gate` tells those it holds of their turn.
    `open_requests` are those booked and not released; `outbox` is told what becomes of bookings,
    for the replicas, `released` takes what was released; None: nobody.
    `streams` are under way and could go on elsewhere.
    `emptied` tells who follows a worker's cache that its engine forgot it.
    `ask_suspects` has workers asked at once that a failure made suspect.
    `holders` knows whose the ids of answers and files are, and who keeps them. `debug`: each
    decision is logged.
    `targets` are where requests go, with what judges the answers.
    `alternatives` finds where a request could go as well, for who is told that; None: nobody is.
    `scaling` says from when on workers count as full.
    `keep` takes each prompt as it is sent, `texts` a sample of all; None: nobody does.
    `again` reads requests once more whose streams are to go on. `named` tells siblings of streams
    that their clients named; None: none are kept. `sockets` are the open WebSockets,
    `asleep` the workers whose engines sleep.
    """

    router: Router
    router_id: str
    bucket: str
    counters: RoutingCounters
    clock: Callable[[], float]
    log: FilteringBoundLogger
    fixed_headers: Headers
    open_requests: set[str]
    outbox: BookingOutbox | None
    released: Callable[[Booking], None] | None
    scheduler: Scheduler
    workers: WorkerRegistry
    routing: Dispatch
    decisions: DecisionLog
    gate: AdmissionGate
    tracer: Tracer | None
    budget: RetryBudget
    patience: Patience
    hangs: HangWatch
    streams: OpenStreams
    ask_suspects: Callable[[], None]
    holders: ResponseHolders
    emptied: Callable[[WorkerId], None]
    alternatives: Alternatives | None = None
    targets: Targets = msgspec.field(default_factory=Targets)
    debug: bool = False
    scaling: ScalingOptions = ScalingOptions()
    keep: Keep | None = None
    texts: PrefixTexts | None = None
    again: ReadAgain = msgspec.field(default_factory=ReadAgain)
    named: StreamSharing | None = None
    sockets: OpenSockets = msgspec.field(default_factory=OpenSockets)
    asleep: SleepingEngines = msgspec.field(default_factory=SleepingEngines)

    def checks(self, mode: RouterMode | None) -> bool:
        """Return whether anything looks at the prompt of a request with this mode."""
        if "kv" in (mode, self.scheduler.options.mode):
            return True
        binding = self.routing.binding
        held = binding.bounded or bool(binding.waiting)
        return held or self.decisions.ring is not None or bool(self.router.prefillers)

    def trust(self, worker: str) -> Trust:
        """Return how far the overlaps foretold of a worker may be believed, as people are told."""
        name = WorkerId(worker)
        return self.routing.predictions.word(name, self.workers.info(name).trust)

    def leads(self, replicas: Iterable[RouterHeartbeat]) -> bool:
        """Return whether this replica does what one of the bucket's is to do: of those that do not
        drain, routers before pickers, the one of the least name.
        """
        ranks = [(one.picker, one.router) for one in replicas if not one.draining]
        return min(ranks, default=(False, self.router_id))[1] == self.router_id

    def report_booked(self, request_id: str) -> None:
        """Have the replicas told of a request that was just booked here."""
        booking = self.scheduler.sequences.bookings.get(request_id)
        if self.outbox is not None and booking is not None:
            self.outbox.placed(booking)

    def take_back(self, request_id: str) -> None:
        """Release what is still booked of a request that an error of ours has ended."""
        if self.scheduler.sequences.bookings.get(request_id) is not None:
            self.scheduler.finish(request_id, self.clock(), UNKNOWN)
            if self.outbox is not None:
                self.outbox.ended(request_id, UNKNOWN)
            self.gate.load_fell()

    def find_holder(self, model: str, hashes: Hashes) -> Target | None:
        """Return the worker that holds most of a prompt, of several the least busy one.

        None when nobody serves `model`.
        """
        scheduler, now = self.scheduler, self.clock()
        try:
            names = scheduler.workers.eligible(RouteRequest("", hashes, 0, model=model), now)
        except NoWorkerError:
            return None
        overlaps, _ = scheduler.overlaps.find_groups(hashes, now)
        loads = scheduler.sequences.loads
        best = max(names, key=lambda name: (overlaps.get(name, 0), -loads(name).active_requests))
        beat = self.router.heartbeats.get(best)
        return None if beat is None else target_of(beat)
