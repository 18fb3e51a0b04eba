"""How long a prefill may take."""

from typing import Final

from kvmesh.core.cost.expression import Expression
from kvmesh.core.cost.terms import NO_FLEET, Candidate
from kvmesh.core.cost.weights import NO_WEIGHTS

SLACK: Final = 5.0
"""A prefill may take so many times as long as predicted."""

PREDICTED_MS: Final = Expression("wait_ms + own_ms + lost_ms")
"""When a candidate will have prefilled this request."""


def patience_s(chosen: Candidate) -> float:
    """Return how long a prefill may take at the `chosen` worker, its wait included."""
    return SLACK * PREDICTED_MS.function(chosen, NO_FLEET, NO_WEIGHTS) / 1000.0
