"""A run over time: the same outcomes, cut into windows."""

from bisect import bisect_right
from collections import Counter
from collections.abc import Mapping, Sequence

import msgspec

from kvmesh_lab.report.outcome import RequestOutcome, distribution


class TimeWindow(msgspec.Struct, frozen=True):
    """The requests sent from `start_s` on, until the next window. `workers` counts requests."""

    start_s: float
    requests: int
    hit_rate: float | None
    ttft_ms_p50: float | None
    ttft_ms_p90: float | None
    workers: Mapping[str, int]


def timeline(outcomes: Sequence[RequestOutcome], count: int = 40) -> tuple[TimeWindow, ...]:
    """Return `count` windows of equal length over the sending times; only successes count."""
    good = [outcome for outcome in outcomes if not outcome.error]
    if not good:
        return ()
    start = min(outcome.sent_ms for outcome in good)
    length = max((max(outcome.sent_ms for outcome in good) - start) / count, 0.001)
    edges = [start + length * number for number in range(count)]
    members: list[list[RequestOutcome]] = [[] for _ in edges]
    for outcome in good:
        members[bisect_right(edges, outcome.sent_ms) - 1].append(outcome)
    return tuple(_window(edge, inside) for edge, inside in zip(edges, members, strict=True))


def _window(start_ms: float, members: Sequence[RequestOutcome]) -> TimeWindow:
    ttft = distribution(o.ttft_ms for o in members if o.ttft_ms is not None)
    prompt = sum(outcome.prompt_tokens for outcome in members)
    cached = sum(outcome.cached_tokens for outcome in members)
    return TimeWindow(
        start_s=start_ms / 1000,
        requests=len(members),
        hit_rate=cached / prompt if prompt else None,
        ttft_ms_p50=None if ttft is None else ttft.p50,
        ttft_ms_p90=None if ttft is None else ttft.p90,
        workers=dict(Counter(outcome.worker for outcome in members)),
    )
