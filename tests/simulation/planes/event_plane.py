"""Workers, a journal and router replicas under faults, with what must hold after every step."""

import random
from collections.abc import Sequence

from kvmesh.actors.indexer import Indexer, IndexerOptions
from kvmesh.actors.kernel import Actor, Append, Effect, Message
from kvmesh.actors.messages import (
    JournalGap,
    JournalOpened,
    JournalRecord,
    JournalRecreated,
    RouterHeartbeat,
)
from kvmesh.actors.publisher import Publisher
from kvmesh.actors.publisher_options import PublisherOptions
from kvmesh.actors.registry import Registry, RegistryOptions
from kvmesh.actors.wire import Subjects
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.engines.kv_events.checkpoint import (
    EngineCheckpoint,
    decode_checkpoint,
    encode_checkpoint,
)
from kvmesh.core.index.index import KvIndex
from kvmesh.core.journal.ordering import Cursor
from kvmesh.core.journal.replica import IndexReplica
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.worker_info import Trust
from kvmesh.core.routing.registry import WorkerRegistry
from kvmesh.formats import OWN, Formats
from tests.doubles.sim.bus import SimBus
from tests.doubles.sim.driver import Birth, Process, ProcessPlan, Simulation
from tests.doubles.sim.faults import SimFaults
from tests.doubles.sim.journal import SimJournal
from tests.simulation.planes.constants import USUAL, Constants
from tests.simulation.planes.engine import BLOCK_SIZE, Engine, EngineLink
from tests.simulation.planes.history import PerfectReader, PublishedHistory

SUBJECTS = Subjects("kvmesh", "code")


