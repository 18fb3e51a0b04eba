"""What is remembered of how one member's requests fared."""

from collections import deque
from collections.abc import Mapping
from enum import Enum
from math import inf
from typing import Final, Literal

from kvmesh.core.members.answer_check import SICK_WORDS
from kvmesh.core.members.outcomes import DEFAULT_RETRY_AFTER_S, MOST_LOST_S, MOST_RETRY_AFTER_S

Standing = Literal["in", "overloaded", "trickle", "suspect", "ejected", "down"]
"""A stage in a word; "overloaded" is in but for the rest it asked for."""

STANDINGS: Final[tuple[Standing, ...]] = (
    "in", "overloaded", "trickle", "suspect", "ejected", "down",
)  # fmt: skip

HALF_LIFE_S: Final = 10.0
"""An outcome this old counts half."""

ASK_AGAIN_S: Final = 1.0

DECAY_EVERY_S: Final = 1.0
"""Successes are let age no more often than this: a power takes as long as all the rest."""

RECENT: Final = 20
"""Outcomes kept one by one, for people."""

SUSPECT_S: Final = 2.0
"""Where members are asked: a suspect, or one whose back-off is over, that nobody asked for so long
gets one request.
"""

TRICKLE_S: Final = 30.0
"""A request of a trickle that has shown nothing for so long is no reason to send no other."""

_LOST_WEIGHT: Final = 0.3

BAD_ANSWER: Final = "bad_answer"
"""What kinds of failures begin with that are answers of status 200: what is wrong with them is
behind a colon.
"""


class Stage(Enum):
    """Where a member stands. The order of the values is the order in which panic spares them.

    EJECTED: failed too often; out for its back-off, then it is asked. SUSPECT: a request ended in
    a way that may be the member's end; out until it is asked, for moments. TRICKLE: answered when
    asked; gets one request at a time until one is served. DOWN: was asked and is not there.
    """

    IN = 0
    TRICKLE = 1
    SUSPECT = 2
    EJECTED = 3
    DOWN = 4


_WORDS: Final[Mapping[Stage, Standing]] = {
    Stage.TRICKLE: "trickle",
    Stage.SUSPECT: "suspect",
    Stage.EJECTED: "ejected",
    Stage.DOWN: "down",
}


