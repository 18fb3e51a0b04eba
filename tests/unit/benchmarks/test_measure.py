import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

import msgspec
import pytest

from benchmarks.measure import (
    BenchOptions,
    Comparison,
    Sample,
    compare,
    cpu_ns,
    parse_options,
    report,
    resident_bytes,
    time_work,
)


def test_candidates_take_turns_and_the_first_round_does_not_count() -> None:
    order: list[str] = []

    def candidate(name: str) -> Sample:
        order.append(name)
        return {"us": float(len(order))}

    found = compare("t", {n: partial(candidate, n) for n in ("a", "b", "c")}, rounds=2)

    assert "".join(order) == "abcbcacab"
    assert found.baseline == "a"
    assert [len(rounds) for rounds in found.samples.values()] == [2, 2, 2]


def test_ratios_are_made_within_a_round() -> None:
    def slowing(factor: float) -> Iterator[float]:
        return (factor * 10.0**number for number in count())

    one, two = slowing(1.0), slowing(2.0)

    found = compare("t", {"a": lambda: {"us": next(one)}, "b": lambda: {"us": next(two)}}, 5)

    assert found.ratio("b", "us") == 2.0
    assert found.median("a", "us") == 1000.0


def test_figures_only_some_have_are_no_error() -> None:
    found = Comparison("t", "a", {"a": [{"x us": 0.0}], "b": [{"x us": 2.0, "y us": 3.0}]})

    assert found.figures() == ["x us", "y us"]
    assert found.median("a", "y us") is None
    assert found.ratio("b", "y us") is None
    assert found.ratio("b", "x us") is None
    assert found.spread("b", "x us") is None


def test_spread_is_the_interquartile_range_over_the_median() -> None:
    found = Comparison("t", "a", {"a": [{"us": float(value)} for value in (8, 9, 10, 11, 12)]})

    assert found.spread("a", "us") == pytest.approx(0.2)


def test_time_of_work_is_per_operation() -> None:
    found = time_work(lambda: sum(range(200_000)), operations=100)

    assert 0 < found["cpu us"] < 10_000
    assert found["wall us"] > 0


def test_processor_time_and_memory_of_a_process_are_read() -> None:
    before = cpu_ns(os.getpid())

    # The kernel counts at its ticks: how much work is seen is up to it.
    assert any(sum(range(300_000)) and cpu_ns(os.getpid()) > before for _ in range(1000))
    assert resident_bytes(os.getpid()) > 1_000_000
    assert cpu_ns(2**30) == 0


def test_options_have_fewer_rounds_in_quick_mode() -> None:
    quick = parse_options("d", ["--quick"])
    full = parse_options("d", ["--rounds", "5", "--json", "x.jsonl"])

    assert quick.rounds < parse_options("d", []).rounds
    assert (quick.size(100, 1), full.size(100, 1)) == (1, 100)
    assert (full.rounds, full.json) == (5, Path("x.jsonl"))


def test_a_table_is_printed_and_appended_as_json(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "out.jsonl"
    found = Comparison("finding", "a", {"a": [{"us": 2.0}], "b": [{"us": 3.0, "MB": 1.0}]})

    report(found, BenchOptions(json=path))
    report(found, BenchOptions())

    assert "x1.50" in capsys.readouterr().out
    rows = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    assert rows[2]["ratio"] == 1.5
    assert len(rows) == 4


def test_all_benchmarks_are_found_by_name() -> None:
    root = Path(__file__).parents[3]

    listed = subprocess.run(
        [sys.executable, "-m", "benchmarks", "--list"],
        cwd=root,
        capture_output=True,
        text=True,
        check=True,
    )
    unknown = subprocess.run(
        [sys.executable, "-m", "benchmarks", "nonsense"],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )

    names = sorted(
        p.stem.removeprefix("bench_") for p in (root / "benchmarks").glob("*/bench_*.py")
    )
    assert listed.stdout.split() == names
    assert unknown.returncode == 2
    assert "no benchmark nonsense" in unknown.stderr
