"""The simulator: drives any actors in virtual time, from a seed, through seeded faults.

    sim = Simulation(seed, plan)
    journal, bus = SimJournal(sim), SimBus(sim)
    sim.add(ProcessPlan("router-1", build, tail_to="indexer"))
    sim.on_step.append(check)
    sim.run(until_s=30.0)

The same seed gives the same run, step by step, in every process (`fingerprint`).
"""

import random
from collections import Counter, deque
from collections.abc import Callable, Sequence
from zlib import crc32

import msgspec

from kvmesh.actors.kernel import Actor, Effect, Log, Message, Send, Wake
from kvmesh.actors.messages import Started
from kvmesh_lab.simulator.fleet.agenda import Agenda
from tests.doubles.sim.faults import Faults, SimFaults


class Birth(msgspec.Struct, frozen=True):
    """What a process is born with: the how-many-th life it is (from 1), when, a seed, and what its
    machine's clock says then, seconds, which is larger than 0.
    """

    incarnation: int
    now: float
    seed: int
    clock_s: float = 1.0


class ProcessPlan(msgspec.Struct, frozen=True):
    """How to start a process, and start it again after a crash.

    `build` makes fresh actors: nothing survives a crash but what `build` finds elsewhere.
    `subscriptions` are (bus pattern, actor) pairs; `tail_to` is the actor that reads the journal,
    from the start or from where an `OpenTail` effect says; with `waits_for_tail` only the latter.
    An `immortal` process suffers no faults.
    """

    name: str
    build: Callable[[Birth], Sequence[Actor]]
    subscriptions: tuple[tuple[str, str], ...] = ()
    tail_to: str = ""
    waits_for_tail: bool = False
    immortal: bool = False


class Process:
    """A process as it is now. Times are virtual seconds; its actors go by its own clock."""

    def __init__(self, plan: ProcessPlan) -> None:
        self.plan = plan
        self.name = plan.name
        self.actors: dict[str, Actor] = {}
        self.incarnation = 0
        self.alive = False
        self.frozen_s = 0.0
        self.cut_off_s = 0.0
        self.inbox: deque[tuple[str, Message]] = deque()
        self.backlog: deque[tuple[str, Message]] = deque()
        self.held: list[tuple[str, Effect]] = []
        self.ahead_s = 0.0
        self.rate = 1.0

    def time(self, now: float) -> float:
        """Return what its clock says at a virtual time."""
        return self.ahead_s + self.rate * now

    def is_cut_off(self, now: float) -> bool:
        """Return whether its network is down."""
        return now < self.cut_off_s


Carrier = Callable[[Process, str, Effect], None]
Check = Callable[[Process, str, Message], None]


