from kvmesh.core.members.signs import Signs, Turn


def asked() -> Signs:
    signs = Signs()
    signs.asked = True
    return signs


def test_a_member_lives_until_three_and_a_half_seconds_after_its_last_heartbeat() -> None:
    signs = Signs()
    signs.note_alive("a", 0.0)
    signs.note_alive("b", 1.0)

    assert (signs.turns(3.4), signs.turns(3.5)) == ([], [("a", Turn.DEAD)])
    assert signs.turns(4.5) == [("a", Turn.DEAD), ("b", Turn.DEAD)]
    signs.drop("a")
    signs.drop("a")
    assert (signs.turns(4.5), signs.silence_s("b", 4.5)) == ([("b", Turn.DEAD)], 3.5)


def test_the_second_refusal_in_a_row_ends_it_at_once() -> None:
    signs = asked()
    signs.note_alive("a", 0.0)
    assert signs.due(2.1) == ["a"]

    signs.refused("a", 2.1)

    assert (signs.turns(2.2), signs.due(2.3), signs.due(2.4)) == ([], [], ["a"])
    signs.answered("a", 2.4)
    signs.refused("a", 2.5)
    assert signs.turns(2.5) == []
    signs.refused("a", 2.8)
    assert signs.turns(2.8) == [("a", Turn.DEAD)]


def test_who_is_back_by_an_answer_is_silent_and_asked_on() -> None:
    signs = asked()
    signs.back("a", 10.0)

    assert signs.silent == {"a"}
    assert (signs.due(10.0), signs.turns(13.4)) == (["a"], [])
    assert signs.turns(13.5) == [("a", Turn.DEAD)]


def test_nobody_is_asked_unless_somebody_asks() -> None:
    signs = Signs()
    signs.note_alive("a", 0.0)

    assert signs.due(3.0) == []
