"""A prompt's prefill at a worker of its own: booked, asked for over HTTP, given back once."""

from collections.abc import Mapping
from typing import Final, Protocol
from urllib.parse import urlsplit

import msgspec

from kvmesh.actors.messages import WorkerHeartbeat
from kvmesh.app.serve.routed import RoutedRequest
from kvmesh.app.serve.routing_context import RoutingContext, target_of
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.engines.handshake import NO_PARAMS, Connector, Meeting
from kvmesh.core.members.outcomes import UNKNOWN, Attempt, Verdict
from kvmesh.core.routing.choice.kv_transfers import Transfers
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.core.routing.disaggregation import SplitOptions
from kvmesh.core.routing.overdue import patience_s
from kvmesh.errors import TransportError
from kvmesh.transport.http.fetch import HTTP_OK, fetch, fetch_ok
from kvmesh.transport.http.forward.plan import ForwardPlan
from kvmesh.transport.http.upstream.client import UpstreamPool
from kvmesh.transport.http.wire.headers import Headers
from kvmesh.transport.http.wire.problem import Problem

NO_ANSWER: Final = 0
"""The status of a prefill that nobody answered."""

NO_PREFILL: Final = Problem(
    503, "no prefill worker can take this request", "no_worker", retry_after_s=1
)

_REQUEST_ID: Final = b"x-request-id"


class Sent(msgspec.Struct, frozen=True):
    """What the client sent, as far as the prefill worker must see it; `why_whole` says why it may
    not be split, "" if it may.
    """

    path: str
    body: bytes
    headers: Headers
    why_whole: str = ""

    def called(self, request_id: bytes) -> "Sent":
        """Return the same under another request id."""
        others = [one for one in self.headers if one[0] != _REQUEST_ID]
        return msgspec.structs.replace(self, headers=(*others, (_REQUEST_ID, request_id)))


class Divide(Protocol):
    """Makes the plan of a request that may be prefilled on one worker, decoded on another."""

    def __call__(
        self,
        context: RoutingContext,
        request: RouteRequest,
        decode: RoutedRequest,
        sent: Sent,
        splits: "Splits",
    ) -> ForwardPlan:
        """Return its plan."""
        ...


class Splits:
    """What all requests of a router share that may be split: when to, and how long moving takes.

    `divide` makes their plans, None: `DisaggregatedRequest` does. `always`: of every request, also
    while there are no prefill workers.
    """

    def __init__(self, options: SplitOptions, pool: UpstreamPool) -> None:
        self.options = options
        self.pool = pool
        self.transfers = Transfers()
        self.divide: Divide | None = None
        self.always = False


class Fetch(msgspec.Struct, frozen=True):
    """What the decode worker is sent once the prefill is done, at `since_s`; until then not."""

    body: bytes
    request_id: bytes
    since_s: float
    lease_s: float


class Prefill:
    """One prefill: `book` it, and `give_back` whatever of that was done, also after an error.

    `worker` is None for one that is gone, `way` for one that shares requests as only a later
    version knows. `patience_s` is how long the prefill may take.
    """

    def __init__(self, context: RoutingContext, wanted: RouteRequest) -> None:
        self._context = context
        self._wanted = wanted
        self._booked = ""
        self.patience_s = 0.0
        self.name = WorkerId("")
        self.worker: WorkerHeartbeat | None = None
        self.way: Connector | None = None

    def book(self) -> None:
        """Choose its worker and book it there. Raises `NoWorkerError` when nobody may do it."""
        context, request_id = self._context, self._wanted.request_id
        self._booked = request_id
        decision = context.scheduler.schedule(self._wanted, context.clock()).record.decision
        context.open_requests.add(request_id)
        context.report_booked(request_id)
        self.patience_s = patience_s(decision.chosen)
        self.name = decision.worker
        self.worker = context.router.heartbeats.get(decision.worker)
        self.way = None if self.worker is None else self.worker.way

    def booked(self) -> str:
        """Return the id of its booking, "" once it was given back."""
        return self._booked

    def ends(self) -> None:
        """Note that its one token has come: the backlog there is shorter."""
        if self._booked:
            self._context.scheduler.first_token(self._booked, self._context.clock())

    def give_back(self, attempt: Attempt = UNKNOWN) -> None:
        """Release its booking; safe to call twice."""
        booked, self._booked = self._booked, ""
        if not booked:
            return
        context = self._context
        context.open_requests.discard(booked)
        if context.outbox is not None:
            context.outbox.ended(booked, attempt)
        booking = context.scheduler.finish(booked, context.clock(), attempt)
        served = booking is not None and attempt.verdict is Verdict.SERVED
        if context.released is not None and booking is not None and served:
            context.released(booking)


def meeting_of(prefiller: WorkerHeartbeat, decoder: WorkerHeartbeat | None, room: int) -> Meeting:
    """Return how two workers are named to each other."""
    return Meeting(
        host=urlsplit(prefiller.url).hostname or "",
        port=prefiller.bootstrap_port,
        room=room,
        dp_rank=prefiller.dp_rank,
        decode_host="" if decoder is None else urlsplit(decoder.url).hostname or "",
        decode_port=0 if decoder is None else decoder.bootstrap_port,
    )


async def ask_engine_id(pool: UpstreamPool, way: Connector, meeting: Meeting) -> str:
    """Return what the prefill worker calls itself, asked at its side channel; "" for no answer.

    Asked each time: an engine that was started again is another one.
    """
    if way.engine_ids is None:
        return ""
    host = f"[{meeting.host}]" if ":" in meeting.host else meeting.host
    page = await fetch_ok(pool, f"http://{host}:{meeting.port}", way.asks)
    ids: Mapping[int, str] = {} if page is None else way.engine_ids(page)
    return ids.get(meeting.dp_rank or 0, "")


async def ask_prefill(
    pool: UpstreamPool, worker: WorkerHeartbeat, sent: Sent, body: bytes, timeout_s: float
) -> tuple[int, bytes]:
    """Return a prefill's status and answer; `NO_ANSWER` and why when there is none."""
    target = target_of(worker)
    try:
        return await fetch(
            pool,
            target.origin,
            sent.path,
            timeout_s=timeout_s,
            headers=(*sent.headers, *target.headers),
            json=body,
        )
    except TransportError as error:
        return NO_ANSWER, str(error).encode()


def read_answer(way: Connector, status: int, answer: bytes) -> msgspec.Raw | None:
    """Return what a prefill's answer tells the decode worker; None when it transfers nothing."""
    if status != HTTP_OK:
        return None
    return NO_PARAMS if way.answers is None else way.answers(answer)


def report_split(whole: str | None, prefill: Prefill | None, *, veiled: bool) -> Headers:
    """Tell a client which worker prefilled, or `whole`: why there was but one. Whether a prompt is
    split depends on how much of it is cached: one that is `veiled` from that is told nothing.
    """
    if veiled:
        return ()
    if whole:
        return ((b"x-kvmesh-whole", whole.encode()),)
    return () if prefill is None else ((b"x-kvmesh-prefill-worker", prefill.name.encode()),)


def cannot_split(why: str) -> Problem:
    """Return the error for a request that no worker can serve whole, and no two can share."""
    return Problem(
        503,
        f"{why}: only one prompt with one answer can be prefilled on another worker, and no worker "
        "here can do all of it: send prompts one by one, or add a worker of role both",
        "not_splittable",
    )
