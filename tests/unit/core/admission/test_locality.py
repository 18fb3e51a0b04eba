from collections.abc import Sequence
from itertools import count

from kvmesh.core.admission import locality
from kvmesh.core.admission.ledger import Ledger
from kvmesh.core.admission.locality import (
    NOTHING_CACHED,
    YIELD_S,
    Cached,
    FairTurns,
    Places,
)
from kvmesh.core.admission.queue import MAX_ASKED, WaitingRequest
from kvmesh.core.admission.shares import ShareRow, Shares, key_of
from kvmesh.core.admission.tenant_line import MAX_LOOKED
from kvmesh.core.blocks.hashing import BlockHashes
from tests.reference.routing.fair_gap import largest_gap


class Room(Places):
    """Room for so many requests, that `wait` refuse unless they may go anywhere."""

    def __init__(
        self, room: int = 99, wait: Sequence[str] = (), nowhere: Sequence[str] = ()
    ) -> None:
        self.room = room
        self.wait = wait
        self.nowhere = nowhere
        self.depths: dict[str, Cached] = {}
        self.asked: list[str] = []
        self.looked: list[str] = []
        self.cost = 10

    def has_room(self) -> bool:
        return self.room > 0

    def cached(self, request_id: str) -> Cached:
        self.looked.append(request_id)
        return self.depths.get(request_id, NOTHING_CACHED)

    def would_take(self, request_id: str) -> bool:
        return self.room > 0 and request_id not in self.wait and request_id not in self.nowhere

    def place(self, request_id: str, *, anywhere: bool) -> int | None:
        self.asked.append(request_id)
        kept = request_id in self.nowhere or (request_id in self.wait and not anywhere)
        if kept or not self.room:
            return None
        self.room -= 1
        return self.cost


class Held:
    """Turns of requests that are named by their tenant and a number: a1, a2, b1."""

    def __init__(self, *names: str, quantum: int = 100) -> None:
        self.ledger = Ledger(quantum)
        self.turns = FairTurns(self.ledger)
        self.serial = count()
        self.enter(*names)

    def enter(self, *names: str, rank: float = 0.0, blocks: Sequence[int] = ()) -> None:
        for name in names:
            held = WaitingRequest(name, 10, name[0])
            own = list(blocks) or [1000 + next(self.serial)]
            self.turns.enter((rank, next(self.serial)), held, BlockHashes.of(own, 16))

    def release(self, places: Room, now: float = 0.0) -> list[str]:
        return list(self.turns.release(places, now))


def test_the_longest_prefix_with_room_goes_first_and_ties_by_arrival() -> None:
    held, room = Held("a1", "b1", "c1", "d1"), Room(3)
    room.depths = {"b1": Cached(9, 2), "c1": Cached(5, 5)}

    assert held.release(room) == ["c1", "b1", "a1"]
    assert "d1" in held.turns
    assert "a1" not in held.turns


def test_a_tenant_whose_deficit_is_used_up_waits_whatever_is_cached() -> None:
    held = Held("a1", "a2", "a3", "b1", "b2")
    room = Room()
    room.depths = {name: Cached(9, 9) for name in ("a1", "a2", "a3")}
    room.cost = 60

    assert held.release(room) == ["a1", "a2", "b1", "b2", "a3"]


def test_what_begins_like_the_one_just_placed_is_looked_at_next() -> None:
    held, room = Held(), Room(2)
    held.enter("a0", blocks=[1, 2, 3])
    held.enter(*(f"a{number}" for number in range(1, 90)))
    held.enter("a90", blocks=[1, 2, 4])
    room.depths = {"a0": Cached(1, 1), "a90": Cached(2, 2)}

    assert held.release(room) == ["a90", "a0"]


def test_a_look_asks_a_bounded_number_in_vain() -> None:
    names = [f"{chr(0x4E00 + number)}1" for number in range(60)]
    held, room = Held(*names), Room(nowhere=names)

    assert held.release(room) == []
    assert len(room.asked) <= 2 * MAX_ASKED + 2


