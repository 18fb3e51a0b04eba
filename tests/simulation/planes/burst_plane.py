"""Router replicas that share one burst: what they decide together, beside what one would."""

import random
from collections.abc import Sequence

from kvmesh.actors.kernel import Actor, Effect, Message, Wake
from kvmesh.actors.messages import Started, Tick
from kvmesh.actors.replica_sync import ReplicaSync, ReplicaSyncOptions
from kvmesh.actors.wire import Subjects
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.members.readers import HEAR_S
from kvmesh.core.routing.decision import RouteRequest
from kvmesh.core.routing.scheduler import Scheduler
from tests.doubles.sim.bus import SimBus
from tests.doubles.sim.driver import Birth, ProcessPlan, Simulation
from tests.doubles.sim.faults import SimFaults
from tests.simulation.planes.booking_plane import BLOCK_SIZE, new_scheduler
from tests.simulation.planes.teller import Teller

SUBJECTS = Subjects("kvmesh", "code")
WORKERS = [WorkerId(f"w{number}") for number in range(4)]
FIRST_S = HEAR_S + 0.1
"""By then all tell in the newest format."""
PAUSE_S = 0.01
SHARED_BLOCKS = 64
OWN_BLOCKS = 8


class BurstClient:
    """Sends one replica its share of the burst."""

    def __init__(self, scheduler: Scheduler, teller: Teller, prompts: Sequence[Sequence[int]],
                 times_s: tuple[float, float], plane: "BurstPlane") -> None:  # fmt: skip
        self.name = "client"
        self._teller = teller
        self._scheduler = scheduler
        self._prompts = list(prompts)
        self._first_s, self._pause_s = times_s
        self._plane = plane

    def receive(self, message: Message, now: float) -> list[Effect]:
        if isinstance(message, Started):
            for worker in WORKERS:
                self._scheduler.workers.membership.add(worker, now)
            return [Wake(self._first_s, Tick())]
        if not self._prompts:
            return []
        prompt = self._prompts.pop(0)
        tokens = len(prompt) * BLOCK_SIZE
        request_id = f"{self._first_s}-{len(self._prompts)}"
        request = RouteRequest(request_id, BlockHashes.of(prompt, BLOCK_SIZE), tokens)
        decision = self._scheduler.schedule(request, now).record.decision
        self._plane.prompts_at[decision.worker].append(prompt)
        self._teller.outbox.placed(self._scheduler.sequences.bookings[request_id])
        return [*self._teller.updates(), Wake(self._pause_s, Tick())]


class BurstPlane:
    """Plays one burst over `replicas`; `prompts_at` has what each worker got, in order."""

    def __init__(self, seed: int, replicas: int, *, groups: int = 8, requests: int = 64) -> None:
        self.prompts_at: dict[WorkerId, list[Sequence[int]]] = {one: [] for one in WORKERS}
        rng = random.Random(seed)
        prompts: list[Sequence[int]] = []
        for number in range(requests):
            group = rng.randrange(groups)
            shared = range(group << 20, (group << 20) + SHARED_BLOCKS)
            own = (1 << 40) + (number << 20)
            prompts.append([*shared, *range(own, own + OWN_BLOCKS)])
        sim = Simulation(seed, SimFaults())
        SimBus(sim)
        for place in range(replicas):
            self._add(sim, f"r{place}", prompts[place::replicas], place, replicas)
        sim.run(FIRST_S + 1.0 + requests * PAUSE_S)

    def hits(self) -> float:
        """Return the share of blocks that the workers had been sent before."""
        found = total = 0
        for prompts in self.prompts_at.values():
            seen: set[int] = set()
            for prompt in prompts:
                total += len(prompt)
                found += len(seen.intersection(prompt))
                seen.update(prompt)
        return found / total

    def imbalance(self) -> float:
        """Return the most blocks to prefill at one worker, relative to the mean."""
        loads = [
            len({block for prompt in prompts for block in prompt})
            for prompts in self.prompts_at.values()
        ]
        return max(loads) * len(loads) / sum(loads)

    def _add(
        self, sim: Simulation, router: str, prompts: Sequence[Sequence[int]], place: int, of: int
    ) -> None:
        def build(birth: Birth) -> Sequence[Actor]:
            scheduler = new_scheduler(birth.seed)
            options = ReplicaSyncOptions(router, "code", birth.incarnation)
            first_s = FIRST_S + place * PAUSE_S
            sync = ReplicaSync(scheduler, options)
            times_s = first_s, of * PAUSE_S
            return [sync, BurstClient(scheduler, Teller(sync.outbox), prompts, times_s, self)]

        patterns = ((SUBJECTS.bookings(), "replica_sync"),)
        sim.add(ProcessPlan(router, build, subscriptions=patterns))
