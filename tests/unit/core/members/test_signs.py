from kvmesh.core.members.signs import Signs, Turn


def asked() -> Signs:
    signs = Signs()
    signs.asked = True
    return signs


def test_a_member_lives_until_three_and_a_half_seconds_after_its_last_heartbeat() -> None:
    signs = Signs()
    signs.note_alive("a", 0.0)
    signs.note_alive("b", 1.0)

    assert signs.turns(3.4) == []
    assert signs.turns(3.5) == [("a", Turn.DEAD)]
    assert signs.turns(4.5) == [("a", Turn.DEAD), ("b", Turn.DEAD)]
    signs.drop("a")
    signs.drop("a")
    assert signs.turns(4.5) == [("b", Turn.DEAD)]
    assert signs.silence_s("b", 4.5) == 3.5


def test_a_lasting_member_needs_no_heartbeat() -> None:
    signs = asked()
    signs.note_alive("a", 0.0, lasting=True)
    signs.grant(1.0)

    assert signs.is_reachable("a", 1e9)
    assert signs.due(1e9) == []
    assert signs.turns(1e9) == []


def test_nobody_is_asked_unless_somebody_asks() -> None:
    signs = Signs()
    signs.note_alive("a", 0.0)

    assert signs.due(3.0) == []


def test_who_misses_two_heartbeats_is_asked_each_second() -> None:
    signs = asked()
    signs.note_alive("b", 0.0)
    signs.note_alive("a", 0.0)

    asked_at = {now: signs.due(now) for now in (2.0, 2.1, 2.2, 3.0, 3.1)}

    assert asked_at == {2.0: [], 2.1: ["a", "b"], 2.2: [], 3.0: [], 3.1: ["a", "b"]}


def test_who_answers_stays_marked_as_silent_until_it_is_heard() -> None:
    signs = asked()
    signs.note_alive("a", 0.0)
    assert signs.answered("a", 2.2)

    assert signs.turns(3.4) == []
    assert signs.turns(3.5) == [("a", Turn.SILENT)]
    assert signs.turns(3.6) == []
    assert signs.silent == {"a"}
    assert signs.answered("a", 5.6)
    assert signs.turns(9.0) == []
    assert signs.note_alive("a", 9.0)
    assert not signs.note_alive("a", 10.0)
    assert signs.silent == set()
    assert signs.turns(13.5) == [("a", Turn.DEAD)]


def test_a_silent_member_dies_three_and_a_half_seconds_after_its_last_answer() -> None:
    signs = asked()
    signs.note_alive("a", 0.0)
    signs.answered("a", 2.5)
    signs.turns(3.5)

    assert signs.turns(5.9) == []
    assert signs.turns(6.0) == [("a", Turn.DEAD)]
    signs.drop("a")
    assert signs.silent == set()


def test_the_second_refusal_in_a_row_ends_it_at_once() -> None:
    signs = asked()
    signs.note_alive("a", 0.0)
    assert signs.due(2.1) == ["a"]

    signs.refused("a", 2.1)

    assert signs.turns(2.2) == []
    assert signs.due(2.3) == []
    assert signs.due(2.4) == ["a"]
    signs.answered("a", 2.4)
    signs.refused("a", 2.5)
    assert signs.turns(2.5) == []
    signs.refused("a", 2.8)
    assert signs.turns(2.8) == [("a", Turn.DEAD)]


def test_answers_count_only_of_who_is_not_heard() -> None:
    signs = asked()
    signs.note_alive("a", 0.0)

    assert not signs.answered("a", 2.0)
    assert not signs.answered("stranger", 9.0)
    for _ in range(3):
        signs.refused("a", 2.0)
        signs.refused("stranger", 9.0)

    assert signs.turns(3.4) == []
    assert not signs.is_reachable("stranger", 0.0)


def test_a_heartbeat_forgets_refusals() -> None:
    signs = asked()
    signs.note_alive("a", 0.0)
    signs.refused("a", 2.2)
    signs.note_alive("a", 2.3)

    signs.refused("a", 4.5)

    assert signs.turns(4.5) == []


def test_who_is_back_by_an_answer_is_silent_and_asked_on() -> None:
    signs = asked()
    signs.back("a", 10.0)

    assert signs.silent == {"a"}
    assert signs.due(10.0) == ["a"]
    assert signs.turns(13.4) == []
    assert signs.turns(13.5) == [("a", Turn.DEAD)]


def test_a_grant_gives_everybody_time_to_be_heard() -> None:
    signs = asked()
    signs.note_alive("a", 0.0)

    signs.grant(10.0)

    assert signs.due(11.4) == []
    assert signs.turns(11.4) == []
    assert signs.due(11.5) == ["a"]
    assert signs.turns(11.5) == [("a", Turn.SILENT)]
    assert signs.turns(13.5) == [("a", Turn.DEAD)]


def test_an_excuse_marks_nobody_as_silent_but_lets_the_dead_go() -> None:
    signs = asked()
    signs.note_alive("a", 0.0)
    signs.note_alive("b", 0.0)
    signs.answered("a", 3.0)

    signs.excuse(3.4)

    assert signs.turns(3.5) == [("b", Turn.DEAD)]
    assert signs.silent == set()
    assert ("a", Turn.SILENT) in signs.turns(4.9)
