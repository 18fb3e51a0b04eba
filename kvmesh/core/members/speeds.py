"""How fast each worker prefills and decodes, learned from first tokens, chunks and answers."""

from typing import Final

import msgspec

from kvmesh._native import Speeds

PRIOR_MS_PER_TOKEN: Final = 0.05
"""Assumed before any first token: a mid-size model on one current GPU, ms per uncached token."""


class SpeedReport(msgspec.Struct, frozen=True):
    """What is believed of one worker and on how much evidence; what was never seen is 0. The
    compiled core makes them by position.

    `uncached_tokens` of a prompt and `output_tokens` of an answer are the fleet's means.
    """

    ms_per_uncached_token: float
    prefill_evidence_tokens: float
    ms_per_output_token: float
    residence_ms: float
    uncached_tokens: float
    output_tokens: float
    clipped_samples: int


def new_speeds() -> Speeds:
    """Return the speeds of a fleet of which nothing was seen."""
    return Speeds(SpeedReport, PRIOR_MS_PER_TOKEN)
