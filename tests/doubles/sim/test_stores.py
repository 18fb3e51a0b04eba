import hashlib

from kvmesh.actors.kernel import Effect, Message
from kvmesh.actors.storage import (
    Deleted,
    DeleteKey,
    DeleteObject,
    DeleteOrphans,
    Failed,
    FetchObject,
    KeyRead,
    KeysListed,
    KeyWritten,
    ListKeys,
    ListObjects,
    ObjectFetched,
    ObjectListing,
    ObjectsListed,
    ObjectStored,
    ReadKey,
    StoreObject,
    WriteKey,
)
from tests.doubles.sim.driver import Simulation
from tests.doubles.sim.faults import SimFaults
from tests.doubles.sim.stores import SimStores
from tests.unit.app.process.worlds import add_probe


class World:
    def __init__(self, plan: SimFaults | None = None) -> None:
        self.sim = Simulation(2, plan)
        self.stores = SimStores(self.sim)
        self.process, self.lives = add_probe(self.sim)

    def wish(self, effect: Effect) -> Message:
        before = len(self.lives[-1].received)
        self.sim.carriers[type(effect)](self.process, "probe", effect)
        self.sim.run(self.sim.now + 3.0)
        [answer] = self.lives[-1].messages()[before:]
        return answer


DIGEST = hashlib.sha256(b"data").hexdigest()


def test_a_key_is_written_by_who_knows_its_revision() -> None:
    world = World()

    assert world.wish(ReadKey("k", 1)) == KeyRead(1, None)
    assert world.wish(WriteKey("k", b"one", None, 2)) == KeyWritten(2, 1)
    conflict = world.wish(WriteKey("k", b"two", None, 3))
    assert isinstance(conflict, Failed)
    assert conflict.conflict
    assert world.wish(WriteKey("k", b"two", 1, 4)) == KeyWritten(4, 2)
    assert world.wish(ReadKey("k", 5)) == KeyRead(5, b"two", 2)
    assert world.wish(ListKeys("", 6)) == KeysListed(6, ("k",))
    assert isinstance(world.wish(DeleteKey("k", 1, 7)), Failed)
    assert world.wish(DeleteKey("k", 2, 8)) == Deleted(8, 1)
    assert world.wish(ListKeys("", 9)) == KeysListed(9, ())


def test_a_key_expires() -> None:
    world = World()
    world.wish(WriteKey("k", b"one", None, 1, ttl_s=5))
    assert world.stores.live("k")
    world.sim.run(6.0)

    assert world.wish(ReadKey("k", 2)) == KeyRead(2, None)
    assert world.wish(ListKeys("k", 3)) == KeysListed(3, ())
    assert world.wish(WriteKey("k", b"two", None, 4)) == KeyWritten(4, 2)


def test_objects_are_stored_listed_fetched_and_deleted() -> None:
    world = World()

    assert world.wish(StoreObject("o", b"data", 1)) == ObjectStored(1, 4, DIGEST)
    assert world.wish(FetchObject("o", 2)) == ObjectFetched(2, b"data")
    listed = world.wish(ListObjects(3))
    assert isinstance(listed, ObjectsListed)
    assert listed.objects == (ObjectListing("o", 4, DIGEST, listed.objects[0].modified_s),)
    assert world.wish(DeleteObject("o", 4)) == Deleted(4, 1)
    assert world.wish(DeleteObject("o", 5)) == Deleted(5, 0)
    assert isinstance(world.wish(FetchObject("o", 6)), Failed)


def test_a_writer_that_dies_leaves_an_orphan() -> None:
    world = World()
    world.sim.carriers[StoreObject](world.process, "probe", StoreObject("o", b"data", 1))
    world.sim.kill(world.process)
    world.sim.start(world.process)
    world.sim.run(10.0)

    assert world.wish(ListObjects(2)) == ObjectsListed(2, ())
    assert world.wish(DeleteOrphans(60.0, 3)) == Deleted(3, 0)
    assert world.wish(DeleteOrphans(5.0, 4)) == Deleted(4, 1)


def test_who_gets_no_answer_cannot_know_whether_it_was_done() -> None:
    done = 0
    for token in range(40):
        world = World(SimFaults(until_s=1.0, lose_answer=0.5))
        world.sim.rng.seed(token)
        answer = world.wish(WriteKey("k", b"v", None, token))
        lost = isinstance(answer, Failed)
        assert lost or answer == KeyWritten(token, 1)
        done += lost and world.stores.live("k") is not None

    assert 0 < done < 40


def test_a_process_cut_off_is_told_after_a_while() -> None:
    world = World()
    world.process.cut_off_s = 1.0

    assert world.wish(ReadKey("k", 1)) == Failed(1, "no answer in time")
    assert world.lives[0].received[-1][0] == 2.0
