"""Reports as a replay would make them, for the tests of what shows them."""

from kvmesh_lab.report.outcome import RequestOutcome
from kvmesh_lab.report.statistics import ReplayReport, ReplayRun, Slo, summarize


def outcome(index: int, *, ttft_ms: float, cached: int, worker: str = "w0") -> RequestOutcome:
    return RequestOutcome(
        index=index,
        session="",
        sent_ms=50.0 * index,
        lag_ms=0.5,
        latency_ms=ttft_ms + 100,
        ttft_ms=ttft_ms,
        itl_ms=(10.0, 15.0),
        prompt_tokens=1000,
        cached_tokens=cached,
        output_tokens=3,
        worker=worker,
        router="r0",
        bucket="chat",
        overlap_blocks=cached // 16,
        status=200,
    )


def failure(index: int, error: str, detail: str) -> RequestOutcome:
    return RequestOutcome(
        index=index,
        session="s",
        sent_ms=50.0 * index,
        lag_ms=0,
        latency_ms=5,
        error=error,
        detail=detail,
    )


def run(name: str, *outcomes: RequestOutcome) -> ReplayRun:
    return ReplayRun(name=name, summary=summarize(outcomes, Slo()), outcomes=outcomes)


def report(*runs: ReplayRun) -> ReplayReport:
    return ReplayReport(
        trace="t.jsonl",
        facts={"endpoint": "http://127.0.0.1:8000 <model>"},
        infinite_hit_rate=0.6,
        slo=Slo(),
        runs=runs,
    )


def comparison() -> ReplayReport:
    slow = [outcome(i, ttft_ms=200 + i, cached=100, worker=f"w{i % 4}") for i in range(60)]
    fast = [outcome(i, ttft_ms=100 + i, cached=500, worker=f"w{i % 3}") for i in range(60)]
    return report(run("round-robin", *slow), run("kv", *fast, failure(60, "http 503", "busy")))
