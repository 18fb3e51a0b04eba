"""Requests per second of the recent past: what charts are drawn from."""

from collections.abc import Iterable, Mapping
from typing import Final

import msgspec

KEPT_S: Final = 600
"""Seconds that are remembered."""

GAMMA: Final = 1.05
"""Ratio of neighbouring bins of a sketch: quantiles are right to 2.5 %."""

Sketch = dict[int, int]
"""Durations counted in bins whose width grows with their size; sketches are added bin by bin."""


class TrafficSecond(msgspec.Struct):
    """One second. Tokens are prompt tokens of the requests that ended in it.

    `requests` were decided in it, `refused` found no worker, `failed` got no whole answer.
    `cached_tokens` are of `reported_tokens`, whose engines told their cache use;
    `predicted_tokens` of `foreseen_tokens`, routed by what caches hold; `round_robin_tokens` of
    `shadowed_tokens`; `prompt_tokens` are all. Each of these shares is of other requests; those
    whose name begins with `own_` are of the same ones, so that they compare: `own_requests` that
    the router's own policy routed by cache, of which all three are known. `overridden` finished
    whose clients named another policy, or a worker.
    `saved_tokens` of `answered_tokens`, those of all answers, were not computed since they were
    cached: `cached_tokens` by the engines' word, the others as predicted, where an engine says
    nothing. `saved_us` is how long computing them would have taken.
    `ttft` and `round_robin_ttft` are sketches of milliseconds.
    """

    second: int
    requests: int = 0
    refused: int = 0
    finished: int = 0
    failed: int = 0
    prompt_tokens: int = 0
    foreseen_tokens: int = 0
    predicted_tokens: int = 0
    reported_tokens: int = 0
    cached_tokens: int = 0
    shadowed_tokens: int = 0
    round_robin_tokens: int = 0
    overridden: int = 0
    own_requests: int = 0
    own_prompt_tokens: int = 0
    own_predicted_tokens: int = 0
    own_round_robin_tokens: int = 0
    own_reported_tokens: int = 0
    own_cached_tokens: int = 0
    answered_tokens: int = 0
    saved_tokens: int = 0
    saved_us: int = 0
    ttft: Sketch = {}
    round_robin_ttft: Sketch = {}


TrafficRow = tuple[
    int, int, int, int, int, int, int, int, int, int, int, int, int, int, int, int, int, int, int,
    int, int, int, Sketch, Sketch,
]  # fmt: skip
"""The fields of a `TrafficSecond`, in their order."""

_COUNTS: Final = tuple(
    name for name in TrafficSecond.__struct_fields__ if name != "second" and "ttft" not in name
)


def sketch_quantile(sketch: Mapping[int, int], share: float) -> float | None:
    """Return the duration in ms below which `share` (0..1) of those counted lie; None for none.

    Source: DDSketch, arXiv 1908.10693.
    """
    rank = share * (sum(sketch.values()) - 1)
    seen = 0
    for number in sorted(sketch):
        seen += sketch[number]
        if seen > rank:
            return float(2.0 * GAMMA**number / (1.0 + GAMMA))
    return None


def merge_seconds(parts: Iterable[TrafficSecond]) -> list[TrafficSecond]:
    """Return the sums of equal seconds, oldest first: several replicas' traffic as one."""
    merged: dict[int, TrafficSecond] = {}
    for part in parts:
        into = merged.setdefault(part.second, TrafficSecond(part.second))
        for name in _COUNTS:
            setattr(into, name, getattr(into, name) + getattr(part, name))
        for mine, other in (
            (into.ttft, part.ttft),
            (into.round_robin_ttft, part.round_robin_ttft),
        ):
            for number, count in other.items():
                mine[number] = mine.get(number, 0) + count
    return [merged[second] for second in sorted(merged)]


def sum_seconds(parts: Iterable[TrafficSecond]) -> TrafficSecond:
    """Return the sum of all seconds, as second 0."""
    merged = merge_seconds(msgspec.structs.replace(one, second=0) for one in parts)
    return merged[0] if merged else TrafficSecond(0)


def share_of(part: int, whole: int) -> float | None:
    """Return a share, 0..1; None where there is nothing to divide."""
    return part / whole if whole else None
