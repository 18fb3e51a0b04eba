"""The index process's side of the edges: it decides and books for them."""

import asyncio
import contextlib
from pathlib import Path
from typing import Final, assert_never

from kvmesh.app.edge.messages import (
    Abandon,
    Again,
    Answering,
    Ask,
    AttemptFailed,
    EdgeReport,
    FromEdge,
    Go,
    Hello,
    IndexCodec,
    Progress,
    Queued,
    Refuse,
    RequestEnded,
    ToEdge,
    Withdrawn,
    WorkerUpdate,
    asked,
)
from kvmesh.app.figures.figure import Source
from kvmesh.app.figures.front import EDGES, EdgeRow
from kvmesh.app.front.front import Routes, answer_json
from kvmesh.app.serve.routed import RoutedRequest
from kvmesh.app.serve.routing_context import RoutingContext
from kvmesh.core.engines.sse import Usage
from kvmesh.core.members.last_known import KnownWorker
from kvmesh.errors import KvMeshError
from kvmesh.observe import get_logger
from kvmesh.transport.http.forward.plan import Outcome, Target, Wait
from kvmesh.transport.http.server.scope import Scope
from kvmesh.transport.http.upstream.client import UpstreamFailure
from kvmesh.transport.http.wire.problem import Problem
from kvmesh.transport.local import LocalLink, listen_local

TELL_S: Final = 1.0
_CUT: Final = Outcome("cut", 0, 0)
_WITHDRAWN: Final = Outcome("refused", 0, 0)
_FAILED: Final = Problem(500, "internal error", "internal_error")

FromRequest = Answering | Progress | AttemptFailed | Again | RequestEnded | Withdrawn


class EdgeRequest:
    """The index process's half of an edge's request: where its plan's wishes go, and its owner.

    When this half fails the edge is told by a `Refuse`, when the edge's does by a `RequestEnded`.
    """

    __slots__ = ("_forbidden", "_n", "_plan", "_session", "scope")

    def __init__(self, session: "EdgeSession", message: Ask) -> None:
        self.scope = scope = Scope(message.visible_id, _report)
        self._session = session
        self._n = message.n
        self._plan: RoutedRequest
        self._forbidden: Refuse | None = None
        session.requests[message.n] = self
        scope.tell = self._refuse
        scope.held.append(self._leave)

    def begin(self, context: RoutingContext, message: Ask) -> None:
        """Offer a worker."""
        block_size = context.scheduler.options.block_size
        try:
            self._plan = RoutedRequest(context, asked(message, block_size), self)
        except KvMeshError as error:
            self._refuse(Problem.from_error(error))
            self.scope.end()
            return
        self.proceed()

    def take(self, message: FromRequest) -> None:
        """Do what the edge tells of the request."""
        match message:
            case RequestEnded(_, outcome, usage):
                self.end(outcome, usage)
            case Answering(_, status):
                self._plan.answering(status)
            case Progress(_, tokens):
                self._plan.progress(tokens)
            case AttemptFailed(n, failure):
                allowed = self._plan.on_attempt_failed(failure)
                if allowed is not True:
                    self._forbidden = Refuse(n, allowed or None)
            case Again():
                if self._forbidden is not None:
                    self._session.send(self._forbidden)
                else:
                    self.proceed()
            case Withdrawn():
                self.end(_WITHDRAWN, None)
            case _:
                assert_never(message)

    def proceed(self) -> None:
        """Offer the next worker."""
        plan, n = self._plan, self._n
        try:
            target = plan.next_target()
        except KvMeshError as error:
            target = Problem.from_error(error)
        match target:
            case Target(origin, _, headers):
                told = list(plan.answer_headers())
                self._session.send(Go(n, plan.worker, origin, list(headers), told))
            case Wait.WAIT:
                self._session.send(Queued(n))
            case _:
                self._session.send(Refuse(n, target))

    def fail_attempt(self, failure: UpstreamFailure) -> None:
        """Have the edge give up the attempt; it will report that as any failure."""
        self._session.send(Abandon(self._n, failure))

    def usage(self) -> None:
        """Return nothing: the edge, which has the answer, tells."""

    def end(self, outcome: Outcome, usage: Usage | None) -> None:
        """End the request as the edge did."""
        scope, plan = self.scope, self._plan
        scope.kind, scope.status = outcome.kind, outcome.status
        try:
            plan.finish(outcome, usage)
        finally:
            scope.end()

    def _refuse(self, problem: Problem) -> None:
        self._session.send(Refuse(self._n, problem))

    def _leave(self) -> None:
        self._session.requests.pop(self._n, None)


