"""A day of figures as JSON, of one replica or of several."""

from collections.abc import Iterable
from math import floor

import msgspec

from kvmesh.core.flows.history import (
    MOST_SPAN_S,
    Past,
    Series,
    fold,
    series_of,
    tier_for,
)

DEFAULT_SPAN_S = 3600


class HistoryView(msgspec.Struct, frozen=True):
    """Each of `series` has a value every `step_s` seconds, oldest first, from `start_s_ago` seconds
    ago (Unix time `start`) on; null where nobody counted, or nothing was to be measured.
    """

    step_s: float
    start_s_ago: float
    start: float
    series: Series


class Pasts(msgspec.Struct, frozen=True):
    """What each replica counted, as one process tells another."""

    pasts: list[Past]


def history_of(pasts: Iterable[Past], span_s: float, now: float) -> HistoryView:
    """Return the last `span_s` seconds before `now` (Unix time); a day at most."""
    span_s = min(max(1.0, span_s), MOST_SPAN_S)
    step_s = tier_for(span_s).step_s
    count = max(1, floor(span_s / step_s))
    start = (floor(now / step_s) - count + 1) * step_s
    series = series_of(fold(pasts, start, step_s, count))
    return HistoryView(step_s, round(now - start, 3), start, series)


def empty_history(span_s: float, now: float) -> HistoryView:
    """Return the grid without a series: for who may not see what all requests made."""
    whole = history_of((), span_s, now)
    return msgspec.structs.replace(whole, series={})
