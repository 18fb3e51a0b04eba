"""How long an answer may take before its worker is taken to hang."""

from typing import Final

from kvmesh.core.cost import Candidate

SLACK: Final = 5.0
"""An answer is overdue that takes so many times as long as predicted, and --hang-s more."""

UNKNOWN_OUTPUT_TOKENS: Final = 512
UNKNOWN_INTERVAL_MS: Final = 50.0


def patience_s(
    chosen: Candidate,
    hang_s: float,
    *,
    whole_tokens: int | None = None,
    ms_per_output_token: float = 0.0,
) -> float:
    """Return the seconds until the first byte of an answer is overdue at the `chosen` worker.

    A whole answer shows its first byte behind all its `whole_tokens` (0: unknown); None for a
    stream. `ms_per_output_token` 0 is unknown.
    """
    predicted_ms = chosen.wait_ms + chosen.own_ms
    if whole_tokens is not None:
        interval_ms = ms_per_output_token or UNKNOWN_INTERVAL_MS
        predicted_ms += (whole_tokens or UNKNOWN_OUTPUT_TOKENS) * interval_ms
    return hang_s + SLACK * predicted_ms / 1000.0
