import pytest

from kvmesh.actors.kernel import Publish
from kvmesh.actors.messages import BusMessage
from tests.doubles.sim.bus import SimBus, matches
from tests.doubles.sim.driver import Process, Simulation
from tests.doubles.sim.faults import SimFaults
from tests.unit.app.process.worlds import Probe, add_probe


class World:
    def __init__(self, plan: SimFaults | None = None) -> None:
        self.sim = Simulation(2, plan)
        self.bus = SimBus(self.sim)
        self.sender: Process = add_probe(self.sim, "sender")[0]
        subscriptions = (("x.*", "probe"),)
        self.receiver, lives = add_probe(self.sim, "receiver", subscriptions=subscriptions)
        self.probe: Probe = lives[0]

    def publish(self, *data: bytes) -> None:
        for one in data:
            self.sim.carriers[Publish](self.sender, "probe", Publish("x.y", one))

    def received(self) -> list[bytes]:
        self.sim.run(self.sim.now + 3.0)
        return [one.data for one in self.probe.messages() if isinstance(one, BusMessage)]


NUMBERS = tuple(bytes([number]) for number in range(40))


def test_subscribers_get_what_matches_in_order() -> None:
    world = World()
    world.bus.publish("other.y", b"no")
    world.publish(*NUMBERS)

    assert world.received() == list(NUMBERS)


@pytest.mark.parametrize("cut_off", ["sender", "receiver"])
def test_nothing_passes_to_or_from_a_process_cut_off(cut_off: str) -> None:
    world = World()
    world.sim.processes[cut_off].cut_off_s = 1.0
    world.publish(b"lost")

    assert world.received() == []


def test_a_parted_process_is_not_heard_until_that_side_is_healed() -> None:
    world = World()
    links = world.bus.links
    links.part(["sender"], ["receiver"], 60.0)
    links.part(["receiver"], ["sender"], 60.0)
    world.publish(b"lost")
    assert world.received() == []

    links.heal(["receiver"], ["sender"])
    assert links.is_parted("sender", "receiver")
    world.publish(b"lost, too")
    assert world.received() == []
    links.heal(["sender"], ["receiver"])
    world.publish(b"heard")

    assert world.received() == [b"heard"]


def test_a_partition_ends_by_itself_and_leaves_everybody_to_hear_himself() -> None:
    world = World()
    everybody = ["sender", "receiver"]
    world.bus.links.part(everybody, everybody, 2.0)

    world.bus.publish("x.y", b"own", sender="receiver")
    world.publish(b"lost")
    world.sim.run(2.0)
    world.publish(b"heard")

    assert world.received() == [b"own", b"heard"]


def test_one_link_may_be_slow_and_lossy() -> None:
    world = World()
    link = world.bus.links.link("sender", "receiver")
    link.delay_s = 1.0
    world.publish(b"slow")
    world.sim.run(1.0)
    assert not any(isinstance(one, BusMessage) for one in world.probe.messages())
    assert world.received() == [b"slow"]

    link.loss = 0.5
    world.publish(*NUMBERS)

    assert 5 < len(world.received()) - 1 < 35


def test_storms_part_the_processes_and_each_side_heals_by_itself() -> None:
    world = World(SimFaults(until_s=5.0, partition=1.0))
    links = world.bus.links
    one_sided = False

    for number in range(200):
        world.sim.run(number * 0.025)
        there = links.is_parted("sender", "receiver")
        one_sided = one_sided or there != links.is_parted("receiver", "sender")

    assert one_sided
    world.sim.run(20.0)
    assert not links.is_parted("sender", "receiver")


def test_messages_may_be_lost() -> None:
    world = World(SimFaults(until_s=9.0, lose_message=0.5))
    world.publish(*NUMBERS)

    assert len(world.received()) == 40 - world.sim.struck["lose_message"] < 40


def test_messages_may_be_garbled() -> None:
    world = World(SimFaults(until_s=9.0, garbage=0.5))
    world.publish(*NUMBERS)

    garbled = [one for one in world.received() if one not in NUMBERS]
    assert len(garbled) == world.sim.struck["garbage"] > 0


def test_messages_may_overtake_each_other() -> None:
    world = World(SimFaults(until_s=9.0, reorder=0.5))
    world.publish(*NUMBERS)

    received = world.received()
    assert received != list(NUMBERS)
    assert sorted(received) == list(NUMBERS)


@pytest.mark.parametrize(
    ("pattern", "subject", "covered"),
    [
        ("a.b", "a.b", True),
        ("a.*", "a.b", True),
        ("*.b", "a.b", True),
        ("a.>", "a.b.c", True),
        (">", "a", True),
        ("a.>", "a", False),
        ("a.*", "a.b.c", False),
        ("a.*", "a", False),
        ("a.c", "a.b", False),
    ],
)
def test_patterns_cover_subjects_as_in_nats(pattern: str, subject: str, covered: bool) -> None:
    assert matches(pattern, subject) is covered