class EventPlane:
    """One simulated bucket. `run_storm` and then `settle`; every step is checked.

    `reload_to` names the actor that loads snapshots, where there is one.
    """

    reload_to = ""
    buffer_steps = 10_000

    def __init__(
        self,
        seed: int,
        plan: SimFaults,
        *,
        workers: int = 2,
        replicas: int = 2,
        constants: Constants = USUAL,
    ) -> None:
        self.sim = Simulation(seed, plan)
        self.constants = constants
        self.journal = SimJournal(self.sim)
        self.bus = SimBus(self.sim)
        self.history = PublishedHistory()
        self.reader = PerfectReader(self.journal)
        self.engines: dict[WorkerId, Engine] = {}
        self.routers: list[str] = []
        self.kept: dict[WorkerId, EngineCheckpoint] = {}
        self._claims: dict[tuple[str, int, int], int] = {}
        self._positions: dict[tuple[object, ...], int] = {}
        self._applied: dict[str, int] = {}
        self._engine_rng = random.Random(seed)
        self._may_lose_acknowledged = plan.recreate > 0.0 or plan.truncate > 0.0
        append = self.sim.carriers[Append]

        def carry(process: Process, actor: str, effect: Effect) -> None:
            assert isinstance(effect, Append)
            self.history.sent(WorkerId(process.name), effect.data)
            append(process, actor, effect)

        self.sim.carriers[Append] = carry
        self.sim.on_step.append(self.check)
        self.sim.on_start.append(self._forget_applied)
        self.prepare()
        for number in range(workers):
            self._add_worker(WorkerId(f"w{number}"))
        for number in range(replicas):
            self.add_router(f"r{number}")

    def prepare(self) -> None:
        """Add what routers need before the first one starts."""

    def indexer(self, router: str) -> Indexer:
        actor = self.sim.processes[router].actors["indexer"]
        assert isinstance(actor, Indexer)
        return actor

    def publisher(self, worker: WorkerId) -> Publisher:
        actor = self.sim.processes[worker].actors["publisher"]
        assert isinstance(actor, Publisher)
        return actor

    def run_engines(self, steps: int, every_s: float) -> None:
        """Let every engine do `steps` steps, at random moments."""
        for engine in self.engines.values():
            for number in range(steps):
                self.sim.at(every_s * (number + self._engine_rng.random()), engine.step)

    def keep_checkpoints(self, every_s: float) -> None:
        """Keep what sidecars know of their engines, from now on."""
        for worker in self.engines:
            if self.sim.processes[worker].alive:
                checkpoint = self.publisher(worker).checkpoint()
                if checkpoint is not None:
                    # It travels, and comes back as another object.
                    self.kept[worker] = decode_checkpoint(encode_checkpoint(checkpoint))
        self.sim.at(every_s, lambda: self.keep_checkpoints(every_s))

    def check(self, process: Process, actor: str, message: Message) -> None:
        """What holds after every turn."""
        if actor == "publisher":
            self._check_confirmed(WorkerId(process.name))
        if actor not in ("indexer", self.reload_to):
            return
        indexer = self.indexer(process.name)
        replica = indexer.replica
        before = self._applied.get(process.name, 0)
        self._applied[process.name] = replica.applied_sequence
        if actor != "indexer":
            return
        assert replica.statistics().orphans == 0, "a store under a parent the worker lacks"
        claim = replica.claim()
        known = self._claims.setdefault(
            (replica.created, claim.sequence, claim.scope), claim.digest
        )
        assert known == claim.digest, "replicas at one sequence differ"
        recreations = indexer.statistics().recreations
        life = process.name, process.incarnation, recreations, *self.lives(process.name)
        assert self._positions.get(life, 0) <= claim.sequence, "a position went back"
        self._positions[life] = claim.sequence
        if isinstance(message, JournalRecord):
            assert claim.sequence - before in (0, 1), "records were passed over unseen"
            self._check_worker(replica, message.worker)
        if isinstance(message, JournalOpened):
            assert not indexer.caught_up, "claims to be warm with its history unread"
        if isinstance(message, JournalGap | JournalRecreated):
            now = process.time(self.sim.now)
            trusts = {indexer.trust(worker, now) for worker in replica.workers()}
            assert Trust.EXACT not in trusts, "trusted though records were missed"

    def _forget_applied(self, process: Process) -> None:
        self._applied.pop(process.name, None)

    def lives(self, router: str) -> tuple[object, ...]:
        """Return what else, when it changes, lets a router's position start anew."""
        del router
        return ()

    def _check_confirmed(self, worker: WorkerId) -> None:
        """What a publisher takes for stored can be read, in order, from the journal."""
        beat = self.publisher(worker).heartbeat()
        if not self._may_lose_acknowledged:
            readable = self.reader.has_read(worker, beat.epoch, beat.last_seq)
            assert readable, "a publisher believes stored what nobody can read"

    def _check_worker(self, replica: IndexReplica, worker: WorkerId) -> None:
        cursor = replica.cursors().get(worker)
        if cursor is not None:
            self.check_against_model(replica.index, worker, cursor)

    def check_against_model(self, index: KvIndex, worker: WorkerId, cursor: Cursor) -> None:
        """A worker's blocks are exactly what its events up to the cursor amount to."""
        if cursor.next_seq > 0:
            expected = self.history.digest(worker, cursor.epoch, cursor.next_seq - 1)
            assert index.worker_digest(worker) == expected, "index is not the journal"

    def is_settled(self) -> bool:
        """Whether every replica knows every worker exactly, and everything was said."""
        for worker in self.engines:
            process = self.sim.processes[worker]
            if not process.alive or self.publisher(worker).statistics().sender.window.in_flight:
                return False
        for router in self.routers:
            if not self.sim.processes[router].alive:
                return False
            indexer = self.indexer(router)
            if not indexer.caught_up:
                return False
            now = self.sim.processes[router].time(self.sim.now)
            if any(indexer.trust(worker, now) is not Trust.EXACT for worker in self.engines):
                return False
        return self._agrees()

    def _agrees(self) -> bool:
        for worker, engine in self.engines.items():
            digest = engine.truth()
            for router in self.routers:
                if self.indexer(router).replica.index.worker_digest(worker) != digest:
                    return False
        return True

    def differences(self) -> list[str]:
        """Say who is not settled, for a failed run."""
        lines: list[str] = []
        for worker, engine in self.engines.items():
            digest = engine.truth()
            alive = self.sim.processes[worker].alive
            lines.append(f"{worker}: alive={alive} truth={digest:x}")
            if alive:
                lines.append(f"  {self.publisher(worker).statistics()}")
            for router in self.routers:
                if self.sim.processes[router].alive:
                    indexer = self.indexer(router)
                    held = indexer.replica.index.worker_digest(worker)
                    now = self.sim.processes[router].time(self.sim.now)
                    trust = indexer.trust(worker, now)
                    cursor = indexer.replica.cursors().get(worker)
                    lines.append(f"  {router}: {held:x} {trust} {cursor}")
        return [
            *lines,
            *(
                str(self.indexer(one).statistics())
                for one in self.routers
                if self.sim.processes[one].alive
            ),
        ]

    def _add_worker(self, worker: WorkerId) -> None:
        rng = random.Random(self._engine_rng.getrandbits(32))
        engine = self.engines[worker] = Engine(rng, self.buffer_steps)

        def build(birth: Birth) -> Sequence[Actor]:
            options = PublisherOptions(
                worker=worker,
                bucket="code",
                epoch=self.epoch_of(birth, 10),
                url=f"http://{worker}",
                block_size=BLOCK_SIZE,
                flush_s=self.constants.flush_s,
                limits=self.constants.sender,
                version=self.version_of(worker),
                formats=self.formats_of(worker),
                incarnation=birth.seed,
            )
            return [Publisher(options), EngineLink(engine, kept=self.kept.get(worker))]

        control = ((SUBJECTS.control(worker), "publisher"),)
        self.sim.add(ProcessPlan(worker, build, subscriptions=control))

    def add_router(self, router: str) -> None:
        """Start a replica that reads the journal from its start."""
        self.routers.append(router)

        def build(birth: Birth) -> Sequence[Actor]:
            version, formats = self.version_of(router), self.formats_of(router)
            constants = self.constants
            replica = IndexReplica(KvIndex(), constants.recovery, reads=formats.journal)
            options = IndexerOptions(
                router,
                "code",
                listeners=("registry",),
                reload_to=self.reload_to,
                check_s=constants.check_s,
                retain_s=constants.retain_s,
                first_beats_s=constants.first_beats_s,
                mismatch_pause_s=constants.mismatch_pause_s,
                sweep_budget=constants.sweep_budget,
                formats=formats,
                version=version,
            )
            indexer = Indexer(replica, options)
            further = self.further_actors(router, indexer)

            def status() -> RouterHeartbeat:
                claim = replica.claim()
                return RouterHeartbeat(
                    router=router,
                    bucket="code",
                    url="",
                    ready=self.is_ready(router, indexer),
                    epoch=self.epoch_of(birth),
                    applied_sequence=claim.sequence,
                    created=replica.created,
                    digest=claim.digest,
                    scope=claim.scope,
                    version=version,
                    formats=formats,
                )

            members = RegistryOptions(
                router,
                "code",
                workers_to=("indexer",),
                routers_to=("indexer", *(actor.name for actor in further)),
            )
            workers = WorkerRegistry(Membership(), new_sequences(BLOCK_SIZE))
            return [Registry(members, workers, Membership(), status=status), indexer, *further]

        patterns = ((SUBJECTS.heartbeats(), "registry"), (SUBJECTS.routers(), "registry"))
        plan = ProcessPlan(
            router,
            build,
            subscriptions=patterns,
            tail_to="indexer",
            waits_for_tail=bool(self.reload_to),
        )
        self.sim.add(plan)

    def epoch_of(self, birth: Birth, step: int = 1) -> int:
        """Return the epoch of a process that is born."""
        by_clock = int(birth.clock_s * 1000.0)
        return by_clock if self.constants.by_clock else birth.incarnation * step

    def version_of(self, process: str) -> str:
        """Return the version of kvmesh that a process has when it is started."""
        del process
        return "1"

    def formats_of(self, process: str) -> Formats:
        """Return the formats that a process reads and writes when it is started."""
        del process
        return OWN

    def is_ready(self, router: str, indexer: Indexer) -> bool:
        """Return whether a replica tells the others that it takes requests."""
        del router
        return indexer.caught_up

    def further_actors(self, router: str, indexer: Indexer) -> Sequence[Actor]:
        """Return what else runs in a router's process."""
        del router, indexer
        return ()
