"""Router replicas that book random requests and share them under faults."""

import random
from collections.abc import Callable, Sequence
from itertools import count

from kvmesh._native import ActiveSequences, Booking
from kvmesh.actors.kernel import Actor, Effect, Message, Publish, Wake
from kvmesh.actors.messages import BusMessage, RouterHeartbeat, Started, Tick
from kvmesh.actors.registry import Registry, RegistryOptions
from kvmesh.actors.replica_sync import ReplicaSync, ReplicaSyncOptions
from kvmesh.actors.wire import Subjects, last_token
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.blocks.graded import sharing_keys
from kvmesh.core.blocks.hashing import BlockHashes
from kvmesh.core.index.approx import new_approx
from kvmesh.core.members.loads import LOCAL, Demand, new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.routing.decision import RouterOptions
from kvmesh.core.routing.scheduler import Scheduler
from kvmesh.formats import FormatRange, Formats
from tests.doubles.sim.bus import SimBus
from tests.doubles.sim.driver import Birth, Process, ProcessPlan, Simulation
from tests.doubles.sim.faults import SimFaults
from tests.simulation.planes.constants import USUAL, Constants
from tests.simulation.planes.history import BookedHistory
from tests.simulation.planes.teller import Teller

SUBJECTS = Subjects("kvmesh", "code")
BLOCK_SIZE = 4
LEASE_S = 6.5
"""Longer than any outage, and than it takes to count a silent replica as dead."""
WORKERS = [WorkerId(f"w{number}") for number in range(3)]


