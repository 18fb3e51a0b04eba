from kvmesh.core.members.link_health import WARNING, LinkHealth
from kvmesh.core.members.membership import ChangeKind, Membership


def is_deaf(link_health: LinkHealth) -> bool:
    return link_health.deaf


def check(link_health: LinkHealth, begin_s: float, end_s: float) -> None:
    """Look as often as the registry does."""
    for quarter in range(int(begin_s * 4), int(end_s * 4) + 1):
        link_health.check(quarter / 4)


def gone(members: Membership, now: float) -> list[str]:
    return [one.member for one in members.expire(now) if one.kind is ChangeKind.LEFT]


def test_while_nothing_is_heard_nobody_is_given_up_whom_nobody_asks() -> None:
    workers, routers = Membership(), Membership()
    link_health = LinkHealth(workers, routers)
    for members in (workers, routers):
        members.observe("a", 1, 0.0)
    link_health.note_alive(0.0)
    check(link_health, 0.0, 1.5)
    assert not is_deaf(link_health)

    check(link_health, 1.75, 60.0)

    assert is_deaf(link_health)
    assert link_health.warnings() == (WARNING,)
    assert gone(workers, 60.0) == gone(routers, 60.0) == []
    link_health.note_alive(60.0)
    assert not is_deaf(link_health)
    assert gone(workers, 63.4) == gone(routers, 63.4) == []
    assert gone(workers, 63.5) == gone(routers, 63.5) == ["a"]


def test_while_nothing_is_heard_an_answer_decides_and_nobody_counts_as_silent() -> None:
    members = Membership()
    link_health = LinkHealth(members)
    link_health.set_asked()
    for name in ("a", "b"):
        members.observe(name, 1, 0.0)
    link_health.note_alive(0.0)
    check(link_health, 0.0, 2.0)

    members.answered_http("a", 2.2)
    check(link_health, 2.25, 5.0)

    assert is_deaf(link_health)
    assert (gone(members, 5.0), members.signs.silent) == (["b"], set())


def test_a_broken_connection_is_deaf_at_once_and_for_as_long_as_it_takes() -> None:
    members = Membership()
    link_health = LinkHealth(members)
    members.observe("a", 1, 0.0)
    link_health.note_alive(0.0)

    link_health.set_connected(up=False)
    link_health.check(0.1)

    assert is_deaf(link_health)
    link_health.check(1000.0)
    assert gone(members, 1000.0) == []
    link_health.set_connected(up=True)
    link_health.check(1000.25)
    assert not is_deaf(link_health)
    assert link_health.warnings() == ()


def test_a_live_connection_that_hears_only_some_does_not_give_up_the_others() -> None:
    workers, routers = Membership(), Membership()
    link_health = LinkHealth(workers, routers)
    link_health.set_asked()
    for name in ("w1", "w2", "w3"):
        workers.observe(name, 1, 0.0)
    routers.observe("r1", 1, 0.0)
    for second in range(60):
        link_health.note_alive(second)
        check(link_health, second, second + 0.75)
        workers.observe("w1", 1, second)
        for name in ("w2", "w3"):
            workers.answered_http(name, second)
        routers.answered_http("r1", second)
        assert gone(workers, second) == gone(routers, second) == []

    assert not is_deaf(link_health)
    said = "3 of 4 members are not heard over NATS but answer over HTTP"
    assert link_health.warnings() == (f"{said}: r1, w2, w3",)
    assert workers.usable(60.0) == ("w1", "w2", "w3")


def test_who_judges_late_gives_everybody_time_to_be_heard() -> None:
    members = Membership()
    link_health = LinkHealth(members)
    members.observe("a", 1, 0.0)
    link_health.note_alive(0.0)
    check(link_health, 0.0, 1.0)

    link_health.check(9.0)

    assert gone(members, 9.0) == []
    for second in (9, 10, 11, 12):
        link_health.note_alive(second)
        check(link_health, second + 0.25, second + 0.75)
    assert (gone(members, 12.4), gone(members, 12.5)) == ([], ["a"])


def test_it_is_settled_once_it_was_connected_for_as_long_as_anybody_is_silent() -> None:
    link_health = LinkHealth(Membership())
    assert link_health.settled
    found: list[tuple[float, bool]] = []

    def note(now: float) -> None:
        link_health.check(now)
        found.append((now, link_health.settled))

    link_health.begin(0.0)
    note(3.0)
    link_health.set_connected(up=False)  # a server that was frozen is found so now
    note(3.5)
    link_health.set_connected(up=True)
    note(6.75)
    note(7.0)
    link_health.set_connected(up=False)
    note(7.5)

    assert found == [(3.0, False), (3.5, False), (6.75, False), (7.0, True), (7.5, True)]
