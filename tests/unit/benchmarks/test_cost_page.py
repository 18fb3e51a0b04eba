import json

import pytest

from benchmarks.cost import page as page_module
from benchmarks.cost.page import ADDED, BYTES, DIRECT, TOKENS, Row, Run, page
from benchmarks.proxy.bench_proxy import ALONE, SHORT
from benchmarks.proxy.bench_wishes import TITLE
from benchmarks.proxy.peers import BASELINE


def line(title: str, candidate: str, figure: str, median: float, ratio: float) -> bytes:
    row = {"title": title, "candidate": candidate, "figure": figure, "median": median}
    return json.dumps({**row, "spread": 0.05, "ratio": ratio, "rounds": 5}).encode()


LINES = [
    json.dumps({"facts": {"date": "2026-11-22", "commit": "abc1234", "load": 0.1}}).encode(),
    line(SHORT, BASELINE, "cpu us", 50.0, 1.0),
    line(SHORT, BYTES, "cpu us", 100.0, 2.0),
    line(SHORT, BYTES, "cpu us", 40.0, 0.8),
    line(SHORT, TOKENS, "cpu us", 75.0, 1.5),
    line(ALONE, BASELINE, "p50 us", 300.0, 1.0),
    line(ALONE, BYTES, "p50 us", 500.0, 1.7),
    line(ALONE, DIRECT, "p50 us", 100.0, 0.3),
    line(f"{TITLE}400 B", "kvmesh, bytes: API keys", "cpu us", 150.0, 3.1),
    line("instructions a request", BYTES, "400 B kinstr", 704.3, 3.8),
    line("processor time a request, 400 B, 64 in flight", "400 B", "sibling us", 100.0, 1.0),
    line("requests a second, modelled, 400 B, 64 in flight", "1 processors", "balancer", 9e3, 1.0),
    line("Where the time of a request of 400 B goes", "kvmesh/core/cost", "cpu us", 9.0, 1.0),
    line("Where the time of a request of 400 B goes", "kvmesh/core/tiny", "cpu us", 0.1, 1.0),
]  # fmt: skip


def test_a_goal_that_is_met_is_bold_and_what_is_missing_is_a_dash() -> None:
    found = page(Run(LINES))

    short = next(row for row in found.splitlines() if row.startswith(f"| {SHORT}: cpu"))
    assert "| **0.80** | 1.50 | \N{EN DASH} |" in short
    assert f"- {SHORT}, kv, real tokenizer: 1.50, goal 1.1" in found
    assert f"- {SHORT}, kv, byte tokens" not in found
    assert "date 2026-11-22, commit abc1234" in found


def test_added_latency_is_what_is_above_no_proxy() -> None:
    run, row = Run(LINES), Row(ALONE, ADDED, {})

    assert run.ratio(row, BYTES) == pytest.approx(2.0)
    assert run.ratio(row, TOKENS) is None


def test_tables_are_there_for_what_was_measured_alone() -> None:
    whole, first = page(Run(LINES)), page(Run(LINES[:4]))

    for heading in (
        "## Requests as clients send them",
        "## Instructions",
        "## Where the time goes",
    ):
        assert heading in whole
        assert heading not in first
    assert "| 704 |" in whole
    assert "| 400 B | kvmesh, bytes: API keys | ≤ 1.1 | 3.10 | 150 | 5% |" in whole
    assert "kvmesh/core/tiny" not in whole


def test_without_a_file_it_says_how_to_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.argv", ["page"])

    with pytest.raises(SystemExit, match="usage"):
        page_module.main()