class EdgeSession:
    """One edge's requests. When its link is lost they are all over: whatever ended the edge also
    closed its connections to the workers.
    """

    def __init__(
        self, link: LocalLink[FromEdge, ToEdge], context: RoutingContext, desk: "EdgeDesk"
    ) -> None:
        self._link = link
        self._context = context
        self._desk = desk
        self.requests: dict[int, EdgeRequest] = {}
        self.hello = Hello(-1, 0)
        self.report: EdgeReport | None = None

    def row(self) -> EdgeRow:
        """Return what is known of the edge."""
        report = self.report
        return EdgeRow(
            edge=self.hello.edge,
            pid=self.hello.pid,
            open_requests=len(self.requests),
            unguided=report.unguided if report else 0,
            http=report.http if report else None,
        )

    def send(self, message: ToEdge) -> None:
        """Send to the edge."""
        self._link.send(message)

    def on_message(self, message: FromEdge) -> None:
        """Do what the edge asks; what concerns a request that is over is ignored."""
        match message:
            case Ask():
                request = EdgeRequest(self, message)
                request.scope.enter(request.begin, self._context, message)
            case (
                RequestEnded() | Answering() | Progress() | AttemptFailed() | Again() | Withdrawn()
            ):
                if (found := self.requests.get(message.n)) is not None:
                    found.scope.enter(found.take, message)
            case EdgeReport():
                self.report = message
            case Hello(edge, pid):
                self.hello = message
                get_logger().info("edge connected", edge=edge, pid=pid)
            case _:
                assert_never(message)

    def on_unsent(self, message: ToEdge, error: Exception) -> None:
        """End, at both ends, the one request that the message was of."""
        if isinstance(message, WorkerUpdate):
            return
        request = self.requests.get(message.n)
        if request is not None:
            request.scope.crash(error)
        else:
            self.send(Refuse(message.n, _FAILED))

    def on_lost(self) -> None:
        """Release everything the edge had booked."""
        requests = list(self.requests.values())
        for request in requests:
            request.scope.enter(request.end, _CUT, None)
        get_logger().info("edge gone", edge=self.hello.edge, open_requests=len(requests))
        self._desk.left(self)


def _report(error: Exception, request_id: bytes) -> None:
    get_logger().error("request crashed", request_id=request_id.decode("latin-1"), exc_info=error)


class EdgeDesk:
    """Takes the edges' links and tells them of the workers each second.

    `origin` is the index process's own HTTP address: edges send the cold paths there.
    """

    def __init__(self, context: RoutingContext, origin: str) -> None:
        self._context = context
        self._origin = origin
        self._sessions: set[EdgeSession] = set()
        self._server: asyncio.Server | None = None
        context.router.resized.append(self._resized)
        self._empty = asyncio.Event()
        self._empty.set()

    async def open(self, path: Path) -> None:
        """Listen at `path`. Raises `TransportError`."""
        self._server = await listen_local(path, IndexCodec(), self._accept)

    async def tell(self) -> None:
        """Tell every edge of the workers, each second, for ever."""
        while True:
            self._tell()
            await asyncio.sleep(TELL_S)

    def _resized(self, block_size: int) -> None:
        """Tell every edge of another block size to hash by, which `_fleet` has."""
        del block_size
        self._tell()

    def _tell(self) -> None:
        fleet = self._fleet()
        for session in self._sessions:
            session.send(fleet)

    async def drain(self, grace_s: float) -> None:
        """Wait until no edge is left, at most for `grace_s` seconds."""
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._empty.wait(), grace_s)

    def close(self) -> None:
        """Take no more edges."""
        if self._server is not None:
            self._server.close()

    def rows(self) -> list[EdgeRow]:
        """Return every edge, by number."""
        return sorted((one.row() for one in self._sessions), key=lambda row: row.edge)

    def warnings(self) -> tuple[str, ...]:
        """Return what the edges warn of."""
        reports = (session.report for session in self._sessions)
        return tuple(line for report in reports if report for line in report.warnings)

    def mount(self, routes: Routes) -> None:
        """Serve `/v1/edges`."""
        routes.add("GET", "/v1/edges", lambda exchange: answer_json(exchange, self.rows()))

    def left(self, session: EdgeSession) -> None:
        """Learn that an edge is gone."""
        self._sessions.discard(session)
        if not self._sessions:
            self._empty.set()

    def figures(self) -> Source:
        """Return what is counted of each edge."""
        return EDGES.of_each(lambda: {(str(row.edge),): row for row in self.rows()})

    def _accept(self, link: LocalLink[FromEdge, ToEdge]) -> None:
        session = EdgeSession(link, self._context, self)
        link.attach(session)
        self._sessions.add(session)
        self._empty.clear()
        session.send(self._fleet())

    def _fleet(self) -> WorkerUpdate:
        scheduler, now = self._context.scheduler, self._context.clock()
        membership = scheduler.workers.membership
        workers = [
            KnownWorker(
                worker=beat.worker,
                url=beat.url,
                models=beat.models,
                active_requests=scheduler.sequences.loads(beat.worker).active_requests,
                usable=membership.why_not(beat.worker, now) is None,
                dp_rank=beat.dp_rank,
                adapters=beat.adapters,
            )
            for beat in self._context.router.workers()
        ]
        return WorkerUpdate(
            workers,
            self._origin,
            scheduler.options.block_size,
            splits=bool(self._context.router.prefillers),
        )
