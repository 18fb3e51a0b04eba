"""How much load a fleet bears, and how unevenly it carries it."""

from collections.abc import Callable, Sequence
from math import sqrt
from typing import Final

from kvmesh_lab.report.outcome import RequestOutcome

MAX_BACKLOG_SHARE: Final = 0.03
"""More requests than this still waiting when the last is sent: they come faster than they go."""

_DOUBLINGS: Final = 12


def backlog_share(outcomes: Sequence[RequestOutcome]) -> float:
    """Return the share of requests without a first token when the last one was sent.

    At a rate r above a capacity c it tends to (r - c) / r, below it to nothing.
    """
    last_ms = max(outcome.sent_ms for outcome in outcomes)
    waiting = [
        outcome
        for outcome in outcomes
        if outcome.ttft_ms is not None and outcome.sent_ms + outcome.ttft_ms > last_ms
    ]
    return len(waiting) / len(outcomes)


def largest_backlog(requests: int, engines: int) -> float:
    """Return the backlog share up to which a fleet keeps up: two waiting per engine are none."""
    return max(MAX_BACKLOG_SHARE, 2.0 * engines / requests)


def find_saturation(
    backlog_at: Callable[[float], float],
    start: float,
    max_backlog: float = MAX_BACKLOG_SHARE,
    tolerance: float = 0.02,
) -> float:
    """Return the largest speedup whose backlog share is at most `max_backlog`.

    Doubles or halves from `start`, then bisects until the bounds are within `tolerance`; some ten
    calls. A load that never saturates (closed loop) gives the largest speedup tried.
    """
    low = high = start
    if backlog_at(start) <= max_backlog:
        for _ in range(_DOUBLINGS):
            low, high = high, 2.0 * high
            if backlog_at(high) > max_backlog:
                break
        else:
            return high
    else:
        for _ in range(_DOUBLINGS):
            high, low = low, low / 2.0
            if backlog_at(low) <= max_backlog:
                break
    while high > low * (1.0 + tolerance):
        middle = sqrt(low * high)
        if backlog_at(middle) <= max_backlog:
            low = middle
        else:
            high = middle
    return low


def spread(values: Sequence[float]) -> float:
    """Return (largest - smallest) / mean; 0 for nothing at all."""
    total = sum(values)
    return (max(values) - min(values)) * len(values) / total if total else 0.0
