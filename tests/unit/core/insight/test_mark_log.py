"""What changed lately: seen from look to look, once however many replicas saw it, and bounded."""

from kvmesh.core.insight.mark_log import (
    MOST_GONE,
    MOST_MARKS,
    Mark,
    MarkLog,
    SeenMember,
    merge_marks,
)


def told(log: MarkLog, since: float = 0.0) -> list[tuple[str, str, str]]:
    return [(one.kind, one.who, one.text) for one in log.rows(since)]


def test_what_is_there_at_first_is_no_change_and_who_comes_later_joined() -> None:
    log = MarkLog("chat")

    log.look([SeenMember("w0", 1)], 1.0)
    assert told(log) == []
    log.look([SeenMember("w0", 1), SeenMember("w1", 1, "0.2"), SeenMember("w2", 1)], 2.0)

    assert told(log) == [("restart", "w1", "joined, version 0.2"), ("restart", "w2", "joined")]
    assert log.rows(0.0)[0].bucket == "chat"
    assert told(log, 2.1) == []


def test_a_member_that_drains_at_the_first_look_is_noted() -> None:
    log = MarkLog("chat")
    log.look([SeenMember("w0", 1, draining=True), SeenMember("w1", 1)], 1.0)
    log.look([SeenMember("w0", 1, draining=True), SeenMember("w1", 1)], 2.0)
    assert told(log) == [("drain", "w0", "drains")]


def test_another_life_is_a_restart_and_another_version_a_deployment() -> None:
    log = MarkLog("chat")
    log.look([SeenMember("w0", 1, "0.1"), SeenMember("w1", 1, "")], 1.0)

    log.look([SeenMember("w0", 2, "0.1"), SeenMember("w1", 1, "0.1")], 2.0)
    log.look([SeenMember("w0", 3, "0.2"), SeenMember("w1", 1, "")], 3.0)

    assert told(log) == [
        ("restart", "w0", "restarted, version 0.1"),
        ("version", "w0", "version 0.1 to 0.2"),
    ]


def test_silence_an_answer_and_a_drain_are_noted_once() -> None:
    log = MarkLog("chat")
    up, down = SeenMember("w0", 1), SeenMember("w0", 1, up=False)
    log.look([up], 1.0)

    for now, one in enumerate((down, down, up, SeenMember("w0", 1, draining=True), up), 2):
        log.look([one], float(now))

    assert told(log) == [
        ("down", "w0", "does not answer"),
        ("restart", "w0", "answers again"),
        ("drain", "w0", "drains"),
        ("drain", "w0", "takes requests again"),
    ]


def test_who_left_is_known_again_and_said_once_to_be_gone() -> None:
    log = MarkLog("chat")
    log.look([SeenMember("w0", 1), SeenMember("w1", 1, up=False)], 1.0)

    log.look([], 2.0)
    log.look([], 3.0)
    log.look([SeenMember("w0", 1)], 4.0)

    assert told(log) == [("down", "w0", "left"), ("restart", "w0", "answers again")]


def test_a_flood_of_names_is_bounded() -> None:
    log = MarkLog("chat")
    for number in range(5 * MOST_GONE):
        log.look([SeenMember(f"w{number}", 1)], float(number))

    assert len(log.rows(0.0)) == MOST_MARKS
    assert log.rows(0.0)[-1].who == f"w{5 * MOST_GONE - 2}"
    assert len(log._known or {}) == MOST_GONE + 1


def test_what_several_replicas_saw_is_told_once() -> None:
    ours = [Mark(100.0, "restart", "w0", "restarted", "chat"), Mark(300.0, "down", "w0", "left")]
    theirs = [
        Mark(101.0, "restart", "w0", "joined", "chat"),
        Mark(101.0, "restart", "w0", "joined", "code"),
        Mark(150.0, "restart", "w0", "restarted", "chat"),
    ]

    merged = merge_marks([ours, theirs])

    assert [(one.at, one.bucket) for one in merged] == [
        (100.0, "chat"),
        (101.0, "code"),
        (150.0, "chat"),
        (300.0, ""),
    ]
    many = [Mark(100.0 * number, "policy", "r", "x") for number in range(2 * MOST_MARKS)]
    assert merge_marks([many]) == many[-MOST_MARKS:]
