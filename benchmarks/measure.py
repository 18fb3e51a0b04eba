"""How kvmesh measures: candidates take turns, ratios are made within a round, medians over rounds.

A shared machine changes speed from second to second. Two candidates measured one after the other
differ by that; measured in turns, a slow moment hits both, and their ratio stays.
"""

import argparse
import gc
import os
import platform
import subprocess
import sysconfig
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from statistics import median, quantiles
from typing import Final

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table

Sample = Mapping[str, float]
"""One candidate's figures of one round, by name with unit: {"cpu us": 1.2, "p99 ms": 3.0}."""

Candidate = Callable[[], Sample]
"""Does one round's work and returns its figures; builds what it needs before it starts a clock."""

QUICK_ROUNDS: Final = 3
FULL_ROUNDS: Final = 9
TABLE_WIDTH: Final = 160


class BenchOptions(msgspec.Struct, frozen=True):
    """What every benchmark can be told."""

    quick: bool = False
    rounds: int = FULL_ROUNDS
    json: Path | None = None

    def size(self, full: int, quick: int) -> int:
        """Return how much work to do."""
        return quick if self.quick else full


def parse_options(description: str, arguments: Sequence[str] | None = None) -> BenchOptions:
    """Read `--quick`, `--rounds N` and `--json FILE` from the command line."""
    parser = argparse.ArgumentParser(description=description)
    parser.add_argument("--quick", action="store_true", help="less work: seconds, not minutes")
    parser.add_argument("--rounds", type=int, help="rounds in which the candidates take turns")
    parser.add_argument("--json", type=Path, help="append one JSON line per table to this file")
    found = parser.parse_args(arguments)
    rounds = found.rounds or (QUICK_ROUNDS if found.quick else FULL_ROUNDS)
    return BenchOptions(quick=found.quick, rounds=rounds, json=found.json)


class Comparison(msgspec.Struct, frozen=True):
    """The samples of all candidates, round by round."""

    title: str
    baseline: str
    samples: Mapping[str, Sequence[Sample]]

    def figures(self) -> list[str]:
        """Return the names of all figures, in the order they were first seen."""
        found = (name for rounds in self.samples.values() for one in rounds for name in one)
        return list(dict.fromkeys(found))

    def median(self, candidate: str, figure: str) -> float | None:
        """Return the median over rounds; None when the candidate has no such figure."""
        values = self._values(candidate, figure)
        return median(values) if values else None

    def spread(self, candidate: str, figure: str) -> float | None:
        """Return the interquartile range over the median: how much to trust it."""
        values = self._values(candidate, figure)
        middle = median(values) if values else 0.0
        if len(values) < 2 or not middle:
            return None
        low, _, high = quantiles(values, n=4, method="inclusive")
        return (high - low) / middle

    def ratio(self, candidate: str, figure: str) -> float | None:
        """Return the median over rounds of candidate / baseline of the same round."""
        ratios = [
            own[figure] / other[figure]
            for own, other in zip(self.samples[candidate], self.samples[self.baseline], strict=True)
            if figure in own and other.get(figure)
        ]
        return median(ratios) if ratios else None

    def _values(self, candidate: str, figure: str) -> list[float]:
        return [one[figure] for one in self.samples[candidate] if figure in one]


def compare(
    title: str, candidates: Mapping[str, Candidate], rounds: int, warm_up: int = 1
) -> Comparison:
    """Let the candidates take turns for `rounds` rounds, after `warm_up` that do not count.

    The first named is the baseline of all ratios. Each round begins with another candidate, so
    that none always runs on a warm or a throttled processor.
    """
    names = list(candidates)
    samples: dict[str, list[Sample]] = {name: [] for name in names}
    for number in range(rounds + warm_up):
        start = number % len(names)
        for name in names[start:] + names[:start]:
            sample = candidates[name]()
            if number >= warm_up:
                samples[name].append(sample)
    return Comparison(title=title, baseline=names[0], samples=samples)


