"""Engines, sidecars, routers and a front door: heartbeats may be lost, HTTP is whole."""

from collections.abc import Callable, Sequence

import msgspec

from kvmesh.actors.kernel import Actor, Effect, Message, Publish, Wake
from kvmesh.actors.member_messages import ROUTER, WORKER, Answered
from kvmesh.actors.messages import (
    BusMessage,
    RouterHeartbeat,
    Started,
    Tick,
    WorkerHeartbeat,
    WorkerLoad,
)
from kvmesh.actors.meta_router import MetaRouter
from kvmesh.actors.registry import Registry, RegistryOptions
from kvmesh.actors.wire import Subjects, decode, encode, last_token
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.members.health import Answer
from kvmesh.core.members.loads import new_sequences
from kvmesh.core.members.membership import Membership
from kvmesh.core.members.worker_info import Trust
from kvmesh.core.routing.registry import WorkerRegistry
from tests.doubles.sim.bus import SimBus
from tests.doubles.sim.driver import Birth, Process, ProcessPlan, Simulation
from tests.doubles.sim.faults import SimFaults

SUBJECTS = Subjects("kvmesh", "code")
FRONT = "front"
LOOK_S = 0.1
LATE_S = 0.7
ANSWER_S = 1.5
MISSED_LOOKS = 3
BACK_S = 4.5
"""Who answers is given requests after this: asked each second, the last answer may be late."""
GONE_S = 4.5
"""Who neither speaks nor answers gets nothing new after this; 3.5 s, and what is on its way."""
APPROX_S = 4.5


class Sidecar:
    """Tells each second that it lives, and whether its engine answers."""

    def __init__(self, worker: WorkerId, birth: Birth, answers: Callable[[], bool]) -> None:
        self.name = "sidecar"
        self._beat = WorkerHeartbeat(
            worker, "code", birth.incarnation, 0, f"http://{engine_of(worker)}", (), 2, WorkerLoad()
        )
        self._answers = answers
        self._missed = 0

    def receive(self, message: Message, now: float) -> list[Effect]:  # noqa: ARG002
        assert isinstance(message, Started | Tick)
        self._missed = 0 if self._answers() else self._missed + 1
        silent = self._missed >= MISSED_LOOKS
        beat = msgspec.structs.replace(self._beat, draining=silent, answering=not silent)
        subject = SUBJECTS.heartbeats(self._beat.worker)
        return [Publish(subject, encode(beat)), Wake(1.0, Tick("beat"))]


def engine_of(worker: str) -> str:
    return f"e{worker.removeprefix('w')}"


