"""The suite's results: a table for people, JSON for programs."""

from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvmesh.errors import ConfigError
from kvmesh.version import VERSION
from kvmesh_lab.conformance.case import Case, Result

STYLES: Final = {"pass": "green", "fail": "bold red", "warn": "yellow", "skip": "dim"}


class Report(msgspec.Struct, frozen=True):
    """A run: `counts` by verdict, then each case in order."""

    target: str
    version: str
    counts: dict[str, int]
    results: tuple[Result, ...]


def report_of(target: str, results: Sequence[Result]) -> Report:
    """Return the report of a run."""
    counted: Counter[str] = Counter(one.verdict for one in results)
    counts = {verdict: counted[verdict] for verdict in STYLES}
    return Report(target=target, version=VERSION, counts=counts, results=tuple(results))


def print_report(report: Report, console: Console) -> None:
    """Print a line each, then the rule of what is broken, then the counts."""
    table = Table(box=SIMPLE_HEAD)
    table.add_column("")
    table.add_column("case", no_wrap=True)
    table.add_column("what was tried: what was seen", overflow="fold")
    table.add_column("s", justify="right")
    for one in report.results:
        verdict = Text(one.verdict, style=STYLES[one.verdict])
        seen = f"{one.does}: {one.remark}" if one.remark else one.does
        table.add_row(verdict, one.name, Text(seen), f"{one.seconds:.2f}")
    console.print(table)
    for (rule, source), broken in broken_rules(report).items():
        console.print(Text(f"{', '.join(broken)}: {rule}\n    {source}"), soft_wrap=True)
    words = ", ".join(f"{count} {verdict}" for verdict, count in report.counts.items() if count)
    console.print(f"{report.target}: {words}", highlight=False)


def broken_rules(report: Report) -> dict[tuple[str, str], list[str]]:
    """Return the rules that do not hold, with where they stand and the cases that saw it."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in report.results:
        if one.verdict in {"fail", "warn"}:
            found.setdefault((one.rule, one.source), []).append(one.name)
    return found


def write_json(report: Report, path: Path) -> None:
    """Write the report. Raises `ConfigError` where that is not possible."""
    try:
        path.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=2) + b"\n")
    except OSError as error:
        raise ConfigError(f"--json {path}: {error.strerror}") from error


def case_rows(cases: Iterable[Case[Any]]) -> list[str]:
    """Return the cases as rows of a table in Markdown."""
    return [
        f"| `{case.name}` | {case.level} | {case.does} | [{case.rule.text}]({case.rule.source}) |"
        for case in cases
    ]
