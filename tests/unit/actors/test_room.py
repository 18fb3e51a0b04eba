from kvmesh.actors.kernel import Log
from kvmesh.actors.room import CROWDED_S, Room
from kvmesh.core.members.membership import Membership


def test_who_is_there_stays_and_a_newcomer_is_refused() -> None:
    members = Membership()
    room = Room(members, 2, "workers", "make more buckets")
    for name in ("a", "b"):
        assert room.has_room_for(name)
        members.observe(name, 1, 0.0)

    refused = list(room.refuse("c", 0.0))

    assert not room.has_room_for("c")
    assert room.has_room_for("a")
    assert [line.fields["reason"] for line in refused if isinstance(line, Log)] == [
        "there are 2 workers already: make more buckets"
    ]
    assert room.refused == 1


def test_a_warning_says_so_for_a_minute() -> None:
    room = Room(Membership(), 0, "workers", "make more buckets")
    quiet = room.warnings(0.0)

    room.refuse("c", 1.0)

    assert quiet == ()
    assert room.warnings(2.0) == ("workers beyond 0 are refused: make more buckets",)
    assert room.warnings(2.0 + CROWDED_S) == ()
