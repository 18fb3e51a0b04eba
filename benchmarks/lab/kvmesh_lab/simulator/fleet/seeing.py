"""What the routers of a simulated fleet see of answers and engines, and infer of the rest."""

from collections.abc import Sequence
from functools import partial

from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.worker_info import LoadReport
from kvmesh.core.routing.decision import Decision
from kvmesh.core.routing.registry import REPORTS_TO_BELIEVE
from kvmesh.core.routing.unwatched import Over
from kvmesh_lab.simulator.fleet.engine import FleetEngine
from kvmesh_lab.simulator.fleet.options import FleetOptions
from kvmesh_lab.simulator.fleet.replicas import At, Replicas
from kvmesh_lab.simulator.fleet.request import Passage
from kvmesh_lab.simulator.fleet.router import AttemptEnd, FleetRouter


class Seeing:
    """Tells routers what `FleetOptions.feedback` lets them see.

    `tokens` and `ends`: whether they see first tokens and growth, and that an answer is over.
    """

    def __init__(
        self, options: FleetOptions, routers: Sequence[FleetRouter], replicas: Replicas, at: At
    ) -> None:
        self.tokens = options.feedback == "full"
        self.ends = options.feedback in ("full", "whole", "ends")
        self._infers = options.feedback in ("ends", "none")
        self._options = options
        self._routers = routers
        self._replicas = replicas
        self._at = at
        self._still: dict[WorkerId, tuple[int, int]] = {}
        for router in routers:
            router.unwatch(options, infers=self._infers)
        if self._infers:
            at(options.look_s, self._check)

    def sent(self, passage: Passage, decision: Decision, now: float) -> None:
        """Note that a request is at its engine, and that its router may see no more of it."""
        self._routers[passage.router].sent(decision, passage.errand, now)
        self._replicas.placed(passage.router, decision.request_id, now)
        if not (self.ends or self._infers):
            self._end(passage.router, decision.request_id, now)

    def report(self, engine: FleetEngine, now: float) -> None:
        """Have an engine's load reported, as late as reports are.

        What stands still tells nothing new once routers believe it, and a pause may last an hour.
        """
        turns, reported = self._still.get(engine.worker, (-1, 0))
        reported = reported + 1 if turns == engine.turns else 0
        self._still[engine.worker] = engine.turns, reported
        if reported > REPORTS_TO_BELIEVE and not (engine.awake or self._infers):
            return
        receive, age_s = partial(self._receive, engine, engine.report()), self._options.report_age_s
        if age_s:
            self._at(now + age_s, receive)
        else:
            receive(now)

    def _receive(self, engine: FleetEngine, report: LoadReport, now: float) -> None:
        for router in self._routers:
            router.scheduler.workers.report(engine.worker, report)
            if router.unwatched is not None:
                requests = report.running_requests + report.waiting_requests
                router.unwatched.report(engine.worker, requests, now)

    def _check(self, now: float) -> None:
        for place, router in enumerate(self._routers):
            for one in [] if router.unwatched is None else router.unwatched.check(now):
                if isinstance(one, Over):
                    self._end(place, one.request_id, now)
                elif one.seen:
                    self._replicas.first_token(place, one.request_id, now)
                else:
                    self._replicas.assume_first_token(place, one.request_id, now)
        self._at(now + self._options.look_s, self._check)

    def _end(self, place: int, request_id: str, now: float) -> None:
        worker = self._routers[place].sequences.bookings[request_id].worker
        self._replicas.ended(place, AttemptEnd(request_id, worker, "unwatched", 0), now)
