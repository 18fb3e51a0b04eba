"""What a replay measured: one outcome per request, and the statistics over them."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

import msgspec

from kvmesh_lab.report.outcome import Distribution, RequestOutcome, distribution
from kvmesh_lab.report.programs import ProgramFacts, ProgramSummary, summarize_programs

Unit = Literal["", "ms", "/s", "s", "%", "blocks", "tokens"]


class Share(msgspec.Struct, frozen=True):
    """One worker's (router's, bucket's) part of a run. Only successful requests count.

    `computed_tokens` are prompt tokens not found in its cache.
    """

    name: str
    requests: int
    request_share: float
    prompt_tokens: int
    computed_tokens: int
    output_tokens: int
    hit_rate: float


class Slo(msgspec.Struct, frozen=True):
    """A request is good when its TTFT and its time per output token are within these bounds."""

    ttft_ms: float = 2_000.0
    itl_ms: float = 100.0


class RunSummary(msgspec.Struct, frozen=True):
    """Statistics of one run; distributions are None when nothing was measured.

    Rates are per second of `duration_s`, first sending to last end. `hit_rate` is cached /
    prompt tokens as the engines counted them. `imbalance` is the busiest worker's computed
    prompt tokens over the mean worker's (1: even).
    """

    requests: int
    succeeded: int
    errors: Mapping[str, int]
    duration_s: float
    requests_per_s: float
    output_tokens_per_s: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    hit_rate: float
    goodput_share: float
    goodput_per_s: float
    imbalance: float
    ttft_ms: Distribution | None
    itl_ms: Distribution | None
    latency_ms: Distribution | None
    lag_ms: Distribution | None
    overlap_blocks: float | None
    workers: tuple[Share, ...]
    routers: tuple[Share, ...]
    buckets: tuple[Share, ...]
    programs: ProgramSummary | None = None


class ReplayRun(msgspec.Struct, frozen=True):
    """One pass over the slice, e.g. under one routing mode."""

    name: str
    summary: RunSummary
    outcomes: tuple[RequestOutcome, ...]


class ReplayReport(msgspec.Struct, frozen=True):
    """One or several runs over the same slice of a trace; `facts` says what was run, in words.

    `infinite_hit_rate` is what one cache shared by all that never evicts would have hit.
    """

    trace: str
    facts: Mapping[str, str]
    infinite_hit_rate: float
    slo: Slo
    runs: tuple[ReplayRun, ...]
    title: str = "kvmesh replay"


class Metric(msgspec.Struct, frozen=True):
    """One line of a comparison; `better` tells which direction is good, None for neither."""

    name: str
    unit: Unit
    better: Literal["lower", "higher"] | None
    value: float | None


def summarize(
    outcomes: Sequence[RequestOutcome],
    slo: Slo,
    known_workers: Iterable[str] = (),
    programs: ProgramFacts | None = None,
) -> RunSummary:
    """Return the statistics of one run. O(n log n) over all inter-token times.

    `known_workers`, e.g. those another run used, are listed even when they served nothing.
    `programs` is what the trace says of them.
    """
    good = [outcome for outcome in outcomes if not outcome.error]
    start = min((outcome.sent_ms for outcome in outcomes), default=0.0)
    end = max((outcome.sent_ms + outcome.latency_ms for outcome in outcomes), default=0.0)
    duration_s = max(end - start, 0.001) / 1000
    prompt = sum(outcome.prompt_tokens for outcome in good)
    cached = sum(outcome.cached_tokens for outcome in good)
    output = sum(outcome.output_tokens for outcome in good)
    within = sum(1 for outcome in good if meets(outcome, slo))
    overlaps = [o.overlap_blocks for o in good if o.overlap_blocks is not None]
    workers = shares(good, "worker", known_workers)
    return RunSummary(
        requests=len(outcomes),
        succeeded=len(good),
        errors=dict(Counter(o.error for o in outcomes if o.error).most_common()),
        duration_s=duration_s,
        requests_per_s=len(good) / duration_s,
        output_tokens_per_s=output / duration_s,
        prompt_tokens=prompt,
        cached_tokens=cached,
        output_tokens=output,
        hit_rate=_ratio(cached, prompt),
        goodput_share=_ratio(within, len(outcomes)),
        goodput_per_s=within / duration_s,
        imbalance=_imbalance(workers),
        ttft_ms=distribution(o.ttft_ms for o in good if o.ttft_ms is not None),
        itl_ms=distribution(pause for o in good for pause in o.itl_ms),
        latency_ms=distribution(o.latency_ms for o in good),
        lag_ms=distribution(o.lag_ms for o in outcomes),
        overlap_blocks=sum(overlaps) / len(overlaps) if overlaps else None,
        workers=workers,
        routers=shares(good, "router"),
        buckets=shares(good, "bucket"),
        programs=None if programs is None else summarize_programs(outcomes, programs),
    )


def meets(outcome: RequestOutcome, slo: Slo) -> bool:
    """Return whether the request succeeded within the bounds."""
    if outcome.error or outcome.ttft_ms is None or outcome.ttft_ms > slo.ttft_ms:
        return False
    return (outcome.mean_itl_ms() or 0.0) <= slo.itl_ms


def shares(
    outcomes: Sequence[RequestOutcome],
    by: Literal["worker", "router", "bucket"],
    known: Iterable[str] = (),
) -> tuple[Share, ...]:
    """Return who served how much, by name; `known` names are listed even with nothing."""
    groups: dict[str, list[RequestOutcome]] = {name: [] for name in known}
    for outcome in outcomes:
        groups.setdefault(getattr(outcome, by), []).append(outcome)
    found: list[Share] = []
    for name, members in sorted(groups.items()):
        prompt = sum(outcome.prompt_tokens for outcome in members)
        cached = sum(outcome.cached_tokens for outcome in members)
        share = Share(
            name=name,
            requests=len(members),
            request_share=_ratio(len(members), len(outcomes)),
            prompt_tokens=prompt,
            computed_tokens=prompt - cached,
            output_tokens=sum(outcome.output_tokens for outcome in members),
            hit_rate=_ratio(cached, prompt),
        )
        found.append(share)
    return tuple(found)


def _imbalance(workers: Sequence[Share]) -> float:
    computed = [worker.computed_tokens for worker in workers]
    return max(computed) * len(computed) / sum(computed) if any(computed) else 1.0


def _ratio(part: float, whole: float) -> float:
    return part / whole if whole else 0.0


def metrics(summary: RunSummary) -> tuple[Metric, ...]:
    """Return what is worth comparing between runs, the most telling first."""
    return (
        Metric("hit rate", "%", "higher", 100 * summary.hit_rate),
        *_times("TTFT", summary.ttft_ms, ("p50", "p90", "p99", "mean")),
        *_times("ITL", summary.itl_ms, ("p50", "p90", "p99")),
        *_times("latency", summary.latency_ms, ("p50", "p90")),
        Metric("requests", "/s", "higher", summary.requests_per_s),
        Metric("output tokens", "/s", "higher", summary.output_tokens_per_s),
        Metric("goodput", "/s", "higher", summary.goodput_per_s),
        Metric("within SLO", "%", "higher", 100 * summary.goodput_share),
        Metric("overlap at routing", "blocks", "higher", summary.overlap_blocks),
        Metric("imbalance", "", "lower", summary.imbalance),
        Metric("duration", "s", None, summary.duration_s),
        Metric("requests sent", "", None, summary.requests),
        Metric("failed", "", "lower", summary.requests - summary.succeeded),
        *_program_metrics(summary.programs),
    )


def _program_metrics(found: ProgramSummary | None) -> Iterable[Metric]:
    if found is None:
        return
    yield Metric("programs finished", "", "higher", found.finished)
    yield Metric("programs", "", None, found.programs)
    yield Metric("turns finished", "/s", "higher", found.turns_per_s)
    yield from _times("program time", found.completion_s, ("mean", "p50", "p90"), "s")
    yield from _times("time in requests", found.request_s, ("mean", "p50", "p90"), "s")
    yield Metric("wait of a turn mean", "s", "lower", found.wait_s_mean)
    yield Metric("wait of a turn max", "s", "lower", found.wait_s_max)
    yield Metric("prefill / infinite cache", "", "lower", found.prefill_ratio)
    yield Metric("avoidable prefill", "tokens", "lower", found.avoidable_tokens)
    yield Metric("fairness (Jain)", "", "higher", found.fairness)


def _times(
    name: str, found: Distribution | None, points: Sequence[str], unit: Unit = "ms"
) -> Iterable[Metric]:
    for point in points:
        value = None if found is None else getattr(found, point)
        yield Metric(f"{name} {point}", unit, "lower", value)