class Simulation:
    """Virtual time, processes, and the faults that befall them.

    `on_step` checks run after every turn of an actor, `on_decided` for every effect when its actor
    returns it, `on_start` after every (re)start of a process. `carriers` carry out effects; the
    simulated journal, bus and stores add theirs.
    An effect that nothing carries is a bug and raises `KeyError`.
    """

    def __init__(self, seed: int, plan: SimFaults | None = None) -> None:
        self.rng = random.Random(seed)
        self.faults = Faults(plan or SimFaults(), self.rng)
        self.now = 0.0
        self.steps = 0
        self.fingerprint = 0
        self.processes: dict[str, Process] = {}
        self.carriers: dict[type[Effect], Carrier] = {
            Send: self._carry_send,
            Wake: self._carry_wake,
            Log: self._carry_log,
        }
        self.on_step: list[Check] = []
        self.on_decided: list[Carrier] = []
        self.on_start: list[Callable[[Process], None]] = []
        self.struck: Counter[str] = Counter()
        self.logged: Counter[str] = Counter()
        self._agenda = Agenda[Callable[[], None]]()
        self.at(self.faults.plan.mischief_s, self._make_mischief)

    def add(self, plan: ProcessPlan) -> Process:
        """Add a process and start it now."""
        process = self.processes[plan.name] = Process(plan)
        self.start(process)
        return process

    def at(self, after_s: float, action: Callable[[], None]) -> None:
        """Do something `after_s` seconds from now; equal times keep their order."""
        self._agenda.enter(self.now + max(0.0, after_s), action)

    def run(self, until_s: float) -> None:
        """Let virtual time pass up to `until_s`."""
        while self._agenda.next_s() <= until_s:
            self.now, action = self._agenda.take()
            action()
        self.now = max(self.now, until_s)

    def run_until(self, done: Callable[[], bool], limit_s: float, check_s: float = 0.25) -> bool:
        """Let time pass until `done`, or for `limit_s` at most; return whether it was."""
        end_s = self.now + limit_s
        while not done():
            if self.now >= end_s:
                return False
            self.run(min(end_s, self.now + check_s))
        return True

    def deliver(self, process: Process, incarnation: int, actor: str, message: Message) -> None:
        """Hand a message to an actor of that life of a process; to nobody when it is over."""
        if process.incarnation != incarnation or not process.alive:
            return
        if self.now < process.frozen_s or process.backlog or process.held:
            if not process.backlog:
                self.at(process.frozen_s - self.now, lambda: self._thaw(process, incarnation))
            process.backlog.append((actor, message))
            return
        self._hand_over(process, actor, message)

    def _thaw(self, process: Process, incarnation: int) -> None:
        """Give a process that was frozen what came meanwhile, in order."""
        if process.incarnation != incarnation:
            return
        if self.now < process.frozen_s:
            self.at(process.frozen_s - self.now, lambda: self._thaw(process, incarnation))
            return
        held, process.held = process.held, []
        for name, effect in held:
            self.carriers[type(effect)](process, name, effect)
        self._work_off(process)
        while process.backlog and not process.held:
            self._hand_over(process, *process.backlog.popleft())

    def _hand_over(self, process: Process, actor: str, message: Message) -> None:
        idle = not process.inbox
        process.inbox.append((actor, message))
        if idle:
            self._work_off(process)

    def _work_off(self, process: Process) -> None:
        while process.inbox and not process.held:
            self._turn(process, *process.inbox[0])
            if process.inbox:
                process.inbox.popleft()

    def kill(self, process: Process) -> None:
        """End a process at once; what it had sent stays on its way."""
        process.alive = False
        process.actors = {}
        process.inbox.clear()
        process.backlog.clear()
        process.held.clear()

    def start(self, process: Process) -> None:
        """Start a process anew, unless it lives."""
        if process.alive:
            return
        process.alive = True
        process.incarnation += 1
        process.frozen_s = process.cut_off_s = self.now
        self._set_clock(process)
        clock_s = process.time(self.now) + 1.0
        birth = Birth(process.incarnation, self.now, self.rng.getrandbits(32), clock_s)
        process.actors = {actor.name: actor for actor in process.plan.build(birth)}
        for started in self.on_start:
            started(process)
        for actor in tuple(process.actors):
            self.deliver(process, process.incarnation, actor, Started())

    def _set_clock(self, process: Process) -> None:
        """Have a process that starts live by another clock: it may be on another machine now."""
        plan = self.faults.plan
        if plan.skew_s > 0.0 or plan.drift > 0.0:
            rate = 1.0 + self.faults.between((-plan.drift, plan.drift))
            ahead_s = self.faults.between((0.0, plan.skew_s))
            # A clock may stand before it began to be wrong, and never before 0.
            process.rate, process.ahead_s = rate, ahead_s + (1.0 - rate) * self.now

    def crash(self, process: Process) -> None:
        """Kill a process and let it come back after a while."""
        self.kill(process)
        self.at(self.faults.outage(), lambda: self.start(process))

    def strike(self, kind: str, chance: float) -> bool:
        """Return whether a fault of that kind happens now, and count it."""
        if not self.faults.strikes(chance, self.now):
            return False
        self.struck[kind] += 1
        return True

    def _turn(self, process: Process, name: str, message: Message) -> None:
        self.steps += 1
        line = f"{self.now:.6f} {process.name} {name} {type(message).__name__}"
        self.fingerprint = crc32(line.encode(), self.fingerprint)
        plan = SimFaults() if process.plan.immortal else self.faults.plan
        effects = tuple(process.actors[name].receive(message, process.time(self.now)))
        for effect in effects:
            for seen in self.on_decided:
                seen(process, name, effect)
        for done, effect in enumerate(effects):
            if self.strike("crash_at_effect", plan.crash_at_effect):
                self.crash(process)
                break
            if self.strike("pause_at_effect", plan.pause_at_effect):
                self._pause_turn(process, [(name, rest) for rest in effects[done:]])
                break
            self.carriers[type(effect)](process, name, effect)
        if process.alive:
            for check in self.on_step:
                check(process, name, message)

    def _pause_turn(self, process: Process, held: list[tuple[str, Effect]]) -> None:
        """Freeze a process within its turn: the rest of it, and what it told itself, waits."""
        incarnation = process.incarnation
        process.held = held
        process.frozen_s = self.now + self.faults.outage()
        self.at(process.frozen_s - self.now, lambda: self._thaw(process, incarnation))

    def _make_mischief(self) -> None:
        """Choose victims; goes on until the storm is over."""
        plan = self.faults.plan
        if self.now >= plan.until_s:
            return
        victims = [one for one in self.processes.values() if one.alive and not one.plan.immortal]
        for process in victims:
            if self.strike("crash", plan.crash):
                self.crash(process)
            if self.strike("pause", plan.pause):
                process.frozen_s = self.now + self.faults.outage()
            if self.strike("disconnect", plan.disconnect):
                process.cut_off_s = self.now + self.faults.outage()
        self.at(plan.mischief_s, self._make_mischief)

    def _carry_send(self, process: Process, _: str, effect: Effect) -> None:
        assert isinstance(effect, Send)
        process.inbox.append((effect.to, effect.message))

    def _carry_wake(self, process: Process, actor: str, effect: Effect) -> None:
        assert isinstance(effect, Wake)
        incarnation, message = process.incarnation, effect.message
        after_s, plan = effect.after_s / process.rate, self.faults.plan
        if not after_s and self.strike("busy", plan.busy):
            after_s = self.faults.between(plan.busy_s)
        self.at(after_s, lambda: self.deliver(process, incarnation, actor, message))

    def _carry_log(self, _: Process, __: str, effect: Effect) -> None:
        assert isinstance(effect, Log)
        self.logged[effect.event] += 1
