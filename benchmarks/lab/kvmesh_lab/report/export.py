"""A replay's report for machines: JSON and CSV."""

import csv
from pathlib import Path

import msgspec

from kvmesh_lab.report.outcome import RequestOutcome
from kvmesh_lab.report.statistics import ReplayReport, ReplayRun, RunSummary, Slo


class RequestRow(msgspec.Struct, frozen=True):
    """One request as exported. Times in ms; pauses are summed up, not listed."""

    run: str
    index: int
    session: str
    program: str
    bucket: str
    router: str
    worker: str
    sent_ms: float
    lag_ms: float
    held_ms: float
    ttft_ms: float | None
    itl_ms_mean: float | None
    itl_ms_max: float | None
    latency_ms: float
    prompt_tokens: int
    cached_tokens: int
    output_tokens: int
    overlap_blocks: int | None
    status: int
    error: str
    detail: str


class _Run(msgspec.Struct, frozen=True):
    name: str
    summary: RunSummary
    requests: list[RequestRow]


class _Document(msgspec.Struct, frozen=True):
    trace: str
    facts: dict[str, str]
    infinite_hit_rate: float
    slo: Slo
    runs: list[_Run]


def rows(run: ReplayRun) -> list[RequestRow]:
    """Return one row per request, in the order they ended."""
    return [_row(run.name, outcome) for outcome in run.outcomes]


def _row(run: str, outcome: RequestOutcome) -> RequestRow:
    mean = outcome.mean_itl_ms()
    return RequestRow(
        run=run,
        index=outcome.index,
        session=outcome.session,
        program=outcome.program,
        bucket=outcome.bucket,
        router=outcome.router,
        worker=outcome.worker,
        sent_ms=round(outcome.sent_ms, 3),
        lag_ms=round(outcome.lag_ms, 3),
        held_ms=round(outcome.held_ms, 3),
        ttft_ms=None if outcome.ttft_ms is None else round(outcome.ttft_ms, 3),
        itl_ms_mean=None if mean is None else round(mean, 3),
        itl_ms_max=round(max(outcome.itl_ms), 3) if outcome.itl_ms else None,
        latency_ms=round(outcome.latency_ms, 3),
        prompt_tokens=outcome.prompt_tokens,
        cached_tokens=outcome.cached_tokens,
        output_tokens=outcome.output_tokens,
        overlap_blocks=outcome.overlap_blocks,
        status=outcome.status,
        error=outcome.error,
        detail=outcome.detail,
    )


def write_json(report: ReplayReport, path: Path) -> None:
    """Write summaries and requests as one JSON document."""
    document = _Document(
        trace=report.trace,
        facts=dict(report.facts),
        infinite_hit_rate=report.infinite_hit_rate,
        slo=report.slo,
        runs=[_Run(run.name, run.summary, rows(run)) for run in report.runs],
    )
    path.write_bytes(msgspec.json.format(msgspec.json.encode(document), indent=1) + b"\n")


def write_csv(report: ReplayReport, path: Path) -> None:
    """Write one line per request of every run, with a header line; none is an empty field."""
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(RequestRow.__struct_fields__)
        for run in report.runs:
            writer.writerows(msgspec.structs.astuple(row) for row in rows(run))
