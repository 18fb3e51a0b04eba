import msgspec

from kvmesh.actors.kernel import Append, Effect, Message
from kvmesh.actors.messages import (
    Appended,
    CaughtUp,
    JournalGap,
    JournalOpened,
    JournalRecord,
    JournalRecreated,
    Started,
)
from kvmesh.actors.storage import OpenTail, PurgeJournal
from kvmesh.core.blocks.events import WorkerId
from tests.doubles.sim.driver import Process, Simulation
from tests.doubles.sim.faults import SimFaults
from tests.doubles.sim.journal import SimJournal
from tests.unit.app.process.worlds import Probe, add_probe


class World:
    def __init__(self, plan: SimFaults | None = None, seed: int = 1, stored: int = 0) -> None:
        self.sim = Simulation(seed, plan)
        self.journal = SimJournal(self.sim)
        for number in range(stored):
            self.journal.store("ev.w", bytes([number]))
        self.process, self._lives = add_probe(self.sim, answers=answer, tail_to="probe")

    @property
    def probe(self) -> Probe:
        return self._lives[-1]

    def tell(self, effect: Effect) -> None:
        self.sim.carriers[type(effect)](self.process, "probe", effect)

    def append(self, count: int = 1) -> None:
        for number in range(count):
            self.tell(Append("ev.w", bytes([number]), number))

    def records(self) -> list[int]:
        return [one.sequence for one in self.probe.messages() if isinstance(one, JournalRecord)]

    def updates(self) -> list[Message]:
        return [
            one
            for one in self.probe.messages()
            if not isinstance(one, JournalRecord | Started | Appended)
        ]


def answer(_: Message) -> list[Effect]:
    return []


def test_a_tail_delivers_the_history_says_so_and_goes_on() -> None:
    world = World(stored=20)
    world.sim.run(1.0)
    assert world.records() == list(range(1, 21))
    assert world.updates() == [JournalOpened("1"), CaughtUp(20)]
    assert world.probe.messages()[2] == JournalRecord(1, WorkerId("w"), b"\x00")

    world.append(3)
    world.sim.run(2.0)

    assert world.records() == list(range(1, 24))
    acks = {one for one in world.probe.messages() if isinstance(one, Appended)}
    assert acks == {Appended(0, 21), Appended(1, 22), Appended(2, 23)}


def test_purged_records_are_a_gap_for_who_has_not_read_them() -> None:
    world = World(stored=5)
    assert world.journal.purge(3) == 3
    world.sim.run(1.0)

    assert world.updates()[1] == JournalGap(1, 3)
    assert world.records() == [4, 5]
    assert world.journal.purge(99) == 2


def test_a_remade_journal_is_read_from_its_start() -> None:
    world = World(stored=5)
    world.sim.run(1.0)
    world.journal.recreate()
    world.append()
    world.sim.run(2.0)

    assert world.updates()[-1] == JournalRecreated("2")
    assert world.records() == [1, 2, 3, 4, 5, 1]


def test_records_lost_by_a_crash_of_the_server_begin_the_stream_again() -> None:
    world = World(stored=5)
    world.sim.run(1.0)
    world.journal.truncate(2)
    world.sim.run(2.0)

    assert world.updates()[-1] == JournalRecreated("1")
    assert world.records() == [1, 2, 3, 4, 5, 1, 2]
    world.journal.truncate(-7)
    assert world.journal.last_sequence == 0


def test_a_tail_can_be_reopened_behind_a_sequence() -> None:
    world = World(stored=9)
    world.sim.run(1.0)
    before = len(world.records())

    world.tell(OpenTail(2, "1"))
    world.tell(OpenTail(6, "1"))
    world.sim.run(2.0)

    assert world.records()[before:] == [7, 8, 9]
    assert world.updates()[-2:] == [JournalOpened("1"), CaughtUp(9)]


def test_a_tail_delivers_until_the_next_has_taken_its_place() -> None:
    world = World(SimFaults(delay_s=(0.1, 0.2)), stored=1)
    world.sim.run(1.0)

    world.append()
    world.sim.run(1.25)
    world.tell(OpenTail(0, "1"))
    world.sim.run(3.0)

    assert world.records() == [1, 2, 1, 2]
    assert world.updates().count(JournalOpened("1")) == 2


def test_a_process_cut_off_sends_nothing_and_reads_on_later() -> None:
    world = World(stored=3)
    world.process.cut_off_s = 5.0
    world.append()
    world.tell(PurgeJournal(2, token=7))
    world.sim.run(4.9)
    assert world.records() == []

    world.sim.run(6.0)

    assert world.records() == [1, 2, 3]


def test_a_dead_process_reads_no_more() -> None:
    world = World(stored=3)
    old = world.probe
    world.sim.kill(world.process)
    world.sim.run(1.0)
    world.sim.start(world.process)
    world.sim.run(2.0)

    assert [type(one) for one in old.messages()] == [Started]
    assert world.records() == [1, 2, 3]


def test_what_is_lost_repeated_or_garbled_is_as_the_plan_says() -> None:
    counts: dict[str, int] = {}
    for kind in ("lose_append", "lose_ack", "repeat_append", "garbage", "reorder"):
        plan = msgspec.structs.replace(SimFaults(until_s=9.0), **{kind: 0.5})
        world = World(plan, seed=4)
        world.append(40)
        world.sim.run(8.0)
        acks = sum(isinstance(one, Appended) for one in world.probe.messages())
        stored = world.journal.last_sequence
        struck = counts[kind] = world.sim.struck[kind]
        lost = struck if kind == "lose_append" else 0
        assert stored == 40 - lost + (struck if kind in ("repeat_append", "garbage") else 0)
        assert acks == 40 - lost - (struck if kind == "lose_ack" else 0)
        data = [one.data for one in world.probe.messages() if isinstance(one, JournalRecord)]
        numbers = [one[0] for one in data if len(one) == 1]
        assert (numbers == sorted(numbers)) is (kind != "reorder")

    assert min(counts.values()) > 5


def test_the_journal_itself_suffers_mischief() -> None:
    world = World(
        SimFaults(until_s=9.0, purge=0.3, recreate=0.1, truncate=0.2, mischief_s=0.1), stored=9
    )
    for _ in range(60):
        world.append(2)
        world.sim.run(world.sim.now + 0.15)

    assert {"purge", "recreate", "truncate"} <= set(world.sim.struck)


def test_every_stored_record_can_be_watched() -> None:
    sim = Simulation(1)
    journal = SimJournal(sim)
    seen: list[tuple[int, str, bytes]] = []
    journal.on_stored.append(lambda *record: seen.append(record))
    writer: Process = add_probe(sim)[0]
    sim.carriers[Append](writer, "probe", Append("ev.w", b"x", 1))
    sim.run(1.0)

    assert seen == [(1, "ev.w", b"x")]
