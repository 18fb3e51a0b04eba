"""Router replicas that route to a fleet with a sick engine and share how their requests end."""

import random
from collections import Counter
from collections.abc import Sequence

from kvmesh.actors.kernel import Actor, Effect, Message, Wake
from kvmesh.actors.messages import RouterHeartbeat, Started, Tick
from kvmesh.actors.registry import Registry, RegistryOptions
from kvmesh.actors.replica_sync import ReplicaSync, ReplicaSyncOptions
from kvmesh.actors.wire import Subjects
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.index.approx import new_approx
from kvmesh.core.members.health_record import Stage
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.outcomes import SERVED, Attempt
from kvmesh.core.routing.decision import RouteRequest, RouterMode, RouterOptions
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.formats import OWN
from tests.doubles.sim.bus import SimBus
from tests.doubles.sim.driver import Birth, Process, ProcessPlan, Simulation
from tests.doubles.sim.faults import SimFaults
from tests.simulation.planes.teller import Teller

SUBJECTS = Subjects("kvmesh", "code")
BLOCK_SIZE = 4
WORKERS = [WorkerId(f"w{number}") for number in range(4)]
SICK = WORKERS[1]
SERVED_S = 0.03
FAILED_S = 0.001


class Clients:
    """Requests of one replica, tried at another engine once more when the sick one fails them."""

    def __init__(
        self, scheduler: Scheduler, teller: Teller, birth: Birth, plane: "OutcomePlane"
    ) -> None:
        self.name = "clients"
        self._teller = teller
        self._scheduler = scheduler
        self._rng = random.Random(birth.seed)
        self._plane = plane
        self._prefix = f"{birth.seed}-{birth.incarnation}"
        self._count = 0
        self._failing: dict[str, RouteRequest] = {}

    def receive(self, message: Message, now: float) -> list[Effect]:
        if isinstance(message, Tick) and message.kind in self._failing:
            return self._fail(self._failing.pop(message.kind), now)
        if isinstance(message, Tick) and message.kind != "next":
            return self._serve(message.kind, now)
        assert isinstance(message, Started | Tick)
        if self._plane.asked >= self._plane.requests:
            return []
        self._plane.asked += 1
        self._count += 1
        request = RouteRequest(
            f"{self._prefix}-{self._count}",
            BlockHashes.of([self._rng.randrange(1, 4) * 100 + one for one in range(6)], BLOCK_SIZE),
            6 * BLOCK_SIZE,
        )
        return [*self._attempt(request, now), Wake(self._plane.gap_s, Tick("next"))]

    def _attempt(self, request: RouteRequest, now: float) -> list[Effect]:
        worker = self._scheduler.schedule(request, now).record.decision.worker
        request_id = request.request_id
        self._teller.outbox.placed(self._scheduler.sequences.bookings[request_id])
        booked = self._teller.updates()
        self._plane.sent[worker] += 1
        if worker != SICK or not self._plane.sick(now):
            return [*booked, Wake(SERVED_S, Tick(request_id))]
        self._failing[request_id] = request
        return [*booked, Wake(FAILED_S, Tick(request_id))]

    def _fail(self, request: RouteRequest, now: float) -> list[Effect]:
        request_id, fault = request.request_id, self._plane.fault
        self._scheduler.finish(request_id, now, fault)
        self._teller.outbox.ended(request_id, fault)
        again = RouteRequest(
            request_id, request.hashes, request.prompt_tokens, excluded=frozenset([SICK])
        )
        return [*self._teller.updates(), *self._attempt(again, now)]

    def _serve(self, request_id: str, now: float) -> list[Effect]:
        self._scheduler.first_token(request_id, now)
        self._scheduler.finish(request_id, now, SERVED)
        self._plane.served += 1
        self._teller.outbox.first_token(request_id)
        self._teller.outbox.ended(request_id)
        return self._teller.updates()


class OutcomePlane:
    """`replicas` send `requests` in all; one of the engines fails its own with `fault`, at once."""

    def __init__(
        self,
        seed: int,
        plan: SimFaults,
        fault: Attempt,
        *,
        mode: RouterMode = "kv",
        requests: int = 200,
        gap_s: float = 0.02,
    ) -> None:
        self.sim = Simulation(seed, plan)
        self.bus = SimBus(self.sim)
        self.requests, self.gap_s, self.fault = requests, gap_s, fault
        self.asked = self.served = 0
        self.well_from_s = float("inf")
        self.sent = Counter[WorkerId]()
        self.schedulers: dict[str, Scheduler] = {}
        self._mode = mode
        self.sim.on_step.append(self.check)
        for number in range(2):
            self._add(f"r{number}")

    def sick(self, now: float) -> bool:
        """Return whether the sick engine still fails."""
        return now < self.well_from_s

    def check(self, process: Process, actor: str, message: Message) -> None:
        """After every turn somebody may be given work, and at most one engine is left out."""
        del actor, message
        workers = self.schedulers[process.name].workers
        assert len(workers.everyone(self.sim.now)) >= len(WORKERS) - 1
        for worker in WORKERS:
            state = workers.state(worker)
            assert 0.0 <= state.failure_share <= 1.0
            assert worker == SICK or not state.failure_share

    def stages(self) -> set[Stage]:
        """Return where the sick engine stands, by all replicas."""
        now, found = self.sim.now, set[Stage]()
        for scheduler in self.schedulers.values():
            scheduler.workers.everyone(now)
            found.add(scheduler.workers.membership.health.stage(SICK))
        return found

    def _add(self, router: str) -> None:
        def build(birth: Birth) -> Sequence[Actor]:
            membership = Membership()
            for worker in WORKERS:
                membership.add(worker, self.sim.now)
            scheduler = self.schedulers[router] = Scheduler(
                RouterOptions(block_size=BLOCK_SIZE, mode=self._mode),
                random.Random(birth.seed),
                membership=membership,
                sequences=new_sequences(BLOCK_SIZE, lease_s=6.5),
                routed=new_approx(),
            )
            scheduler.listen(new_approx(graded=True))

            def status() -> RouterHeartbeat:
                epoch = birth.incarnation
                return RouterHeartbeat(router, "code", "", ready=True, epoch=epoch, formats=OWN)

            registry = Registry(
                RegistryOptions(router, "code", routers_to=("replica_sync",)),
                scheduler.workers,
                Membership(),
                status=status,
            )
            options = ReplicaSyncOptions(router, "code", birth.incarnation, max_events=4)
            sync = ReplicaSync(scheduler, options)
            return [sync, registry, Clients(scheduler, Teller(sync.outbox), birth, self)]

        patterns = (
            (SUBJECTS.routers(), "registry"),
            (SUBJECTS.bookings(), "replica_sync"),
            (SUBJECTS.router_control(router), "replica_sync"),
        )
        self.sim.add(ProcessPlan(router, build, subscriptions=patterns))
