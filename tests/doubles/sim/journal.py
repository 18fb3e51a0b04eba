"""The simulated journal: a stream that delays, loses, repeats, forgets and dies."""

from collections.abc import Callable

from kvmesh.actors.kernel import Append, Effect, Message
from kvmesh.actors.messages import (
    Appended,
    CaughtUp,
    JournalGap,
    JournalOpened,
    JournalRecord,
    JournalRecreated,
)
from kvmesh.actors.storage import Deleted, OpenTail, PurgeJournal
from kvmesh.actors.wire import last_token
from kvmesh.core.blocks.events import WorkerId
from tests.doubles.sim.driver import Process, Simulation

BURST = 8
"""Records in one delivery at most."""


class _Tail:
    """A process's reading position; it dies with that life of the process."""

    def __init__(self, process: Process, after: int, created: str) -> None:
        self.process = process
        self.incarnation = process.incarnation
        self.position = after
        self.created = created
        self.goal = -1
        self.opened = False
        self.caught_up = False
        self.scheduled = False


class SimJournal:
    """One stream, its appends and its tails. `on_stored` sees every record as it is stored."""

    def __init__(self, sim: Simulation) -> None:
        self.created = "1"
        self.first_sequence = 1
        self.last_sequence = 0
        self.records: dict[int, tuple[str, bytes]] = {}
        self.on_stored: list[Callable[[int, str, bytes], None]] = []
        self._sim = sim
        self._tails: dict[str, _Tail] = {}
        self._wanted: dict[str, OpenTail] = {}
        self._arrivals_s: dict[str, float] = {}
        sim.carriers[Append] = self._carry_append
        sim.carriers[PurgeJournal] = self._carry_purge
        sim.carriers[OpenTail] = self._carry_open_tail
        sim.on_start.append(self._on_start)
        sim.at(sim.faults.plan.mischief_s, self._make_mischief)

    def store(self, subject: str, data: bytes) -> int:
        """Store a record and wake every tail; return its sequence."""
        self.last_sequence += 1
        self.records[self.last_sequence] = (subject, data)
        for seen in self.on_stored:
            seen(self.last_sequence, subject, data)
        self._wake_tails()
        return self.last_sequence

    def purge(self, up_to: int) -> int:
        """Forget records up to a sequence; return how many."""
        gone = range(self.first_sequence, min(up_to, self.last_sequence) + 1)
        for sequence in gone:
            del self.records[sequence]
        self.first_sequence += len(gone)
        return len(gone)

    def recreate(self) -> None:
        """Replace the stream by an empty one."""
        self.created = str(int(self.created) + 1)
        self.records.clear()
        self.first_sequence, self.last_sequence = 1, 0
        self._wake_tails()

    def truncate(self, last: int) -> None:
        """Lose every record behind `last`, as a server's machine that crashes before its disk."""
        for sequence in range(max(last, self.first_sequence - 1) + 1, self.last_sequence + 1):
            del self.records[sequence]
        self.last_sequence = max(last, self.first_sequence - 1)
        self._wake_tails()

    def _carry_append(self, process: Process, actor: str, effect: Effect) -> None:
        """Send an append on its way; it, or its ack, may be lost."""
        assert isinstance(effect, Append)
        sim = self._sim
        if process.is_cut_off(sim.now):
            return
        arrival_s = sim.now + sim.faults.delay(sim.now)
        if not sim.strike("reorder", sim.faults.plan.reorder):
            arrival_s = max(arrival_s, self._arrivals_s.get(process.name, 0.0))
            self._arrivals_s[process.name] = arrival_s
        incarnation = process.incarnation
        sim.at(arrival_s - sim.now, lambda: self._arrive(process, incarnation, actor, effect))

    def _arrive(self, process: Process, incarnation: int, actor: str, effect: Append) -> None:
        sim, plan = self._sim, self._sim.faults.plan
        if sim.strike("lose_append", plan.lose_append):
            return
        if sim.strike("garbage", plan.garbage):
            self.store(effect.subject, sim.faults.garble(effect.data))
        sequence = self.store(effect.subject, effect.data)
        if sim.strike("repeat_append", plan.repeat_append):
            self.store(effect.subject, effect.data)
        if sim.strike("lose_ack", plan.lose_ack) or process.is_cut_off(sim.now):
            return
        answer = Appended(effect.token, sequence)
        self._answer(process, incarnation, actor, answer)

    def _answer(self, process: Process, incarnation: int, actor: str, answer: Message) -> None:
        sim = self._sim
        sim.at(sim.faults.delay(sim.now), lambda: sim.deliver(process, incarnation, actor, answer))

    def _carry_purge(self, process: Process, actor: str, effect: Effect) -> None:
        assert isinstance(effect, PurgeJournal)
        incarnation = process.incarnation

        def purge() -> None:
            deleted = Deleted(effect.token, self.purge(effect.up_to))
            self._answer(process, incarnation, actor, deleted)

        if not process.is_cut_off(self._sim.now):
            self._sim.at(self._sim.faults.delay(self._sim.now), purge)

    def _carry_open_tail(self, process: Process, _: str, effect: Effect) -> None:
        """Put another tail in the place of the present one, which delivers until it is ended."""
        assert isinstance(effect, OpenTail)
        sim, incarnation = self._sim, process.incarnation
        self._wanted[process.name] = effect

        def replace() -> None:
            if process.incarnation == incarnation and self._wanted[process.name] is effect:
                self._open_tail(process, effect.after, effect.created)

        late = sim.strike("late_tail", sim.faults.plan.late_tail)
        late_s = sim.faults.between(sim.faults.plan.slow_s) if late else 0.0
        sim.at(late_s + sim.faults.delay(sim.now), replace)

    def _on_start(self, process: Process) -> None:
        if process.plan.tail_to and not process.plan.waits_for_tail:
            self._open_tail(process, 0, "")

    def _open_tail(self, process: Process, after: int, created: str) -> None:
        tail = self._tails[process.name] = _Tail(process, after, created)
        self._schedule(tail)

    def _wake_tails(self) -> None:
        for tail in self._tails.values():
            self._schedule(tail)

    def _schedule(self, tail: _Tail, wait_s: float = 0.0) -> None:
        if not tail.scheduled:
            tail.scheduled = True
            self._sim.at(wait_s + self._sim.faults.delay(self._sim.now), lambda: self._pump(tail))

    def _pump(self, tail: _Tail) -> None:
        """Deliver the next records, or the news that the stream changed under the tail."""
        tail.scheduled = False
        sim, process = self._sim, tail.process
        if tail is not self._tails.get(process.name) or tail.incarnation != process.incarnation:
            return
        if process.is_cut_off(sim.now):
            self._schedule(tail, process.cut_off_s - sim.now)
            return
        self._check_stream(tail)
        if sim.strike("repeat_delivery", sim.faults.plan.repeat_delivery):
            tail.position = max(self.first_sequence - 1, tail.position - sim.faults.below(BURST))
        for _ in range(1 + sim.faults.below(BURST)):
            record = self.records.get(tail.position + 1)
            if record is None:
                break
            tail.position += 1
            worker = WorkerId(last_token(record[0]))
            self._deliver(tail, JournalRecord(tail.position, worker, record[1]))
        if not tail.caught_up and tail.position >= tail.goal:
            tail.caught_up = True
            self._deliver(tail, CaughtUp(tail.goal))
        if tail.position < self.last_sequence:
            self._schedule(tail)

    def _check_stream(self, tail: _Tail) -> None:
        if not tail.opened:
            tail.opened = True
            tail.created = tail.created or self.created
            self._deliver(tail, JournalOpened(tail.created))
        if tail.created != self.created or tail.position > self.last_sequence:
            tail.created, tail.position, tail.goal = self.created, 0, -1
            self._deliver(tail, JournalRecreated(self.created))
        if tail.goal < 0 or tail.goal > self.last_sequence:
            # A stream loses its end with its server, and a tail that is opened anew looks again.
            tail.goal = self.last_sequence
        if tail.position + 1 < self.first_sequence:
            self._deliver(tail, JournalGap(tail.position + 1, self.first_sequence - 1))
            tail.position = self.first_sequence - 1

    def _deliver(self, tail: _Tail, message: Message) -> None:
        process = tail.process
        self._sim.deliver(process, tail.incarnation, process.plan.tail_to, message)

    def _make_mischief(self) -> None:
        sim, plan = self._sim, self._sim.faults.plan
        if sim.now >= plan.until_s:
            return
        if sim.strike("purge", plan.purge):
            self.purge(sim.faults.below(self.last_sequence + 1))
        if sim.strike("recreate", plan.recreate):
            self.recreate()
        if sim.strike("truncate", plan.truncate):
            self.truncate(self.last_sequence - sim.faults.below(BURST))
        sim.at(plan.mischief_s, self._make_mischief)
