"""docs/measured/mission.md: every promise, what keeps it and what shows it; made from rows.toml.

`python -m tests.integration.mission.page` writes the page; with `--run` it first runs all that is
shown, prints what failed or was skipped, and notes date, commit and count on the page.
"""

import argparse
import datetime as dt
import re
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from xml.etree import ElementTree as ET

import msgspec

ROOT = Path(__file__).parents[3]
ROWS = Path(__file__).with_name("rows.toml")
PAGE = ROOT / "docs/measured/mission.md"
LAST = re.compile(r"^Last run: .*$", re.MULTILINE)
NEVER = "Last run: never; `make mission` runs it."
KEPT, FAILED, SKIPPED = "kept", "failed", "skipped"


class Row(msgspec.Struct, frozen=True):
    """A promise. `shown`: tests as `path::name` below tests/, or commands."""

    source: str
    promise: str
    here: str
    shown: tuple[str, ...]

    @property
    def tests(self) -> tuple[str, ...]:
        """Return the tests, as pytest takes them from the repository."""
        return tuple(f"tests/{one}" for one in self.shown if "::" in one)

    @property
    def commands(self) -> tuple[str, ...]:
        """Return the commands, as a shell takes them."""
        return tuple(one for one in self.shown if "::" not in one)


class Mission(msgspec.Struct, frozen=True):
    """All promises, and the full names of their sources."""

    sources: dict[str, str]
    row: tuple[Row, ...]


def say(line: str) -> None:
    """Print a line at once, in order with what commands print."""
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def read() -> Mission:
    """Return what rows.toml says. Raises `msgspec.ValidationError` for another shape."""
    return msgspec.convert(tomllib.loads(ROWS.read_text()), Mission)


def render(mission: Mission, last: str) -> str:
    """Return the whole page; `last` is its line about the last run."""
    lines = [
        "# What was promised, and what shows that it is kept",
        "Made by `python -m tests.integration.mission.page` from",
        "`tests/integration/mission/rows.toml`; `make mission` runs every test and command named",
        "here and says which promise is not kept.",
        "",
        last,
        "",
    ]
    number = 0
    for source, title in mission.sources.items():
        rows = [row for row in mission.row if row.source == source]
        lines += [f"## {title[0].upper()}{title[1:]} ({len(rows)})", ""]
        lines += ["| # | promise | here | shown by |", "|---|---|---|---|"]
        for row in rows:
            number += 1
            shown = ", ".join(f"`{_short(one)}`" for one in row.shown)
            cells = (str(number), row.promise, row.here, shown)
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)


def _short(shown: str) -> str:
    return f"tests/{shown}" if "::" in shown else shown


def last_run(page: str) -> str:
    """Return the page's line about its last run."""
    found = LAST.search(page)
    return found[0] if found else NEVER


def outcomes(report: ET.Element) -> dict[str, str]:
    """Return what became of each test of a JUnit report, by `path::name`.

    A test of several cases is kept when one passed and none failed: cases may be skipped where
    this machine cannot run them.
    """
    found: dict[str, set[str]] = {}
    for case in report.iter("testcase"):
        path = case.attrib["classname"].replace(".", "/") + ".py"
        name = case.attrib["name"].partition("[")[0]
        bad = case.find("failure") is not None or case.find("error") is not None
        outcome = FAILED if bad else SKIPPED if case.find("skipped") is not None else KEPT
        found.setdefault(f"{path}::{name}", set()).add(outcome)
    ranks = (FAILED, KEPT, SKIPPED)
    return {test: next(one for one in ranks if one in seen) for test, seen in found.items()}


def run_tests(tests: Sequence[str]) -> dict[str, str]:
    """Return what became of each test, run by one pytest."""
    with TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "--dist", "loadfile"]
        command += ["-m", "chaos or not chaos"]  # those that take minutes, too
        subprocess.run([*command, f"--junit-xml={report}", *tests], cwd=ROOT, check=False)
        # The report is this process's own.
        return outcomes(ET.parse(report).getroot())  # noqa: S314


def run_command(command: str) -> str:
    """Return what became of a command, run from the repository with this Python's kvmesh."""
    say(f"$ {command}")
    words = shlex.split(command)
    if words[0] == "kvmesh":
        words = [sys.executable, "-m", *words]
    elif words[0] == "python":
        words[0] = sys.executable
    return KEPT if subprocess.run(words, cwd=ROOT, check=False).returncode == 0 else FAILED


def judge(rows: Sequence[Row], found: Mapping[str, str]) -> list[tuple[int, Row, list[str]]]:
    """Return the rows that are not kept, with their numbers and what was not shown."""
    missed = []
    for number, row in enumerate(rows, 1):
        wrong = [
            f"{one}: {found.get(one, 'not found')}"
            for one in (*row.tests, *row.commands)
            if found.get(one) != KEPT
        ]
        if wrong:
            missed.append((number, row, wrong))
    return missed


def run(mission: Mission) -> tuple[str, int]:
    """Return the line about this run, and how many promises were not kept."""
    found = run_tests(sorted({test for row in mission.row for test in row.tests}))
    for command in dict.fromkeys(one for row in mission.row for one in row.commands):
        found[command] = run_command(command)
    missed = judge(mission.row, found)
    for number, row, wrong in missed:
        say(f"row {number} not kept: {row.promise}")
        for one in wrong:
            say(f"    {one}")
    git = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(git, cwd=ROOT, check=False, capture_output=True, text=True)
    kept = len(mission.row) - len(missed)
    today = dt.datetime.now(tz=dt.UTC).date()
    line = f"Last run: {today}, {commit.stdout.strip() or 'no commit'}: {kept} of"
    return f"{line} {len(mission.row)} kept.", len(missed)


def main() -> int:
    """Write the page; return how many promises a run found not kept."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--run", action="store_true", help="run every test and command first")
    mission = read()
    last, missed = last_run(PAGE.read_text() if PAGE.exists() else ""), 0
    if parser.parse_args().run:
        last, missed = run(mission)
        say(last)
    PAGE.write_text(render(mission, last))
    return missed


if __name__ == "__main__":
    sys.exit(min(1, main()))
