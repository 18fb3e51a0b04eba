"""What was refused: counted, in the log when it is news, in the warnings while it goes on."""

from typing import Final

import msgspec
from structlog.typing import FilteringBoundLogger

from kvmesh.transport.nats.trust.claim import KINDS, Claim, Kind
from kvmesh.transport.nats.trust.judgement import REASONS, Message, Reason, Refusal

QUIET_S: Final = 10.0
"""Of one reason and kind there is at most one line in the log in this time."""

LAPSE_S: Final = 60.0
"""So long a refusal is news to `/ready` and to metrics."""

MOST_SKEWS: Final = 64
SUBJECT_SHOWN: Final = 120


class _Last(msgspec.Struct):
    logged_s: float
    at_s: float
    text: str


class Alarms:
    """Counts refusals by reason and kind; of wrong clocks also whose and by how much."""

    def __init__(self, log: FilteringBoundLogger) -> None:
        self._log = log
        self._counts: dict[tuple[str, str], int] = {(r, k): 0 for r in REASONS for k in KINDS}
        self._last: dict[tuple[Reason, Kind], _Last] = {}
        self._skews: dict[str, tuple[float, float]] = {}

    def note(self, message: Message, refusal: Refusal, now: float) -> None:
        """Count one that was refused, at `now` seconds."""
        kind, key = message.claim.kind, refusal.key or "none"
        which = (refusal.reason, kind)
        self._counts[which] += 1
        subject = message.subject[:SUBJECT_SHOWN]
        text = f"{kind} on {subject}, key {key}: {refusal.text}"
        is_new = refusal.skew_ms != 0 and self._is_new_skew(message, refusal, now)
        last = self._last.get(which)
        if last is None or now - last.logged_s > QUIET_S or is_new:
            last = self._last[which] = _Last(now, now, text)
            self._log.error(
                "signature refused",
                reason=refusal.reason,
                kind=kind,
                subject=subject,
                key=key,
                why=refusal.text,
                count=self._counts[which],
            )
        last.at_s, last.text = now, text

    def note_good(self, message: Message) -> None:
        """Take that a message was believed: the clock of whom it is of is right."""
        if self._skews:
            self._skews.pop(_whose(message.claim, ""), None)

    def counts(self) -> dict[tuple[str, str], int]:
        """Return how many were refused since the start, by reason and kind."""
        return dict(self._counts)

    def skews_s(self, now: float) -> dict[str, float]:
        """Return whose clocks are wrong now, and what they are ahead by."""
        self._expire(now)
        return {who: skew_s for who, (skew_s, _) in self._skews.items()}

    def warnings(self, now: float) -> tuple[str, ...]:
        """Return what was refused within a minute, one line for each reason, kind and clock."""
        self._expire(now)
        recent = sorted(one.text for one in self._last.values() if now - one.at_s <= LAPSE_S)
        clocks = tuple(
            f"the clock of {who} is {abs(skew_s):.0f} s {'ahead' if skew_s > 0 else 'behind'}: "
            "what it says is refused; set it (NTP)"
            for who, (skew_s, _) in sorted(self._skews.items())
        )
        return (*(f"signature refused: {text}" for text in recent), *clocks)

    def _is_new_skew(self, message: Message, refusal: Refusal, now: float) -> bool:
        self._expire(now)
        who = _whose(message.claim, refusal.key)
        known = who in self._skews
        if not known and len(self._skews) >= MOST_SKEWS:
            return False
        self._skews[who] = (refusal.skew_ms / 1000, now)
        return not known

    def _expire(self, now: float) -> None:
        for who in [who for who, (_, at_s) in self._skews.items() if now - at_s > LAPSE_S]:
            del self._skews[who]


def _whose(claim: Claim, key: str) -> str:
    return f"{claim.bucket}/{claim.member}" if claim.member else key
