"""What changed lately that a curve may bend for: restarts, versions, drains, policies, settings."""

from collections import deque
from collections.abc import Iterable
from typing import Final, Literal

import msgspec

from kvmesh.bounds import MAX_NAME

MarkKind = Literal["restart", "down", "version", "drain", "policy", "setting"]

MOST_MARKS: Final = 64
"""Marks that are known at once; the oldest goes first."""

MOST_GONE: Final = 64
"""Members more than are there that are known again when they come back."""

SAME_S: Final = 10.0
"""Replicas see one change at times that differ by less."""

MOST_WORDS: Final = 2 * MAX_NAME


class Mark(msgspec.Struct, frozen=True):
    """One change, `at` seconds of its log's clock, Unix seconds on a page. `who` is a worker, a
    replica, or the replica at which an operator changed something.
    """

    at: float
    kind: MarkKind
    who: str
    text: str
    bucket: str = ""


class SeenMember(msgspec.Struct, frozen=True):
    """A worker or a replica as it stands now. `life` differs after a restart, `version` is "" where
    it tells none; `up`: it answers.
    """

    who: str
    life: int
    version: str = ""
    up: bool = True
    draining: bool = False


class MarkLog:
    """Compares members from look to look. What is there at the first look is no change, but that
    it drains is noted: the order may have come a moment before.

    Bounded by `MOST_MARKS`, and `MOST_GONE` members that left; times are the caller's, seconds.
    """

    def __init__(self, bucket: str) -> None:
        self._bucket = bucket
        self._marks: deque[Mark] = deque(maxlen=MOST_MARKS)
        self._known: dict[str, SeenMember] | None = None

    def add(self, kind: MarkKind, who: str, text: str, now: float) -> None:
        """Note a change."""
        self._marks.append(Mark(now, kind, who, text[:MOST_WORDS], self._bucket))

    def rows(self, since: float) -> list[Mark]:
        """Return the changes since then, oldest first."""
        return [one for one in self._marks if one.at >= since]

    def look(self, members: Iterable[SeenMember], now: float) -> None:
        """Note what changed since the last look. O(members)."""
        there = {one.who: one for one in members}
        known, self._known = self._known, there
        if known is None:
            known = {
                who: msgspec.structs.replace(one, draining=False) for who, one in there.items()
            }
        for one in there.values():
            before = known.get(one.who)
            if before is None:
                self.add("restart", one.who, f"joined{_versioned(one.version)}", now)
            else:
                self._compare(before, one, now)
        gone = [one for one in known.values() if one.who not in there]
        for one in gone:
            if one.up:
                self.add("down", one.who, "left", now)
        kept = {one.who: msgspec.structs.replace(one, up=False) for one in gone[-MOST_GONE:]}
        self._known = kept | there

    def _compare(self, before: SeenMember, one: SeenMember, now: float) -> None:
        if one.version and before.version not in {"", one.version}:
            self.add("version", one.who, f"version {before.version} to {one.version}", now)
        elif one.life != before.life:
            self.add("restart", one.who, f"restarted{_versioned(one.version)}", now)
        elif one.up != before.up:
            word = "answers again" if one.up else "does not answer"
            self.add("restart" if one.up else "down", one.who, word, now)
        if one.draining != before.draining:
            word = "drains" if one.draining else "takes requests again"
            self.add("drain", one.who, word, now)


def _versioned(version: str) -> str:
    return f", version {version}" if version else ""


def merge_marks(parts: Iterable[Iterable[Mark]]) -> list[Mark]:
    """Return each change once, oldest first, the newest `MOST_MARKS`: what several replicas saw of
    one member within `SAME_S` is the same.
    """
    last: dict[tuple[str, str, str, str], float] = {}
    merged: list[Mark] = []
    for one in sorted((one for part in parts for one in part), key=lambda one: one.at):
        key = one.bucket, one.who, one.kind, "" if one.kind == "restart" else one.text
        before = last.get(key)
        last[key] = one.at
        if before is None or one.at - before > SAME_S:
            merged.append(one)
    return merged[-MOST_MARKS:]
