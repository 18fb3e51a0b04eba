"""How requests fare at each member of a fleet: who is left out and how long, what failing costs.

The rules are those of Envoy's outlier detection: a member is ejected after some failures in a row,
or when half of its recent attempts failed and the others' did not.
"""

from collections.abc import Sequence
from math import inf
from typing import Final, Literal

from kvmesh.core.members.health_record import (
    BAD_ANSWER,
    DECAY_EVERY_S,
    SUSPECT_S,
    TRICKLE_S,
    MemberRecord,
    Stage,
    Standing,
)
from kvmesh.core.members.noted_failures import NotedFailure, NotedFailures
from kvmesh.core.members.outcomes import Attempt, Verdict

Answer = Literal["ok", "slow", "unready", "down"]
"""What asking a member over HTTP showed: an answer, none in time, one of 5xx, nobody there."""

EJECT_STREAK: Final = 3
"""Failures in a row that eject."""

DEATH_STREAK: Final = 2
"""The same for failures that ended the connection."""

RATE_ATTEMPTS: Final = 6.0
RATE: Final = 0.5
BACKOFF_S: Final = 1.0
MAX_BACKOFF_S: Final = 30.0

FORGET_EJECTIONS_S: Final = 30.0
"""A member in for so long begins with the shortest back-off again."""

OUT_SHARE: Final = 3
"""One of so many members may be out for failed requests alone, and always one of several."""

PRIOR_ATTEMPTS: Final = 2.0
LEAST_PRICE: Final = 0.01

HUNG: Final = "hung"
"""The kind of failure of a member that takes a request and gives no answer."""

DEATHS: Final = frozenset({"reset", "truncated", "malformed", "timeout", HUNG, "cut"})
_WEIGHTS: Final = {"cut": 1.5, "502": 0.75, "503": 0.75, "504": 0.75}


