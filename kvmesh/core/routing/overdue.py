"""How long an answer may take before its worker is taken to hang."""

from typing import Final

import msgspec

from kvmesh.core.cost.expression import Expression
from kvmesh.core.cost.terms import NO_FLEET, Candidate
from kvmesh.core.cost.weights import NO_WEIGHTS

SLACK: Final = 5.0
"""An answer is overdue that takes so many times as long as predicted, and --hang-s more."""

UNKNOWN_OUTPUT_TOKENS: Final = 512
UNKNOWN_INTERVAL_MS: Final = 50.0
LONGER: Final = 4.0

PREDICTED_MS: Final = Expression("wait_ms + own_ms + lost_ms")
"""When a candidate will have prefilled this request."""


class Usual(msgspec.Struct, frozen=True):
    """What a worker's answers take: ms a token, and ms a request stays; 0 is unknown."""

    ms_per_output_token: float = 0.0
    residence_ms: float = 0.0


UNKNOWN: Final = Usual()


def patience_s(
    chosen: Candidate, hang_s: float, *, whole_tokens: int | None = None, usual: Usual = UNKNOWN
) -> float:
    """Return the seconds until the first byte of an answer is overdue at the `chosen` worker.

    A whole answer shows its first byte behind all its `whole_tokens` (0: unknown); None for a
    stream. Where no stream has shown the time of a token, an answer may take `LONGER` times as long
    as the usual one.
    """
    predicted_ms = PREDICTED_MS.function(chosen, NO_FLEET, NO_WEIGHTS)
    if whole_tokens is not None:
        predicted_ms += _decoding_ms(whole_tokens or UNKNOWN_OUTPUT_TOKENS, usual)
    return hang_s + SLACK * predicted_ms / 1000.0


def _decoding_ms(tokens: int, usual: Usual) -> float:
    if usual.ms_per_output_token:
        return tokens * usual.ms_per_output_token
    unknown_ms = tokens * UNKNOWN_INTERVAL_MS
    return min(unknown_ms, LONGER * usual.residence_ms) if usual.residence_ms else unknown_ms