class LivenessPlane:
    """One bucket without requests; who may be given one is checked after every step."""

    def __init__(
        self, seed: int, plan: SimFaults, *, workers: int = 2, routers: int = 2, asked: bool = True
    ) -> None:
        self.sim = Simulation(seed, plan)
        self.bus = SimBus(self.sim)
        self.workers = [WorkerId(f"w{number}") for number in range(workers)]
        self.routers = [f"r{number}" for number in range(routers)]
        self._asked = asked
        self._up_s: dict[str, float] = {}
        self._died_s: dict[str, float] = {}
        self._out_s: dict[tuple[str, str], float] = {}
        self._received: dict[tuple[str, str], tuple[float, bool]] = {}
        self._idle_s: dict[str, float] = {}
        self._checked_s: dict[str, float] = {}
        self._deaf_s: dict[str, float] = {}
        self.sim.on_start.append(self._on_start)
        for worker in self.workers:
            self._add_worker(worker)
        for router in self.routers:
            self._add_router(router)
        self.sim.add(
            ProcessPlan(FRONT, self._build_front, subscriptions=((SUBJECTS.routers(), "front"),))
        )
        self.sim.on_step.append(self.check)

    def registry(self, router: str) -> Registry:
        actor = self.sim.processes[router].actors["registry"]
        assert isinstance(actor, Registry)
        return actor

    def front(self) -> MetaRouter:
        actor = self.sim.processes[FRONT].actors["front"]
        assert isinstance(actor, MetaRouter)
        return actor

    def usable(self, process: str) -> tuple[str, ...]:
        """Return whom a process may give a request now, by the names of their processes."""
        if process == FRONT:
            names = self.front().table.membership.usable(self.local(process))
            return tuple(name.partition("/")[2] for name in names)
        return self.registry(process).workers.membership.usable(self.local(process))

    def answers(self, process: str) -> bool:
        """Return whether a process answers over HTTP now, a router that it is ready."""
        found = self.sim.processes.get(process)
        if found is None or not found.alive or self.sim.now < found.frozen_s:
            return False
        return process in self.engines() or bool(self.usable(process))

    def local(self, process: str) -> float:
        """Return what a process's clock says."""
        return self.sim.processes[process].time(self.sim.now)

    def engines(self) -> list[str]:
        return [engine_of(worker) for worker in self.workers]

    def check(self, process: Process, actor: str, message: Message) -> None:  # noqa: ARG002
        """What holds after every turn."""
        now, name = self.sim.now, process.name
        for one in (*self.engines(), *self.routers):
            if not self.answers(one):
                self._up_s.pop(one, None)
            else:
                self._up_s.setdefault(one, now)
            if self.sim.processes[one].alive:
                self._died_s.pop(one, None)
            else:
                self._died_s.setdefault(one, now)
        if name != FRONT and name not in self.routers:
            return
        if isinstance(message, BusMessage):
            self._receive(name, message)
        if now > self._checked_s[name] + LATE_S:
            self._idle_s[name] = now
        if message == Tick("check"):
            self._checked_s[name] = now
        self._check_usable(name)
        if name != FRONT:
            self._check_trust(name)

    def _receive(self, name: str, message: BusMessage) -> None:
        """Remember of whom this life of a process heard when, and whether he wanted to leave."""
        sender = last_token(message.subject)
        if name == FRONT:
            ready = decode(message.data, RouterHeartbeat)
            self._received[name, sender] = self.sim.now, ready.leaving
        elif sender in self.workers:
            beat = decode(message.data, WorkerHeartbeat)
            self._received[name, sender] = self.sim.now, beat.leaving

    def _check_usable(self, name: str) -> None:
        now, usable = self.sim.now, self.usable(name)
        for member in self.routers if name == FRONT else self.workers:
            key = name, member
            door = member if name == FRONT else engine_of(member)
            received_s, leaving = self._received.get(key, (now, True))
            if member in usable or leaving:
                self._out_s.pop(key, None)
            else:
                self._out_s.setdefault(key, now)
            up_s = self._up_s.get(door)
            if up_s is not None and key in self._out_s:
                out_s = now - max(up_s, self._out_s[key], self._idle_s[name])
                assert out_s < BACK_S, f"{name} leaves out {member}, who answers, for {out_s} s"
            if member in usable and door in self._died_s:
                silent_s = now - max(self._died_s[door], received_s, self._idle_s[name])
                assert silent_s < GONE_S, f"{name} keeps {member}, who is gone, for {silent_s} s"

    def _check_trust(self, name: str) -> None:
        """The events of a worker count only while its heartbeats come."""
        registry, now = self.registry(name), self.sim.now
        if registry.link_health.deaf:
            self._deaf_s[name] = now
        for worker in self.workers:
            if worker not in registry.workers.membership:
                continue
            received_s, _ = self._received.get((name, worker), (now, False))
            silent_s = now - max(received_s, self._idle_s[name], self._deaf_s.get(name, 0.0))
            trust = registry.workers.info(worker).trust
            assert silent_s < APPROX_S or trust is Trust.APPROX, f"{name} trusts silent {worker}"
            assert now > received_s or trust is Trust.EXACT, f"{name} doubts {worker}, who is heard"

    def is_settled(self) -> bool:
        """Whether all live, hear each other and may be given requests."""
        if not all(process.alive for process in self.sim.processes.values()):
            return False
        if set(self.usable(FRONT)) != set(self.routers) or self.front().link_health.warnings():
            return False
        return all(
            set(self.usable(router)) == set(self.workers)
            and not self.registry(router).link_health.warnings()
            for router in self.routers
        )

    def _on_start(self, process: Process) -> None:
        """Begin to ask, in each life of a process anew."""
        name, incarnation = process.name, process.incarnation
        for key in [key for key in self._received if key[0] == name]:
            del self._received[key]
        self._out_s = {key: at for key, at in self._out_s.items() if key[0] != name}
        self._idle_s[name] = self._checked_s[name] = self.sim.now
        if self._asked and (name == FRONT or name in self.routers):
            self.sim.at(LOOK_S, lambda: self._check(process, incarnation))

    def _check(self, process: Process, incarnation: int) -> None:
        if process.incarnation != incarnation or not process.alive:
            return
        now, name = self.sim.now, process.name
        if now >= process.frozen_s:
            if name == FRONT:
                for member, beat in self.front().silent.due(self.local(name)):
                    self._ask(process, "front", member, beat.router, ready=True)
            else:
                registry = self.registry(name)
                for member, _ in registry.silent_workers.due(self.local(name)):
                    self._ask(process, "registry", WORKER + member, engine_of(member), ready=False)
                for member, _ in registry.silent_routers.due(self.local(name)):
                    self._ask(process, "registry", ROUTER + member, member, ready=False)
        self.sim.at(LOOK_S, lambda: self._check(process, incarnation))

    def _ask(self, asker: Process, actor: str, member: str, door: str, *, ready: bool) -> None:
        """Send a probe: refused by the dead, never answered by the frozen."""
        sim, incarnation = self.sim, asker.incarnation

        def tell(answer: Answer) -> None:
            sim.deliver(asker, incarnation, actor, Answered(member, answer))

        def arrive() -> None:
            target, delay_s = sim.processes[door], sim.faults.between(sim.faults.plan.delay_s)
            if not target.alive:
                sim.at(delay_s, lambda: tell("down"))
            elif sim.now < target.frozen_s:
                sim.at(ANSWER_S, lambda: tell("slow"))
            else:
                good = not ready or self.answers(door)
                sim.at(delay_s, lambda: tell("ok" if good else "down"))

        sim.at(sim.faults.between(sim.faults.plan.delay_s), arrive)

    def _add_worker(self, worker: WorkerId) -> None:
        engine = engine_of(worker)
        self.sim.add(ProcessPlan(engine, lambda _: ()))

        def build(birth: Birth) -> Sequence[Actor]:
            return [Sidecar(worker, birth, lambda: self.answers(engine))]

        self.sim.add(ProcessPlan(worker, build))

    def _add_router(self, router: str) -> None:
        def build(birth: Birth) -> Sequence[Actor]:
            def status() -> RouterHeartbeat:
                # The first heartbeat is made while the process is still being born.
                ready = bool(workers.membership.usable(self.local(router)))
                return RouterHeartbeat(
                    router, "code", f"http://{router}", ready=ready, epoch=birth.incarnation
                )

            workers = WorkerRegistry(Membership(), new_sequences(2))
            registry = Registry(
                RegistryOptions(router, "code"), workers, Membership(), status=status
            )
            if self._asked:
                registry.link_health.set_asked()
            return [registry]

        patterns = ((SUBJECTS.heartbeats(), "registry"), (SUBJECTS.routers(), "registry"))
        self.sim.add(ProcessPlan(router, build, subscriptions=patterns))

    def _build_front(self, birth: Birth) -> Sequence[Actor]:
        del birth
        front = MetaRouter("kvmesh", name="front")
        if self._asked:
            front.link_health.set_asked()
        return [front]