class Clients:
    """Random requests of one replica until `stop_s`; some of them never end."""

    def __init__(
        self, sequences: ActiveSequences, teller: Teller, birth: Birth, plane: "BookingPlane"
    ) -> None:
        self.name = "clients"
        self._sequences = sequences
        self._teller = teller
        self._plane = plane
        self._rng = random.Random(birth.seed)
        self._live: list[str] = []

    def receive(self, message: Message, now: float) -> list[Effect]:
        assert isinstance(message, Started | Tick)
        if now >= self._plane.stop_s:
            return []
        rng, wake = self._rng, Wake(self._rng.random() * 0.1, Tick("next"))
        dice = rng.random()
        if dice < 0.4 or not self._live:
            self._book(now)
            return [*self._teller.updates(), wake]
        request_id = rng.choice(self._live)
        if dice < 0.6:
            self._sequences.first_token(request_id, now)
            self._teller.outbox.first_token(request_id)
            return [*self._teller.updates(), wake]
        if dice < 0.7:
            self._sequences.grow(request_id, rng.randrange(40), now)
            return [wake]
        self._live.remove(request_id)
        self._sequences.finish(request_id)
        self._teller.outbox.ended(request_id)
        return [*self._teller.updates(), wake]

    def _book(self, now: float) -> None:
        """Book a request that is like no other; its hashes or some of its keys are known."""
        rng, serial = self._rng, next(self._plane.serial)
        request_id = f"{serial}"
        hashes = [rng.randrange(1, 4) << 40 | depth for depth in range(serial // BLOCK_SIZE)]
        whole = BlockHashes.of(hashes, BLOCK_SIZE) if rng.random() < 0.5 else None
        demand = Demand(
            serial,
            rng.randrange(serial + 1),
            rng.randrange(50),
            tuple(sharing_keys(hashes)),
            hashes=whole,
        )
        self._sequences.add(request_id, rng.choice(WORKERS), demand, now)
        self._teller.outbox.placed(self._sequences.bookings[request_id])
        self._live.append(request_id)


NEXT = Formats(bookings=FormatRange(1, 2))
"""What a build reads that has a format 2 of bookings, which is format 1 by another number."""


def new_formats(router: str, now: float) -> Formats:
    """Return what every replica of a fleet reads that is up to date."""
    del router, now
    return NEXT


class BookingPlane:
    """`replicas` that read what `formats` says when they are started."""

    def __init__(
        self,
        seed: int,
        plan: SimFaults,
        *,
        replicas: int,
        stop_s: float,
        formats: Callable[[str, float], Formats] = new_formats,
        constants: Constants = USUAL,
    ) -> None:
        self.sim = Simulation(seed, plan)
        self.constants = constants
        self.serial = count(1)
        self.stop_s = stop_s
        self._formats = formats
        self.bus = SimBus(self.sim)
        self.sequences: dict[str, ActiveSequences] = {}
        self.history = BookedHistory()
        self._replicas: dict[str, ReplicaSync] = {}
        publish = self.sim.carriers[Publish]

        def carry(process: Process, actor: str, effect: Effect) -> None:
            assert isinstance(effect, Publish)
            if effect.subject == SUBJECTS.bookings(process.name):
                self.history.sent(process.name, effect.data)
            publish(process, actor, effect)

        self.sim.carriers[Publish] = carry
        self.sim.on_step.append(self.check)
        self._received: dict[tuple[str, str], float] = {}
        self._expired: dict[str, int] = {}
        for number in range(replicas):
            self._add(f"r{number}")

    def check(self, process: Process, actor: str, message: Message) -> None:  # noqa: ARG002
        """What holds after every turn.

        The sums are those of the bookings; of a peer known completely exactly its bookings are
        known.
        """
        sequences = self.sequences[process.name]
        for worker in WORKERS:
            loads = sequences.loads(worker)
            held = [one for one in bookings(sequences) if one.worker == worker]
            assert loads.active_requests == len(held)
            assert loads.prompt_tokens == sum(one.prompt_tokens for one in held)
            assert loads.prefill_tokens == sum(
                one.uncached_tokens for one in held if one.prefilling
            )
        self._check_leases(process.name, message)
        for peer in self.sequences:
            known = self._replicas[process.name].peers.known_upto(peer)
            if known is not None:
                ids = {one.request_id for one in sequences.owned(peer)}
                assert ids == self.history.booked(peer, *known), "a peer's state has a hole"

    def _check_leases(self, router: str, message: Message) -> None:
        """Requests run on, so a booking expires only when its owner told nothing for that long; a
        heartbeat may be of a restarted owner, whose requests are over.
        """
        now = self.sim.now
        if isinstance(message, BusMessage):
            peer = last_token(message.subject)
            if message.subject == SUBJECTS.bookings(peer):
                self._received[router, peer] = now
        expired = self.sequences[router].statistics().expired
        if expired > self._expired.get(router, 0):
            silent_s = max(
                now - self._received.get((router, peer), 0.0) for peer in self._others(router)
            )
            assert silent_s >= LEASE_S - 1.0, "a booking expired, its request runs"
        self._expired[router] = expired

    def _others(self, router: str) -> list[str]:
        return [one for one in self.sequences if one != router]

    def is_settled(self) -> bool:
        """Whether all replicas know the same bookings in the same state."""
        if not all(process.alive for process in self.sim.processes.values()):
            return False
        views = [self.view(name) for name in self.sequences]
        return all(view == views[0] for view in views)

    def view(self, name: str) -> list[tuple[str | int | tuple[int, ...], ...]]:
        """Return everything a replica believes of requests, whoever owns them; of each first its
        prompt's tokens, which no two have alike.
        """
        return sorted(
            (
                one.prompt_tokens,
                one.worker,
                one.uncached_tokens,
                one.prefilling,
                one.output_tokens,
                one.expected_blocks,
                one.private_blocks,
                one.keys,
                name if one.owner == LOCAL else one.owner,
            )
            for one in bookings(self.sequences[name])
        )

    def formats(self) -> set[int]:
        """Return what the replicas tell their bookings in."""
        return {one.statistics().format for one in self._replicas.values()}

    def garbage(self) -> int:
        """Return how many messages no replica could read."""
        return sum(one.statistics().garbage for one in self._replicas.values())

    def differences(self) -> list[str]:
        """Say what some replicas know and others do not, for a failed run."""
        views = {name: set(self.view(name)) for name in self.sequences}
        common = set.intersection(*views.values())
        return [f"{name}: {one}" for name, view in views.items() for one in sorted(view - common)]

    def _add(self, router: str) -> None:
        def build(birth: Birth) -> Sequence[Actor]:
            scheduler = new_scheduler(birth.seed)
            sequences = self.sequences[router] = scheduler.sequences
            formats, constants = self._formats(router, birth.now), self.constants
            epoch = int(birth.clock_s * 1000.0) if constants.by_clock else birth.incarnation
            options = ReplicaSyncOptions(
                router,
                "code",
                epoch,
                flush_s=constants.sync_flush_s,
                state_pause_s=constants.state_pause_s,
                max_events=constants.sync_events,
                max_bytes=constants.sync_bytes,
                reads=formats,
                state_slice=constants.state_slice,
            )
            replica = self._replicas[router] = ReplicaSync(scheduler, options)

            def status() -> RouterHeartbeat:
                return RouterHeartbeat(router, "code", "", ready=True, epoch=epoch, formats=formats)

            registry = Registry(
                RegistryOptions(router, "code", routers_to=("replica_sync",)),
                scheduler.workers,
                Membership(),
                status=status,
            )
            clients = Clients(sequences, Teller(replica.outbox), birth, self)
            return [replica, registry, clients]

        patterns = (
            (SUBJECTS.routers(), "registry"),
            (SUBJECTS.bookings(), "replica_sync"),
            (SUBJECTS.router_control(router), "replica_sync"),
        )
        self.sim.add(ProcessPlan(router, build, subscriptions=patterns))


def new_scheduler(seed: int) -> Scheduler:
    scheduler = Scheduler(
        RouterOptions(block_size=BLOCK_SIZE),
        random.Random(seed),
        membership=Membership(),
        sequences=new_sequences(BLOCK_SIZE, lease_s=LEASE_S),
        routed=new_approx(),
    )
    scheduler.listen(new_approx(graded=True))
    return scheduler


def bookings(sequences: ActiveSequences) -> list[Booking]:
    return [one for owner in (LOCAL, "r0", "r1", "r2") for one in sequences.owned(owner)]