def test_who_would_rather_wait_lets_others_go_ahead_by_a_quantum_and_then_goes_anywhere() -> None:
    held, room = (
        Held("a1", "a2", *(f"b{number}" for number in range(40))),
        Room(30, wait=("a1", "a2")),
    )

    released = held.release(room)

    assert 15 <= released.index("a1") <= 21
    assert "a2" in released


def test_a_worker_is_waited_for_while_those_ahead_would_wait_as_well() -> None:
    held, room = Held("a1", "b1"), Room(wait=["a1", "b1"])
    held.ledger.charge(key_of("b"), 250)

    assert (held.release(room), room.asked) == ([], ["a1"])

    assert held.release(Room(1, wait=["a1"])) == ["a1"]


def test_who_would_rather_wait_does_so_half_as_long_as_siblings_keep_room() -> None:
    held, room = Held("a1", "a2", "a3"), Room(1, wait=["a1", "a2"])
    held.ledger.receive("r2", 1, Shares(1, 100, [ShareRow(key_of("b"), 1, 0, 0, 5)]))
    assert held.release(room, 0.0) == ["a3"]

    assert held.release(Room(wait=["a1", "a2"]), 0.1) == []
    assert held.release(Room(1, wait=["a1", "a2"]), 0.1 + YIELD_S / 2) == ["a1"]
    held.ledger.receive("r2", 1, Shares(1, 100, [ShareRow(key_of("b"), 1, 0, 0, 0)]))

    assert held.release(Room(wait=["a2"]), 9.0) == []


def test_who_can_go_nowhere_keeps_a_claim_to_one_quantum() -> None:
    held, room = Held("a1", *(f"b{number}" for number in range(60))), Room(nowhere=("a1",))

    assert (len(held.release(room)), held.ledger.left(key_of("a"))) == (60, 100)


def test_room_is_kept_for_who_waits_elsewhere_until_that_is_in_vain() -> None:
    held, room = Held(*(f"a{number}" for number in range(40))), Room()
    held.ledger.receive("r2", 1, Shares(1, 100, [ShareRow(key_of("b"), 1, 0, 0, 5)]))

    assert len(held.release(room, 0.0)) == 10
    assert held.turns.gives_way("a")
    assert not held.turns.gives_way("c")
    assert held.release(room, YIELD_S / 2) == []
    # The sibling serves its tenant: the time begins anew.
    held.ledger.receive("r2", 1, Shares(1, 95, [ShareRow(key_of("b"), 1, 5, 0, 5)]))
    assert (held.release(room, YIELD_S), held.release(room, YIELD_S * 1.5)) == ([], [])
    assert len(held.release(room, YIELD_S * 2.1)) == 30


def test_the_time_others_are_given_begins_with_room() -> None:
    held = Held(*(f"a{number}" for number in range(20)))
    held.ledger.receive("r2", 1, Shares(1, 100, [ShareRow(key_of("b"), 1, 0, 0, 5)]))
    held.release(Room(10))

    assert (held.release(Room(0), 0.0), held.release(Room(), 2 * YIELD_S)) == ([], [])
    assert len(held.release(Room(), 4 * YIELD_S)) == 10


def test_a_tenant_with_a_hundred_requests_costs_few_looks() -> None:
    held, room = Held(*(f"a{number}" for number in range(100))), Room(1)

    held.release(room)

    assert len(room.looked) <= locality.REFRESHED + 2 * MAX_LOOKED


def test_the_bound_is_stated_for_one_replica_and_for_several() -> None:
    assert (largest_gap(100, 50), largest_gap(100, 50, unheard=0)) == (500, 750)
    assert largest_gap(100, 50, unheard=10, wrong=7) == 787
    assert largest_gap(100, 50, unheard=0, deaths=1, lost=20) == 1020
