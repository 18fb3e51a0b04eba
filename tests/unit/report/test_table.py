import re
from io import StringIO

import msgspec
import pytest
from rich.console import Console

from kvmesh_lab.report.statistics import Metric, ReplayReport, Unit
from kvmesh_lab.report.table import find_warnings, format_value, print_report, verdict
from tests.unit.report.replay_reports import comparison, failure, outcome, report, run


def printed(found: ReplayReport, width: int = 140) -> str:
    buffer = StringIO()
    print_report(found, Console(file=buffer, width=width, color_system=None))
    return buffer.getvalue()


def test_two_runs_are_printed_side_by_side_with_ratios() -> None:
    text = printed(comparison())

    hit_rate = next(line for line in text.splitlines() if "hit rate" in line and "%" in line)
    assert "10.0%" in hit_rate
    assert "50.0%" in hit_rate
    assert "x5.00" in hit_rate
    assert "/ round-robin" in text
    assert "one infinite cache would hit" in text


@pytest.mark.parametrize("width", [80, 140])
def test_no_figure_of_many_runs_is_cut_however_narrow_the_terminal(width: int) -> None:
    names = ["round-robin", "kv", "kv:lmetric", "kv:predicted-time:contention=0.4:followers=0.5"]
    runs = [run(name, outcome(0, ttft_ms=123_456.7, cached=5)) for name in names]

    text = printed(report(*runs), width)

    assert "…" not in text
    assert len(re.findall(r"TTFT p99 .*123,456\.7 ms", text)) == (3 if width == 80 else 1)
    assert text.count("123,456.7 ms") >= 4


def test_every_worker_and_the_first_error_of_each_kind_are_printed() -> None:
    text = printed(comparison())

    assert all(f"w{number}" in text for number in range(4))
    assert "http 503" in text
    assert "busy" in text


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (None, "ms", "-"),
        (1234.56, "ms", "1,234.6 ms"),
        (1.234, "/s", "1.23/s"),
        (45.678, "%", "45.7%"),
        (7, "", "7"),
    ],
)
def test_values_have_three_digits_and_their_unit(
    value: float | None, unit: Unit, text: str
) -> None:
    assert format_value(Metric("m", unit, "lower", value)) == text


def test_lower_is_better_only_where_it_is() -> None:
    assert verdict(Metric("t", "ms", "lower", 10), Metric("t", "ms", "lower", 5)) == "better"
    assert verdict(Metric("t", "ms", "lower", 10), Metric("t", "ms", "lower", 20)) == "worse"
    assert verdict(Metric("h", "%", "higher", 10), Metric("h", "%", "higher", 20)) == "better"
    assert verdict(Metric("h", "%", "higher", 10), Metric("h", "%", "higher", 10.1)) == ""


def test_a_sender_that_was_late_is_called_out() -> None:
    late = msgspec.structs.replace(outcome(0, ttft_ms=1, cached=5), lag_ms=300.0)

    (warning,) = find_warnings(report(run("kv", late)))

    assert "300 ms late" in warning


def test_missing_usage_and_missing_cache_figures_are_called_out() -> None:
    uncached = find_warnings(report(run("kv", outcome(0, ttft_ms=1, cached=0))))
    nothing = find_warnings(report(run("kv", failure(0, "connect", "refused"))))

    assert "no cached token" in uncached[0]
    assert nothing == ["kv: no request succeeded"]
