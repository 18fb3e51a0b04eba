from kvmesh.core.hearing import WARNING, Hearing
from kvmesh.core.membership import Membership


def is_deaf(hearing: Hearing) -> bool:
    return hearing.deaf


def test_one_silent_member_among_others_is_given_up() -> None:
    members = Membership()
    hearing = Hearing(members)
    members.observe("w1", 1, 0.0)

    for now in (0.0, 1.0, 2.0, 3.0, 3.5):
        hearing.heard(now)
        hearing.look(now)

    assert not is_deaf(hearing)
    assert members.usable(3.5) == ()


def test_silence_of_all_pauses_every_membership_until_somebody_is_heard() -> None:
    workers, routers = Membership(), Membership()
    hearing = Hearing(workers, routers)
    for members in (workers, routers):
        members.observe("a", 1, 0.0)
    hearing.heard(0.0)
    hearing.look(1.5)
    assert not is_deaf(hearing)

    hearing.look(1.6)

    assert is_deaf(hearing)
    assert (workers.usable(4.0), routers.usable(4.0)) == (("a",), ("a",))
    hearing.heard(4.0)
    assert not is_deaf(hearing)
    assert (workers.usable(7.4), routers.usable(7.4)) == (("a",), ("a",))
    assert (workers.usable(7.5), routers.usable(7.5)) == ((), ())


def test_a_broken_connection_pauses_at_once_and_for_as_long_as_it_takes() -> None:
    members = Membership()
    hearing = Hearing(members)
    members.observe("a", 1, 0.0)
    hearing.heard(0.0)

    hearing.set_connected(up=False)
    hearing.look(0.1)

    assert is_deaf(hearing)
    assert hearing.warnings() == (WARNING,)
    hearing.look(1000.0)
    assert members.usable(1000.0) == ("a",)
    hearing.set_connected(up=True)
    hearing.look(1000.25)
    assert not is_deaf(hearing)
    assert hearing.warnings() == ()
    assert members.usable(1003.7) == ("a",)


def test_a_connection_that_lives_ends_the_doubt_after_five_seconds() -> None:
    members = Membership()
    hearing = Hearing(members)
    members.observe("a", 1, 0.0)
    hearing.heard(0.0)
    hearing.look(4.9)
    assert is_deaf(hearing)

    hearing.look(5.0)

    assert not is_deaf(hearing)
    assert members.usable(8.4) == ("a",)
    assert members.usable(8.5) == ()


def test_silence_counts_from_the_return_of_the_connection() -> None:
    hearing = Hearing(Membership())
    hearing.heard(0.0)
    hearing.set_connected(up=False)
    hearing.look(60.0)
    hearing.set_connected(up=True)

    hearing.look(61.0)
    assert not is_deaf(hearing)
    hearing.look(61.6)

    assert is_deaf(hearing)


def test_before_anybody_was_heard_nothing_is_paused() -> None:
    hearing = Hearing(Membership())

    hearing.look(100.0)

    assert not is_deaf(hearing)
