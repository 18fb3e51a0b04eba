"""Since when things are wrong."""

import msgspec

from kvmesh.core.insight.problem_log import (
    MOST_WORDS,
    RECURS_S,
    Problem,
    ProblemLog,
    ProblemRow,
    Severity,
    merge_problems,
)


def wrong(who: str, kind: str = "hung", severity: Severity = "critical", why: str = "w") -> Problem:
    return Problem(kind, severity, who, why, "runbook#x", "chat")


def row(who: str, since_s: float, severity: Severity = "critical") -> ProblemRow:
    return ProblemRow("hung", severity, who, since_s, "w", "runbook#x", "chat")


def reported(log: ProblemLog, now: float) -> list[tuple[str, str, float]]:
    return [(one.who, one.why, one.since_s) for one in log.rows(now)]


def test_a_problem_is_as_old_as_its_first_look_whatever_its_words() -> None:
    log = ProblemLog()
    log.check([wrong("w0", why="3 of 3")], 10.0)
    log.check([wrong("w0", why="4 of 4")], 12.0)

    assert reported(log, 15.0) == [("w0", "4 of 4", 5.0)]
    assert log.rows(15.0)[0].page == "runbook#x"


def test_what_was_mended_is_not_told_and_lasts_on_if_it_soon_recurs() -> None:
    log = ProblemLog()
    log.check([wrong("w0")], 0.0)
    log.check([], 10.0)
    assert reported(log, 10.0) == []

    log.check([wrong("w0")], RECURS_S - 1)
    assert reported(log, RECURS_S) == [("w0", "w", RECURS_S)]

    log.check([], 2 * RECURS_S)
    log.check([wrong("w0")], 3 * RECURS_S)
    assert reported(log, 3 * RECURS_S) == [("w0", "w", 0.0)]


def test_warnings_are_told_apart_by_their_words_and_cut() -> None:
    log = ProblemLog()
    log.check([wrong("r0", "warning", "warning", why) for why in ("a", "b", "x" * 5000)], 0.0)

    assert [len(one.why) for one in log.rows(0.0)] == [1, 1, MOST_WORDS]


def test_critical_ones_come_first_then_the_oldest() -> None:
    log = ProblemLog()
    log.check([wrong("b", severity="warning")], 0.0)
    log.check([wrong("b", severity="warning"), wrong("d"), wrong("c")], 1.0)
    log.check([wrong("b", severity="warning"), wrong("d"), wrong("c"), wrong("a")], 2.0)

    assert [one.who for one in log.rows(2.0)] == ["c", "d", "a", "b"]


def test_the_log_is_bounded_and_keeps_the_critical() -> None:
    log = ProblemLog(most=3)
    for check in range(50):
        many = [wrong(f"w{check}-{number}", severity="warning") for number in range(10)]
        log.check([*many, wrong(f"c{check}")], float(check))

    assert [one.who for one in log.rows(49.0)] == ["c49", "w49-0", "w49-1"]
    assert len(msgspec.json.encode(log.rows(49.0))) < 1000


def test_replicas_problems_are_told_once_as_old_as_known_and_as_bad() -> None:
    parts = [
        [row("w0", 5.0, "warning"), row("w1", 1.0)],
        [row("w0", 2.0)],
        [row("w0", 9.0, "warning"), row("w0", 1.0, "warning")],
    ]

    assert merge_problems(parts) == [row("w0", 9.0), row("w1", 1.0)]
    assert (merge_problems(parts, most=1), merge_problems([])) == ([row("w0", 9.0)], [])
