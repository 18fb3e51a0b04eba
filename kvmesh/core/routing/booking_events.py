"""What becomes of a booking, as router replicas tell each other."""

from collections.abc import Iterable
from math import isfinite
from typing import Final

import msgspec

from kvmesh.core.members.outcomes import SERVED, Attempt, Verdict
from kvmesh.errors import CodecError

MAX_KIND: Final = 32
"""Characters kept of the word that says how an attempt failed."""

MOST_SECONDS: Final = 86_400.0

MOST_STATES: Final = 4
"""States that begin in one message: who tells one sends what waits before it. To fold one takes
O(bookings), to send one 8 bytes.
"""


class Prefilled(msgspec.Struct, frozen=True):
    """A request's first token came."""

    request_id: str


class Grew(msgspec.Struct, frozen=True):
    """A request has `output_tokens` in total."""

    request_id: str
    output_tokens: int


class Ended(msgspec.Struct, frozen=True):
    """A request is over at its worker; the other fields are those of `outcomes.Attempt`."""

    request_id: str
    verdict: int = Verdict.SERVED
    kind: str = ""
    lost_s: float = 0.0
    retry_after_s: float = 0.0

    def attempt(self) -> Attempt:
        """Return what the end showed, bounded: a figure that no clock shows counts as 0."""
        known = 0 <= self.verdict < len(Verdict)
        verdict = Verdict(self.verdict) if known else Verdict.UNKNOWN
        if verdict is Verdict.SERVED:
            return SERVED
        lost_s, retry_after_s = _seconds(self.lost_s), _seconds(self.retry_after_s)
        return Attempt(verdict, self.kind[:MAX_KIND], lost_s, retry_after_s)


class StateBegins(msgspec.Struct, frozen=True):
    """All the sender's bookings follow; what is not among them up to `StateEnds` is over."""


class StateEnds(msgspec.Struct, frozen=True):
    """The sender's state is complete."""


def check_states(events: Iterable[object]) -> None:
    """Raise `CodecError` where more states begin in one message than any replica tells in one."""
    states = sum(type(event) is StateBegins for event in events)
    if states > MOST_STATES:
        raise CodecError(f"bookings begin {states} states in one message, at most {MOST_STATES}")


def _seconds(reported: float) -> float:
    return min(max(0.0, reported), MOST_SECONDS) if isfinite(reported) else 0.0
