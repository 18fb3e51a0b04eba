import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from itertools import count
from pathlib import Path

from benchmarks.measure import (
    Sample,
    compare,
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