@contextmanager
def quiet_collector() -> Iterator[None]:
    """Collect garbage now and not again until the end, as far as the work allows."""
    gc.collect()
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()


def time_work(work: Callable[[], object], operations: int) -> dict[str, float]:
    """Return wall and processor time per operation, us, of `work`, which does `operations`."""
    with quiet_collector():
        wall, cpu = time.perf_counter_ns(), time.process_time_ns()
        work()
        cpu, wall = time.process_time_ns() - cpu, time.perf_counter_ns() - wall
    return {"wall us": wall / operations / 1000, "cpu us": cpu / operations / 1000}


def cpu_ns(pid: int) -> int:
    """Return the processor time of all live threads of a process so far, ns (Linux).

    From schedstat: exact, where the ticks of /proc/PID/stat are 10 ms each. 0 when it is gone.
    """
    total = 0
    for path in Path(f"/proc/{pid}/task").glob("*/schedstat"):
        try:
            total += int(path.read_text(encoding="ascii").split()[0])
        except (OSError, ValueError, IndexError):
            continue
    return total


def resident_bytes(pid: int) -> int:
    """Return the resident memory of a process, bytes (Linux)."""
    for line in Path(f"/proc/{pid}/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) * 1024
    return 0


def render_table(comparison: Comparison) -> Table:
    """Return one row per candidate: each figure's median, spread and ratio to the baseline."""
    table = Table(title=comparison.title, title_justify="left", box=SIMPLE_HEAD)
    table.add_column("", overflow="fold")
    for figure in comparison.figures():
        table.add_column(figure, justify="right")
        table.add_column("±", justify="right", style="dim")
        table.add_column("ratio", justify="right")
    for name in comparison.samples:
        cells: list[str] = []
        for figure in comparison.figures():
            cells += _cells(comparison, name, figure)
        table.add_row(name, *cells)
    return table


def _cells(comparison: Comparison, name: str, figure: str) -> tuple[str, str, str]:
    value, spread = comparison.median(name, figure), comparison.spread(name, figure)
    ratio = comparison.ratio(name, figure)
    return (
        "-" if value is None else f"{value:,.4g}",
        "" if spread is None else f"{spread:.0%}",
        "" if ratio is None else f"x{ratio:.2f}",
    )


def python_build() -> str:
    """Return the interpreter and how it was built: that moves a router by a tenth."""
    options = str(sysconfig.get_config_var("CONFIG_ARGS") or "")
    optimized = "with" if "--enable-optimizations" in options else "without"
    version = f"{platform.python_implementation()} {platform.python_version()}"
    return f"{version} ({platform.python_compiler()}), {optimized} --enable-optimizations"


def facts() -> dict[str, str | int | float]:
    """Return what figures depend on: when, of which commit, by which interpreter, where."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"],
        cwd=Path(__file__).parent,
        capture_output=True,
        text=True,
        check=False,
    ).stdout.strip()
    return {
        "date": datetime.now(UTC).date().isoformat(),
        "commit": commit or "unknown",
        "python": python_build(),
        "processors": os.cpu_count() or 0,
        "load": round(os.getloadavg()[0], 1),
    }


def report(comparison: Comparison, options: BenchOptions) -> None:
    """Print the table; with `--json` also append medians, spreads and ratios to the file."""
    console = Console(width=TABLE_WIDTH)
    console.print(render_table(comparison))
    if options.json is None:
        return
    rows = [
        {
            "title": comparison.title,
            "candidate": name,
            "figure": figure,
            "median": comparison.median(name, figure),
            "spread": comparison.spread(name, figure),
            "ratio": comparison.ratio(name, figure),
            "rounds": len(comparison.samples[name]),
        }
        for name in comparison.samples
        for figure in comparison.figures()
    ]
    with options.json.open("ab") as file:
        for row in rows:
            file.write(msgspec.json.encode(row) + b"\n")
