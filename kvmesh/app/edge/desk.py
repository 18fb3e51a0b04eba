"""The index process's side of the edges: it decides and books for them."""

import asyncio
import contextlib
from functools import partial
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
from kvmesh.tasks import guarded
from kvmesh.transport.http.forward.plan import Outcome, Target, Wait
from kvmesh.transport.http.upstream.client import UpstreamFailure
from kvmesh.transport.http.wire.problem import Problem
from kvmesh.transport.local import LocalLink, listen_local

TELL_S: Final = 1.0
_CUT: Final = Outcome("cut", 0, 0)
_WITHDRAWN: Final = Outcome("refused", 0, 0)


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
        self._block_size = context.router.scheduler.options.block_size
        self._plans: dict[int, RoutedRequest] = {}
        self._forbidden: dict[int, Problem | None] = {}
        self.hello = Hello(-1, 0)
        self.report: EdgeReport | None = None

    def row(self) -> EdgeRow:
        """Return what is known of the edge."""
        report = self.report
        return EdgeRow(
            edge=self.hello.edge,
            pid=self.hello.pid,
            open_requests=len(self._plans),
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
                self._ask(message)
            case RequestEnded(n, outcome, usage):
                self._end(n, outcome, usage)
            case Answering() | Progress() | AttemptFailed() | Again():
                self._go_on(message)
            case Withdrawn(n):
                self._end(n, _WITHDRAWN, None)
            case EdgeReport():
                self.report = message
            case Hello(edge, pid):
                self.hello = message
                get_logger().info("edge connected", edge=edge, pid=pid)
            case _:
                assert_never(message)

    def on_lost(self) -> None:
        """Release everything the edge had booked."""
        for plan in self._plans.values():
            guarded("edge lost", plan.finish)(_CUT, None)
        get_logger().info("edge gone", edge=self.hello.edge, open_requests=len(self._plans))
        self._plans.clear()
        self._desk.left(self)

    def _ask(self, message: Ask) -> None:
        try:
            request = asked(message, self._block_size)
        except KvMeshError as error:
            self.send(Refuse(message.n, Problem.from_error(error)))
            return
        plan = RoutedRequest(self._context, request, message.visible_id)
        self._plans[message.n] = plan
        plan.proceed = partial(self._turn_came, message.n)
        plan.fail_attempt = partial(self._abandon, message.n)
        self._offer(message.n, plan)

    def _turn_came(self, n: int) -> None:
        """Offer what a request was held for."""
        self._offer(n, self._plans[n])

    def _abandon(self, n: int, failure: UpstreamFailure) -> None:
        """Have the edge give up an attempt; it will report that as any failure."""
        self.send(Abandon(n, failure))

    def _go_on(self, message: Answering | Progress | AttemptFailed | Again) -> None:
        plan = self._plans.get(message.n)
        if plan is None:
            return
        match message:
            case Answering(_, status):
                plan.answering(status)
            case Progress(_, tokens):
                plan.progress(tokens)
            case AttemptFailed(n, failure):
                allowed = plan.on_attempt_failed(failure)
                if allowed is not True:
                    self._forbidden[n] = allowed or None
            case Again(n):
                if n in self._forbidden:
                    self.send(Refuse(n, self._forbidden[n]))
                else:
                    self._offer(n, plan)

    def _offer(self, n: int, plan: RoutedRequest) -> None:
        try:
            target = plan.next_target()
        except KvMeshError as error:
            target = Problem.from_error(error)
        match target:
            case Target(origin, _, headers):
                told = list(plan.answer_headers())
                self.send(Go(n, plan.worker, origin, list(headers), told))
            case Wait.WAIT:
                self.send(Queued(n))
            case _:
                self.send(Refuse(n, target))

    def _end(self, n: int, outcome: Outcome, usage: Usage | None) -> None:
        self._forbidden.pop(n, None)
        plan = self._plans.pop(n, None)
        if plan is not None:
            plan.finish(outcome, usage)


class EdgeDesk:
    """Takes the edges' links and tells them of the workers each second.

    `origin` is the index process's own HTTP address: edges send the cold paths there.
    """

    def __init__(self, context: RoutingContext, origin: str) -> None:
        self._context = context
        self._origin = origin
        self._sessions: set[EdgeSession] = set()
        self._server: asyncio.Server | None = None
        self._empty = asyncio.Event()
        self._empty.set()

    async def open(self, path: Path) -> None:
        """Listen at `path`. Raises `TransportError`."""
        self._server = await listen_local(path, IndexCodec(), self._accept)

    async def tell(self) -> None:
        """Tell every edge of the workers, each second, for ever."""
        while True:
            fleet = self._fleet()
            for session in self._sessions:
                session.send(fleet)
            await asyncio.sleep(TELL_S)

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
        scheduler, now = self._context.router.scheduler, self._context.clock()
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
        return WorkerUpdate(workers, self._origin, splits=bool(self._context.router.prefillers))
