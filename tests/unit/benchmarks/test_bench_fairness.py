import msgspec

from benchmarks.quality.bench_fairness import (
    LOADS,
    WAYS,
    Load,
    Run,
    measure,
    play,
    table_of,
    trace_of,
)
from kvmesh_lab.report.outcome import RequestOutcome


def ended(index: int, ms: float, prompt: int, cached: int, output: int) -> RequestOutcome:
    return RequestOutcome(
        index=index,
        session="",
        sent_ms=0.0,
        lag_ms=0.0,
        latency_ms=ms,
        ttft_ms=ms,
        prompt_tokens=prompt,
        cached_tokens=cached,
        output_tokens=output,
        status=200,
    )


def test_service_is_what_engines_computed_and_twice_what_they_generated() -> None:
    outcomes = [ended(1, 500.0, 100, 60, 10), ended(0, 100.0, 100, 0, 10), ended(2, 9e9, 1, 0, 1)]

    found = measure(outcomes, {0: "a", 1: "b", 2: "a"}, 0.0, 1.0)

    assert found.gap == 120
    assert found.requests_per_s == 2.0
    assert found.hit_rate == 0.3
    assert found.jain == 180**2 / (2 * (120**2 + 60**2))
    assert measure(outcomes, {0: "a", 1: "b", 2: "a"}, 0.3, 0.8).requests_per_s == 2.0


def test_a_load_has_its_tenants_documents_and_rate() -> None:
    load = Load("", tenants=2, prefixes=3, shared=1, requests_per_s=100.0, skew=1.0)

    trace = trace_of(load, 2.0, 1)

    documents = {(one.tenant, one.block_ids[0]) for one in trace}
    assert len(trace) == 200
    assert len(documents) == 6
    assert len({block for _, block in documents}) == 5
    assert trace == trace_of(load, 2.0, 1)
    assert sum(one.tenant == "tenant-0" for one in trace) > 100


def test_every_order_is_played_and_compared_with_sharing_by_tokens() -> None:
    load = msgspec.structs.replace(LOADS[0], prefix_blocks=4, requests_per_s=40.0)
    rows = [(1, way, [play(Run(load, way, 1, 1.0, 0.0, 1))]) for way in WAYS]

    table = table_of(load, rows)

    assert table.row_count == len(WAYS)
    assert all(one.requests_per_s > 0 for _, _, runs in rows for one in runs)