class Health:
    """The outcomes of all members. Replicas that are told the same hold the same opinion.

    While `asks` somebody asks members that are `due` over HTTP and tells `answered`: then a suspect
    is out only until it answers, and an ejected one comes back by an answer and one request at a
    time. Else an ejected member gets that one request when its back-off is over.
    `out` are those that something speaks against: only of such ones `chosen` has to be told.
    `stale`: an answer that began, or a request sent, changed who is admitted since `admit`.
    `spared`: members let in although they failed, since too many did; `ejections` since the start.
    """

    def __init__(
        self, *, backoff_s: float = BACKOFF_S, max_backoff_s: float = MAX_BACKOFF_S
    ) -> None:
        self.asks = False
        self.stale = True
        self.spared = 0
        self.ejections = 0
        self._backoff_s = backoff_s
        self._max_backoff_s = max_backoff_s
        self._records: dict[str, MemberRecord] = {}
        self.out: set[str] = set()
        self._noted = NotedFailures()

    def note(self, member: str, attempt: Attempt, now: float, request_id: str = "") -> bool:
        """Take the outcome of an attempt; return whether it may change who is admitted.

        Failures are remembered by `request_id`, so that `forgive` can take them back.
        """
        record = self._records.get(member)
        if record is None:
            record = self._records[member] = MemberRecord(now)
        was = (record.stage, record.cooling_s, record.busy)
        if request_id == record.trial:
            record.busy = False
        match attempt.verdict:
            case Verdict.SERVED:
                record.succeed(now)
                if record.stage is not Stage.DOWN:
                    record.readmit(now)
            case Verdict.WORKER:
                failure, weight = NotedFailure(member, record, now), _WEIGHTS.get(attempt.kind, 1.0)
                record.fail(attempt.kind, weight, attempt.lost_s, now)
                self._judge(record, attempt.kind, now)
                self._noted.add(request_id, failure, weight)
            case Verdict.OVERLOAD:
                failure = NotedFailure(member, record, now)
                record.rest(attempt.retry_after_s, now)
                self._noted.add(request_id, failure, 0.0)
            case _:
                pass
        self._file(member, record, now)
        return was != (record.stage, record.cooling_s, record.busy)

    def served(self, member: str, now: float) -> bool:
        """Count an answer of a member that nothing speaks against; False: `note` it. 0.3 us."""
        record = self._records.get(member)
        if record is None or member in self.out or now - record.updated_s > DECAY_EVERY_S:
            return self._served_late(member, now)
        # What `succeed` does, without a call.
        record.attempts += 1.0
        record.streak = 0
        record.successes += 1
        record.served_s = now
        record.recent.append(False)
        return True

    def _served_late(self, member: str, now: float) -> bool:
        record = self._records.get(member)
        if record is None or member in self.out:
            return False
        record.succeed(now)
        return True

    def is_suspect(self, member: str) -> bool:
        """Return whether the member failed its last attempt: the next failure may be its own, too,
        rather than the request's.
        """
        record = self._records.get(member)
        return record is not None and record.streak > 0

    def forgive(self, request_id: str, now: float) -> list[str]:
        """Take back what was noted of members for this request; return those members."""
        forgiven = self._noted.pop(request_id)
        for failure in forgiven:
            if self._records.get(failure.member) is failure.record:
                failure.undo(now)
                self._file(failure.member, failure.record, now)
        return [failure.member for failure in forgiven]

    def began(self, member: str, now: float) -> bool:
        """Take that an answer begins there; return whether that lets the member in. One whose
        answers were bad has to give a whole one first.
        """
        record = self._records.get(member)
        if record is None:
            return False
        record.served_s = now
        if record.stage in (Stage.IN, Stage.DOWN) or record.kind.startswith(BAD_ANSWER):
            return False
        record.end_streak()
        record.readmit(now)
        self._file(member, record, now)
        self.stale = True
        return True

    def chosen(self, member: str, now: float, request_id: str = "") -> bool:
        """Note that a request goes there; return whether that changes who is admitted: one on trial
        gets no second one meanwhile.
        """
        record = self._records.get(member)
        if record is None or record.stage is not Stage.TRICKLE or record.busy:
            return False
        record.busy = True
        record.trial = request_id
        record.until_s = now + TRICKLE_S
        self.stale = True
        return True

    def forget(self, member: str) -> None:
        """Drop what is known of a member: it left, or was started anew."""
        self._records.pop(member, None)
        self.out.discard(member)

    def due(self, now: float) -> list[str]:
        """Return the members to ask over HTTP now, sorted; each is due again a second later."""
        due = sorted(name for name in self.out if self._records[name].is_due(now))
        for name in due:
            self._records[name].asked_s = now
        return due

    def answered(self, member: str, answer: Answer, now: float) -> bool:
        """Take what asking a member showed; return whether it changes who is admitted."""
        record = self._records.get(member)
        if record is None or record.stage in (Stage.IN, Stage.TRICKLE):
            return False
        was = record.stage
        match answer:
            case "down" | "unready":
                record.stage = Stage.DOWN
                record.changes += 1
            case "slow":
                record.stage = Stage.EJECTED
                record.until_s = max(record.until_s, now)
                record.changes += 1
            case "ok" if was is Stage.SUSPECT and record.streak <= 1:
                record.readmit(now)
            case "ok" if was is not Stage.EJECTED or record.until_s <= now:
                record.enter(Stage.TRICKLE, 0.0)
            case _:
                pass
        self._file(member, record, now)
        return was is not record.stage

    def admit(self, names: Sequence[str], now: float) -> tuple[list[str], float]:
        """Return those of `names` who may be given work, and until when that holds at the longest.

        Members that are not there are left out. Of the others a third may be out for what became
        of requests, and always one of several: beyond that, and for a member alone, those with the
        best prospects are let in, since to try is better than to reject.
        """
        self.stale = False
        if not self.out:
            self.spared = 0
            return list(names), inf
        present = [name for name in names if self.stage(name) is not Stage.DOWN]
        records, unasked_s = self._records, self._unasked_s()
        out = [one for one in present if one in self.out and records[one].is_out(now, unasked_s)]
        allowed = max(1, len(present) // OUT_SHARE) if len(present) > 1 else 0
        out.sort(key=self._prospects, reverse=True)
        self.spared = max(0, len(out) - allowed)
        left_out = frozenset(out[:allowed])
        until = min((records[name].changes_s(now, unasked_s) for name in self.out), default=inf)
        for name in self.out.difference(out).intersection(present):
            self._file(name, records[name], now)
        return [name for name in present if name not in left_out], until

    def is_left_out(self, member: str, now: float) -> bool:
        """Return whether something speaks against a member, though panic may let it in."""
        if member not in self.out:
            return False
        record = self._records[member]
        return record.stage is Stage.DOWN or record.is_out(now, self._unasked_s())

    def words(self, member: str, now: float) -> str:
        """Return what speaks against a member, for people."""
        record = self._records.get(member)
        return record.words(now) if record is not None else "in"

    def stage(self, member: str) -> Stage:
        """Return where a member stands; one never heard of is in."""
        record = self._records.get(member)
        return record.stage if record is not None else Stage.IN

    def standing(self, member: str, now: float) -> Standing:
        """Return where a member stands now, in a word."""
        record = self._records.get(member)
        return record.standing(now) if record is not None else "in"

    def reason(self, member: str) -> str:
        """Return why a member is left out, in words that stay the same for as long as it is."""
        record = self._records.get(member)
        return record.reason() if record is not None else ""

    def hangs(self, member: str) -> bool:
        """Return whether a member took its last request and gave no answer, and has answered none
        since; one that is not there any more hangs no longer.
        """
        record = self._records.get(member)
        if record is None or not record.streak:
            return False
        return record.kind == HUNG and record.stage is not Stage.DOWN

    def recent(self, member: str) -> tuple[int, int]:
        """Return how many of the member's last attempts failed, and of how many."""
        record = self._records.get(member)
        return (sum(record.recent), len(record.recent)) if record is not None else (0, 0)

    def served_s(self, member: str) -> float:
        """Return when an answer of the member last began or was complete; -inf before any."""
        record = self._records.get(member)
        return record.served_s if record is not None else -inf

    def retry_in_s(self, member: str, now: float) -> float:
        """Return how long a member stays ejected or at rest at least, 0 for any other."""
        record = self._records.get(member)
        if record is None or member not in self.out:
            return 0.0
        until_s = record.until_s if record.stage is Stage.EJECTED else 0.0
        return max(0.0, until_s - now, record.cooling_s - now)

    def price(self, member: str, now: float) -> tuple[float, float]:
        """Return the share of attempts there that fail beyond the others' share, and the ms lost
        in one; (0, 0) below `LEAST_PRICE`, and for one on trial, which would get no request else.
        O(members) for one that failed lately, else O(1).
        """
        record = self._records.get(member)
        if record is None or not record.failures or record.stage is Stage.TRICKLE:
            return 0.0, 0.0
        record.decay(now)
        others = self._others_rate(record, now)
        believed = record.failures + PRIOR_ATTEMPTS * others
        excess = believed / (record.attempts + PRIOR_ATTEMPTS) - others
        if excess < LEAST_PRICE:
            record.failures = 0.0 if record.failures < LEAST_PRICE else record.failures
            return 0.0, 0.0
        return min(1.0, excess), record.lost_ms

    def _judge(self, record: MemberRecord, kind: str, now: float) -> None:
        """Draw the consequence of a failure for a member that is in, or on trial."""
        if record.stage is Stage.TRICKLE:
            self._eject(record, now)
        elif record.stage is not Stage.IN:
            return
        elif kind == "refused" and self.asks:
            record.enter(Stage.DOWN, 0.0)
        elif kind in DEATHS and self.asks and record.streak < DEATH_STREAK:
            record.enter(Stage.SUSPECT, now)
        elif kind in DEATHS or kind == "refused" or self._fails_often(record, now):
            self._eject(record, now)

    def _fails_often(self, record: MemberRecord, now: float) -> bool:
        if record.streak >= EJECT_STREAK:
            return True
        if record.attempts < RATE_ATTEMPTS or record.failures < RATE * record.attempts:
            return False
        return record.failures > 2.0 * self._others_rate(record, now) * record.attempts

    def _eject(self, record: MemberRecord, now: float) -> None:
        if record.stage is Stage.IN and now - record.in_since_s > FORGET_EJECTIONS_S:
            record.ejections = 0
        backoff_s = self._backoff_s * 2.0 ** min(record.ejections, 30)
        record.enter(Stage.EJECTED, now + min(backoff_s, self._max_backoff_s))
        record.ejections += 1
        self.ejections += 1

    def _others_rate(self, record: MemberRecord, now: float) -> float:
        failures = attempts = 0.0
        for one in self._records.values():
            if one is not record:
                one.decay(now)
                failures += one.failures
                attempts += one.attempts
        return failures / (attempts + PRIOR_ATTEMPTS)

    def _file(self, member: str, record: MemberRecord, now: float) -> None:
        if record.stage is not Stage.IN or record.cooling_s > now:
            self.out.add(member)
        else:
            self.out.discard(member)

    def _unasked_s(self) -> float:
        """Return how long a member waits to be asked, at most."""
        return SUSPECT_S if self.asks else 0.0

    def _prospects(self, member: str) -> tuple[int, float]:
        """Return what is larger for those whom panic lets in last."""
        record = self._records[member]
        return record.stage.value, max(record.until_s, record.cooling_s)
