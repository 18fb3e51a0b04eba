"""What a run of the demonstrations found: as tables for people, as JSON, as an exit code."""

import sys

import msgspec
from rich.box import SIMPLE_HEAD
from rich.console import Console
from rich.table import Table
from rich.text import Text

from kvmesh_lab.demo.promises import Cell, Row, Scene, judge, missed
from kvmesh_lab.demo.texts import Demonstration, LoadName

STYLES = {
    "kept": "green",
    "above": "green",
    "missed": "bold red",
    "baseline": "dim",
    "not applicable": "dim",
}
MARKS = {"kept": "kept", "above": "above", "missed": "MISSED", "baseline": "", "not applicable": ""}

DEFINITIONS = """\
hit rate: cached tokens of prompt tokens, as engines report them; multi-turn: of follow-ups only.
one cache: what a single cache shared by all workers, that never evicts, would hit.
TTFT: mean over the requests of whose prompt half or more was sent before, against round robin's.
throughput: output tokens a second while all clients are under way, against round robin's.
utilisation: the share of time in which a worker has a request, most less least, in points; and
prompt and output tokens it served, most less least over the most. Both must be within 20 %.
above: better than the range that is promised. Round robin and random go over all workers."""


class Part(msgspec.Struct, frozen=True):
    """One demonstration at one load: what was measured and how it compares with the promises.

    `errors` has the first failure of each policy's pass.
    """

    demonstration: Demonstration
    load: LoadName
    scene: Scene
    rows: list[Row]
    errors: list[str]

    @classmethod
    def of(cls, scene: Scene, errors: list[str]) -> "Part":
        """Return the scene with its promises judged."""
        return cls(scene.demonstration, scene.load, scene, judge(scene), errors)


class DemoReport(msgspec.Struct, frozen=True):
    """A whole run. `where` says in words what was measured."""

    where: str
    model: str
    workers: list[str]
    parts: list[Part]


def exit_code(report: DemoReport) -> int:
    """Return 1 when kv missed a promise, or a request failed."""
    return int(any(missed(part.rows) or part.errors for part in report.parts))


def write_json(report: DemoReport) -> None:
    """Print the whole report as JSON."""
    sys.stdout.buffer.write(msgspec.json.format(msgspec.json.encode(report), indent=1) + b"\n")


def print_report(report: DemoReport, console: Console) -> None:
    """Print promised beside measured, what was missed, and what the words mean."""
    console.print(f"{report.where}; model {report.model}", highlight=False, soft_wrap=True)
    for part in report.parts:
        console.print(part_table(part))
        for row in part.rows:
            if row.why:
                console.print(f"  {row.promise}: not applicable: {row.why}", highlight=False)
        for error in part.errors:
            console.print(Text(f"  failed: {error}", style="bold red"))
    console.print()
    console.print(DEFINITIONS, highlight=False, style="dim")
    console.print(verdict(report), highlight=False)


def part_table(part: Part) -> Table:
    """Return a row for each promise, a column for each policy."""
    passes = part.scene.passes
    requests = max((one.requests for one in passes.values()), default=0)
    ceiling = max((one.ceiling for one in passes.values()), default=0.0)
    table = Table(
        title=f"{part.demonstration}, {part.load}: {requests} requests, {part.scene.lanes} at a "
        f"time; one cache would hit {ceiling:.0%}",
        title_justify="left",
        box=SIMPLE_HEAD,
    )
    table.add_column("promise", no_wrap=True)
    table.add_column("promised", no_wrap=True)
    order = [name for name in ("kv", "round-robin", "random") if name in passes]
    for name in order:
        table.add_column(name, min_width=20)
    for row in part.rows:
        table.add_row(row.promise, row.promised, *(_cell(row.cells[name]) for name in order))
    return table


def verdict(report: DemoReport) -> str:
    """Return the last line: how many promises each policy kept, and which kv missed."""
    rows = [row for part in report.parts for row in part.rows]
    counts: list[str] = []
    for name in ("kv", "round-robin", "random"):
        verdicts = [row.cells[name].verdict for row in rows if name in row.cells]
        judged = sum(one in {"kept", "above", "missed"} for one in verdicts)
        if verdicts:
            counts.append(f"{name} {judged - verdicts.count('missed')} of {judged}")
    lost = [
        f"{part.demonstration}, {part.load}: {row.promise}"
        for part in report.parts
        for row in missed(part.rows)
    ]
    found = f"kv missed: {'; '.join(lost)}" if lost else "kv missed no promise"
    return f"promises kept: {', '.join(counts)}. {found}."


def _cell(cell: Cell) -> Text:
    return Text(f"{cell.text} {MARKS[cell.verdict]}".rstrip(), style=STYLES[cell.verdict])
