import msgspec

from kvmesh.core.members.membership import ChangeKind, Membership
from kvmesh.core.members.silent_members import LOST_S, SilentMembers


class Beat(msgspec.Struct, frozen=True):
    url: str
    leaving: bool = False


class World:
    def __init__(self) -> None:
        self.members = Membership()
        self.members.signs.asked = True
        self.beats: dict[str, Beat] = {}
        self.silent = SilentMembers(self.members, self.beats.get)

    def beat(self, name: str, now: float, url: str = "", *, draining: bool = False) -> None:
        self.members.observe(name, 1, now, draining=draining)
        self.beats[name] = Beat(url or f"http://{name}", draining)
        self.silent.note_alive(name)

    def expire(self, now: float) -> list[str]:
        gone: list[str] = []
        for change in self.members.expire(now):
            if change.kind is ChangeKind.LEFT:
                gone.append(change.member)
                self.silent.lose(change.member, self.beats.pop(change.member), now)
        return gone

    def asked(self, now: float) -> list[str]:
        return [name for name, _ in self.silent.due(now)]


def test_the_silent_are_asked_where_their_heartbeats_said_they_are() -> None:
    world = World()
    world.beat("a", 0.0)
    world.beat("b", 2.0)

    assert (world.silent.due(2.0), world.silent.due(2.1)) == ([], [("a", Beat("http://a"))])
    assert world.silent.answered("a", "ok", 2.2) is None
    assert world.expire(3.6) == []


def test_who_refuses_twice_is_given_up_and_who_is_slow_only_when_its_time_is_over() -> None:
    world = World()
    world.beat("a", 0.0)
    world.beat("b", 0.0)
    assert world.asked(2.1) == ["a", "b"]

    world.silent.answered("a", "down", 2.1)
    world.silent.answered("a", "unready", 2.4)
    for now in (2.1, 2.4):
        world.silent.answered("b", "slow", now)

    assert (world.expire(2.4), world.expire(3.5)) == (["a"], ["b"])


def test_who_was_given_up_is_asked_for_a_minute_whether_it_is_back() -> None:
    world = World()
    world.beat("a", 0.0)
    assert world.expire(4.0) == ["a"]

    assert (world.asked(4.9), world.asked(5.0), world.asked(5.1)) == ([], ["a"], [])
    assert world.silent.answered("a", "down", 5.2) is None
    assert (world.asked(63.9), world.asked(64.9)) == (["a"], [])


def test_who_is_back_is_told_with_its_last_heartbeat_once() -> None:
    world = World()
    world.beat("a", 0.0)
    world.expire(4.0)

    assert world.silent.answered("a", "slow", 5.0) is None
    assert world.silent.answered("a", "ok", 6.0) == Beat("http://a")
    assert world.silent.answered("a", "ok", 6.0) is None


def test_nobody_who_was_to_leave_is_asked_about_a_return() -> None:
    world = World()
    world.beat("a", 0.0, draining=True)

    assert (world.asked(3.0), world.expire(4.0), world.asked(6.0)) == ([], ["a"], [])


def test_who_was_given_up_is_named_until_it_is_back_or_a_minute_is_over() -> None:
    world = World()
    world.beat("a", 0.0)
    world.beat("b", 0.0)
    assert world.silent.lost(0.0) == []

    world.expire(3.5)

    assert world.silent.lost(3.5) == ["a", "b"]
    world.beat("a", 5.0)
    assert (world.silent.lost(5.0), world.silent.lost(3.5 + LOST_S)) == (["b"], [])
