"""What is wrong now, and since when."""

from collections.abc import Iterable
from heapq import nsmallest
from typing import Final, Literal

import msgspec

from kvmesh.bounds import MAX_NAME

Severity = Literal["critical", "warning"]

MOST_PROBLEMS: Final = 200
"""Problems that are known at once; beyond it the least severe are left out."""

RECURS_S: Final = 60.0
"""A problem that is back within this has lasted since it first came."""

MOST_WORDS: Final = 2 * MAX_NAME
"""Characters of `why`: part of it may be an engine's words."""


class Problem(msgspec.Struct, frozen=True):
    """One thing that is wrong. `who` is a worker, a replica or a bucket, `page` where the runbook
    says what to do: `runbook#anchor`.
    """

    kind: str
    severity: Severity
    who: str
    why: str
    page: str
    bucket: str = ""


class ProblemRow(msgspec.Struct, frozen=True):
    """A `Problem` as JSON. `since_s` is for how long it has been so, seconds."""

    kind: str
    severity: Severity
    who: str
    since_s: float
    why: str
    page: str
    bucket: str = ""


class _Known(msgspec.Struct):
    problem: Problem
    first_s: float
    last_s: float


Key = tuple[str, str, str, str]

WORDED: Final = "warning"
"""The kind whose problems are told apart by their words; else those may change from look to look.
"""


class ProblemLog:
    """Remembers when each problem began: one is the same for as long as bucket, `who` and kind are.

    Bounded by `most`; times are the caller's, seconds.
    """

    def __init__(self, most: int = MOST_PROBLEMS) -> None:
        self._most = most
        self._known: dict[Key, _Known] = {}
        self._checked_s = 0.0

    def check(self, problems: Iterable[Problem], now: float) -> None:
        """Take what is wrong now. O(problems)."""
        self._checked_s = now
        for problem in nsmallest(self._most, problems, key=_order):
            key = _key(problem)
            known = self._known.get(key)
            if known is None:
                self._known[key] = _Known(problem, now, now)
            else:
                known.problem, known.last_s = problem, now
        kept = {key: one for key, one in self._known.items() if now - one.last_s < RECURS_S}
        if len(kept) > 2 * self._most:
            newest = nsmallest(2 * self._most, kept.items(), key=lambda item: -item[1].last_s)
            kept = dict(newest)
        self._known = kept

    def rows(self, now: float) -> list[ProblemRow]:
        """Return what was wrong at the last look: critical first, then the oldest first."""
        there = [one for one in self._known.values() if one.last_s == self._checked_s]
        rows = [_row(one.problem, max(0.0, now - one.first_s)) for one in there]
        return sorted(rows, key=in_order)


def _key(one: Problem | ProblemRow) -> Key:
    return one.bucket, one.who, one.kind, one.why if one.kind == WORDED else ""


def _row(problem: Problem, since_s: float) -> ProblemRow:
    return ProblemRow(
        kind=problem.kind,
        severity=problem.severity,
        who=problem.who,
        since_s=round(since_s, 1),
        why=problem.why[:MOST_WORDS],
        page=problem.page,
        bucket=problem.bucket,
    )


def _order(one: Problem) -> tuple[bool, str, str, str]:
    return one.severity != "critical", one.bucket, one.who, one.kind


def in_order(row: ProblemRow) -> tuple[bool, float, str, str, str]:
    """Return what rows are sorted by: critical first, then the oldest, then by name."""
    return row.severity != "critical", -row.since_s, row.bucket, row.who, row.kind


def merge_problems(
    parts: Iterable[Iterable[ProblemRow]], most: int = MOST_PROBLEMS
) -> list[ProblemRow]:
    """Return each problem once: as long as who has seen it longest, as severe as the worst."""
    merged: dict[Key, ProblemRow] = {}
    for row in (row for rows in parts for row in rows):
        key = _key(row)
        other = merged.get(key)
        if other is None or in_order(row) < in_order(other):
            longest = row.since_s if other is None else max(row.since_s, other.since_s)
            merged[key] = msgspec.structs.replace(row, since_s=longest)
        elif row.since_s > other.since_s:
            merged[key] = msgspec.structs.replace(other, since_s=row.since_s)
    return nsmallest(most, merged.values(), key=in_order)