class MemberRecord:
    """One member's outcomes: decayed sums, the present streak, where it stands and since when.

    `until_s` ends the present stage at the latest, `cooling_s` the time an overloaded member asked
    for; `asked_s` is when it was last asked over HTTP.
    `busy` while a trickle's one request, `trial`, runs. `streak` counts failures since the last of
    `successes`; `changes` counts stages entered.
    """

    __slots__ = (
        "asked_s",
        "attempts",
        "busy",
        "changes",
        "cooling_s",
        "ejections",
        "failures",
        "in_since_s",
        "kind",
        "lost_ms",
        "recent",
        "served_s",
        "stage",
        "streak",
        "successes",
        "trial",
        "until_s",
        "updated_s",
    )

    def __init__(self, now: float) -> None:
        self.attempts = 0.0
        self.failures = 0.0
        self.updated_s = now
        self.lost_ms = 0.0
        self.streak = 0
        self.successes = 0
        self.changes = 0
        self.kind = ""
        self.recent: deque[bool] = deque(maxlen=RECENT)
        self.stage = Stage.IN
        self.until_s = 0.0
        self.cooling_s = -inf
        self.asked_s = -inf
        self.served_s = -inf
        self.in_since_s = now
        self.ejections = 0
        self.busy = False
        self.trial = ""

    @property
    def why(self) -> str:
        """Return how the last failure is shown to people."""
        kind, _, sickness = self.kind.partition(":")
        if kind != BAD_ANSWER:
            return self.kind
        words = SICK_WORDS.get(sickness, "that is none")
        return f"{self.kind}, it answers 200 {words}"

    def decay(self, now: float) -> None:
        """Let what is old count less; a clock that steps back changes nothing."""
        past_s = now - self.updated_s
        if past_s > 0.0:
            keep = 0.5 ** (past_s / HALF_LIFE_S)
            self.attempts *= keep
            self.failures *= keep
            self.updated_s = now

    def succeed(self, now: float) -> None:
        """Add an attempt that was served."""
        if now - self.updated_s > DECAY_EVERY_S:
            self.decay(now)
        self.attempts += 1.0
        self.streak = 0
        self.successes += 1
        self.served_s = now
        self.recent.append(False)

    def end_streak(self) -> None:
        """Take that requests fare well again: one was served, or its answer begins."""
        self.streak = 0
        self.successes += 1

    def fail(self, kind: str, weight: float, lost_s: float, now: float) -> None:
        """Add an attempt that failed."""
        self.decay(now)
        self.attempts += 1.0
        self.failures += weight
        self.streak += 1
        self.kind = kind
        self.recent.append(True)
        lost_ms = min(max(0.0, lost_s), MOST_LOST_S) * 1000.0
        self.lost_ms += _LOST_WEIGHT * (lost_ms - self.lost_ms) if self.lost_ms else lost_ms

    def rest(self, reported_s: float, now: float) -> None:
        """Leave the member alone for as long as it asks, within bounds; 0 is no wish."""
        rest_s = min(reported_s, MOST_RETRY_AFTER_S) if reported_s > 0.0 else DEFAULT_RETRY_AFTER_S
        self.cooling_s = max(self.cooling_s, now + rest_s)

    def take_back(self, weight: float, noted_s: float, successes: int) -> None:
        """Remove a failure of `noted_s` that was not the member's; its streak has ended if there
        were more `successes` since.
        """
        keep = 0.5 ** (max(0.0, self.updated_s - noted_s) / HALF_LIFE_S)
        self.attempts = max(0.0, self.attempts - keep)
        self.failures = max(0.0, self.failures - weight * keep)
        if successes == self.successes:
            self.streak = max(0, self.streak - 1)
        if True in self.recent:
            self.recent.remove(True)

    def enter(self, stage: Stage, until_s: float) -> None:
        """Begin a stage; whoever asks members shall ask this one at once."""
        self.stage = stage
        self.until_s = until_s
        self.changes += 1
        self.busy = False
        self.asked_s = -inf

    def readmit(self, now: float) -> None:
        """Let the member in; it still has the rest that it asked for."""
        if self.stage is not Stage.IN:
            self.enter(Stage.IN, 0.0)
            self.in_since_s = now

    def is_out(self, now: float, unasked_s: float = SUSPECT_S) -> bool:
        """Return whether what became of requests speaks against the member now.

        One that should have been asked for `unasked_s` gets one request instead.
        """
        if self.stage in (Stage.SUSPECT, Stage.EJECTED) and now >= self.until_s + unasked_s:
            self.enter(Stage.TRICKLE, 0.0)
        if self.cooling_s > now:
            return True
        if self.stage is Stage.TRICKLE:
            self.busy = self.busy and now < self.until_s
            return self.busy
        return self.stage is not Stage.IN

    def changes_s(self, now: float, unasked_s: float = SUSPECT_S) -> float:
        """Return when `is_out` may say something else, if nothing happens."""
        end_s = self.until_s if self.stage is Stage.TRICKLE else self.until_s + unasked_s
        if self.stage in (Stage.IN, Stage.DOWN):
            end_s = inf
        return min((one for one in (end_s, self.cooling_s) if one > now), default=inf)

    def is_due(self, now: float) -> bool:
        """Return whether the member should be asked over HTTP."""
        if now < self.asked_s + ASK_AGAIN_S:
            return False
        if self.stage is Stage.EJECTED:
            return self.until_s <= now
        return self.stage in (Stage.SUSPECT, Stage.DOWN)

    def standing(self, now: float) -> Standing:
        """Return where the member stands now, in a word."""
        if self.stage is not Stage.IN:
            return _WORDS[self.stage]
        return "overloaded" if self.cooling_s > now else "in"

    def reason(self) -> str:
        """Return why it is out in words that stay the same for as long as it is."""
        match self.stage:
            case Stage.DOWN:
                return "does not answer its health check"
            case Stage.SUSPECT:
                return f"suspect, its last request failed ({self.why})"
            case Stage.EJECTED | Stage.TRICKLE:
                return f"ejected, requests fail there ({self.why})"
            case _:
                return "overloaded, asked for rest"

    def words(self, now: float) -> str:
        """Return why it is out, for people."""
        share = f"{sum(self.recent)} of {len(self.recent)} failed"
        match self.stage:
            case Stage.DOWN:
                return f"does not answer its health check, {share}"
            case Stage.SUSPECT:
                return f"suspect, its last request failed ({self.why}), being asked"
            case Stage.EJECTED:
                left_s = max(0.0, self.until_s - now)
                return f"ejected, {share} ({self.why}), asked again in {left_s:.1f} s"
            case Stage.TRICKLE:
                return f"ejected, {share} ({self.why}), one request is on trial"
            case _:
                return f"overloaded, asked for {max(0.0, self.cooling_s - now):.1f} s of rest"
