"""`python -m benchmarks.cost.page FILE.jsonl > docs/measured/request-cost.md`.

The file has what `bench_proxy`, `bench_instructions` and `bench_request --rooms` append with
`--json`. What was not measured is a dash; a figure that meets its goal is bold.
"""

import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Final, NamedTuple

import msgspec

from benchmarks.proxy.bench_proxy import ALONE, CHUNKS, LONG, MEDIUM, OPEN, SATURATED, SHORT
from benchmarks.proxy.bench_wishes import TITLE as REAL_TITLE
from benchmarks.proxy.peers import BASELINE

OURS: Final = "kvmesh, "
BYTES: Final = "kvmesh router (kv)"
TOKENS: Final = "kvmesh router (kv), tokenizer"
TURNS: Final = "kvmesh router (round robin)"
COLUMNS: Final = {
    BYTES: "kv, byte tokens",
    TOKENS: "kv, real tokenizer",
    TURNS: "round robin",
    "kvmesh plain": "HTTP alone",
    "kvmesh meta-router": "meta-router",
    "sglang-router 0.3.2 cache": "sglang-router 0.3.2",
    "smg 1.13.0 cache": "smg 1.13.0",
    "vllm-router 0.1.17 cache": "vllm-router, cache aware",
    "nginx": "nginx",
}
GOALS: Final = "goal: byte tokens / tokenizer / round robin"
DIRECT: Final = "no proxy"
ADDED: Final = "added p50"
NOT_MEASURED: Final = "\N{EN DASH}"
LEAST_SHARE: Final = 0.02
"""Folders that take less of a request's time are not shown."""


class Row(NamedTuple):
    """A case of the first table: where its figure stands, and what was wanted of whom."""

    title: str
    figure: str
    goals: dict[str, float]


ROWS: Final = (
    Row(SHORT, "cpu us", {BYTES: 0.9, TOKENS: 1.1, TURNS: 0.75}),
    Row(MEDIUM, "cpu us", {BYTES: 1.0, TOKENS: 1.3}),
    Row(LONG, "cpu us", {BYTES: 1.4}),
    Row(ALONE, ADDED, {BYTES: 1.0, TOKENS: 1.0}),
    Row(OPEN, "p99 us", {BYTES: 1.0, TOKENS: 1.0}),
    Row(CHUNKS, "cpu us", {BYTES: 0.9, TOKENS: 0.9}),
    Row(SATURATED, "cpu us", {BYTES: 0.9, TOKENS: 0.9}),
)


REAL_GOALS: Final[dict[tuple[str, str], tuple[float, float]]] = {
    ("400 B", "varying heads"): (0.9, 1.1),
    ("400 B", "API keys"): (1.1, 1.1),
    ("400 B", "session"): (1.2, 1.2),
    ("400 B", "agent's session"): (1.2, 1.2),
    ("400 B", "priority, targets"): (1.3, 1.3),
    ("400 B", "backlog bound"): (1.3, 1.3),
    ("400 B", "OTLP 1 %"): (1.1, 1.1),
    ("400 B", "OTLP all"): (1.6, 1.6),
    ("400 B", "all of these"): (2.0, 2.0),
    ("400 B", "behind a meta-router"): (1.8, 1.8),
    ("4 KB", "varying heads"): (1.0, 1.3),
    ("parts", "varying heads"): (1.3, 1.3),
    ("tools", "varying heads"): (1.3, 1.3),
    ("an agent's 12 turns", "varying heads"): (1.5, 1.5),
    ("conversations of 128k tokens that grow", "varying heads"): (1.5, 1.5),
}
"""What was wanted of real requests, by bodies and heads: with byte tokens, with a tokenizer."""


class Found(msgspec.Struct, frozen=True):
    """One line of the file: a figure of a candidate, or what all figures depend on."""

    title: str = ""
    candidate: str = ""
    figure: str = ""
    median: float | None = None
    spread: float | None = None
    ratio: float | None = None
    rounds: int = 0
    facts: dict[str, str | int | float] = {}


class Run:
    """The lines of a file. Of two lines about one figure the later counts."""

    def __init__(self, lines: Iterable[bytes]) -> None:
        read = [msgspec.json.decode(line, type=Found) for line in lines if line.strip()]
        self.facts = [one.facts for one in read if one.facts]
        self._found = {(one.title, one.candidate, one.figure): one for one in read if not one.facts}

    def find(self, title: str, candidate: str, figure: str) -> Found | None:
        """Return one figure."""
        return self._found.get((title, candidate, figure))

    def median(self, title: str, candidate: str, figure: str) -> float | None:
        """Return one figure's median over rounds."""
        found = self.find(title, candidate, figure)
        return None if found is None else found.median

    def titles(self, start: str) -> list[str]:
        """Return the titles of tables that begin so, in the order of the file."""
        return list(dict.fromkeys(title for title, _, _ in self._found if title.startswith(start)))

    def candidates(self, title: str) -> list[str]:
        """Return the rows of a table."""
        return list(dict.fromkeys(name for of, name, _ in self._found if of == title))

    def figures(self, title: str) -> list[str]:
        """Return the columns of a table."""
        return list(dict.fromkeys(name for of, _, name in self._found if of == title))

    def ratio(self, row: Row, candidate: str) -> float | None:
        """Return what a candidate costs over what the baseline does."""
        if row.figure != ADDED:
            found = self.find(row.title, candidate, row.figure)
            return None if found is None else found.ratio
        p50s = [self.median(row.title, name, "p50 us") for name in (candidate, BASELINE, DIRECT)]
        own, other, none = p50s
        if own is None or other is None or none is None or other <= none:
            return None
        return (own - none) / (other - none)


def table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """Return the lines of a table."""
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cells)} |" for cells in lines]


def _shown(value: float | None) -> str:
    return NOT_MEASURED if value is None else f"{value:.2f}" if value < 10 else f"{value:,.0f}"


def ratio_rows(run: Run) -> list[list[str]]:
    """Return the first table: ratios to the baseline, beside the goal."""
    rows: list[list[str]] = []
    for row in ROWS:
        goals = " / ".join(f"{goal:g}" for goal in row.goals.values())
        cells = [
            f"{row.title}: {row.figure.removesuffix(' us')}",
            f"\N{LESS-THAN OR EQUAL TO} {goals}",
        ]
        for name in COLUMNS:
            ratio = run.ratio(row, name)
            met = ratio is not None and name in row.goals and ratio <= row.goals[name]
            cells.append(f"**{_shown(ratio)}**" if met else _shown(ratio))
        rows.append(cells)
    return rows


def baseline_rows(run: Run) -> list[list[str]]:
    """Return what the baseline took, and how much its figures differ from round to round."""
    rows: list[list[str]] = []
    for row in ROWS:
        figure = "p50 us" if row.figure == ADDED else row.figure
        found = run.find(row.title, BASELINE, figure)
        own = run.find(row.title, BYTES, figure)
        if found is not None and own is not None:
            spreads = [
                f"{one.spread:.0%}" if one.spread is not None else NOT_MEASURED
                for one in (found, own)
            ]
            times = [_shown(found.median), spreads[0], _shown(own.median), spreads[1]]
            rows.append([f"{row.title}, {figure}", *times, str(found.rounds)])
    return rows


def missed(run: Run) -> list[str]:
    """Return the cells that miss their goal, in words."""
    found: list[str] = []
    for row in ROWS:
        for name, goal in row.goals.items():
            ratio = run.ratio(row, name)
            if ratio is not None and ratio > goal:
                found.append(f"- {row.title}, {COLUMNS[name]}: {ratio:.2f}, goal {goal:g}")
    return found


def whole_table(run: Run, title: str) -> list[str]:
    """Return a table of the file as it is, medians alone."""
    figures = run.figures(title)
    return table(
        ["", *figures],
        (
            [name, *(_shown(run.median(title, name, figure)) for figure in figures)]
            for name in run.candidates(title)
        ),
    )


def real_goal(title: str, candidate: str) -> float | None:
    """Return what was wanted of a router of ours in a table of real requests."""
    tokens, colon, way = candidate.removeprefix(OURS).partition(": ")
    goals = REAL_GOALS.get((title.removeprefix(REAL_TITLE), way)) if colon else None
    return None if goals is None else goals[tokens == "tokenizer"]


def real_lines(run: Run) -> list[str]:
    """Return what requests as clients send them cost, a row for each router and form."""
    rows: list[list[str]] = []
    for title in run.titles(REAL_TITLE):
        for name in run.candidates(title):
            found = run.find(title, name, "cpu us")
            if found is not None:
                goal, ratio = real_goal(title, name), found.ratio
                met = goal is not None and ratio is not None and ratio <= goal
                shown = f"**{_shown(ratio)}**" if met else _shown(ratio)
                wanted = NOT_MEASURED if goal is None else f"\N{LESS-THAN OR EQUAL TO} {goal:g}"
                spread = NOT_MEASURED if found.spread is None else f"{found.spread:.0%}"
                cells = [title.removeprefix(REAL_TITLE), name, wanted, shown]
                rows.append([*cells, _shown(found.median), spread])
    head = ["bodies", "router: heads", "goal", "ratio", "cpu us", "\N{PLUS-MINUS SIGN}"]
    return table(head, rows) if rows else []


def room_lines(run: Run) -> list[str]:
    """Return where the time of a request goes, a column for each size."""
    titles = run.titles("Where the time of a request of")
    columns = [{one: run.median(title, one, "cpu us") or 0.0 for one in run.candidates(title)}
               for title in titles]  # fmt: skip
    names = dict.fromkeys(
        name
        for column in columns
        for name, us in column.items()
        if us >= LEAST_SHARE * sum(column.values())
    )
    sizes = [title.split(" of ")[-1].removesuffix(" goes") for title in titles]
    rows = [[f"`{name}`", *(_shown(column.get(name)) for column in columns)] for name in names]
    return table(["folder", *sizes], rows) if titles else []


HEAD: Final = """# What a request costs a router
Processor time, latency and instructions of one hop, as ratios to vllm-router 0.1.17 round robin
of the same run; lower is better, bold meets the goal. Made by `make bench-cost`, which writes
this page; [benchmarks/README.md](../../benchmarks/README.md) says how figures are made.
"""

SETTING: Final = """One process of each on one processor, load and four pretend engines on another,
taking turns. No two heads are equal. Chats: 20,000 that differ, behind 200 system prompts, half of
each chat its system prompt; `--no-kv-events`, so the index holds what was routed. The real
tokenizer is the one of `$KVMESH_BENCH_MODEL`, else a small BPE with a ChatML template that is
trained on the spot: it has fewer merges than a large model's. "added p50" is the median latency
that a proxy adds to none; the open loop sends at random times, whatever was answered until then.
Left out: TLS, more than four engines, KV events, images.
"""

INSTRUCTIONS: Final = """
## Instructions
Thousands a request, one at a time, by valgrind's callgrind: all that runs outside the kernel,
whatever else the machine does.
"""

REAL: Final = """
## Requests as clients send them
Processor time over that of the first router of each table, which is sent the same varying heads
(`python -m benchmarks.proxy.bench_wishes`). No two requests have equal heads; those with keys show
one of a file of 101.
"""

ROOMS: Final = """
## Where the time goes
Microseconds a request of a router by source folder, byte tokens, sockets replaced by calls
(`bench_request --rooms`): a timer looks at Python code, and what that calls in C counts as its
own.
"""


def page(run: Run) -> str:
    """Return the whole page."""
    lines = HEAD.splitlines()
    for facts in run.facts[:1]:
        reported = ", ".join(f"{name} {value}" for name, value in facts.items())
        lines += ["", f"Recorded: {reported}."]
    heads = ["case", GOALS, *COLUMNS.values()]
    lines += ["", *table(heads, ratio_rows(run)), "", *SETTING.splitlines()]
    head = ["figure", "vllm-router rr", "±", "kvmesh, byte tokens", "±", "rounds"]
    lines += ["", *table(head, baseline_rows(run))]
    lines += ["", "Goals missed:", "", *(missed(run) or ["- none of those measured"])]
    if found := real_lines(run):
        lines += [*REAL.splitlines(), "", *found]
    if titles := run.titles("instructions a request"):
        lines += [*INSTRUCTIONS.splitlines(), "", *whole_table(run, titles[0])]
    if found := room_lines(run):
        lines += [*ROOMS.splitlines(), "", *found]
    return "\n".join(lines) + "\n"


def main() -> None:
    lines = [line for name in sys.argv[1:] for line in Path(name).read_bytes().splitlines()]
    if not lines:
        sys.exit("usage: python -m benchmarks.cost.page FILE.jsonl: files that --json wrote")
    sys.stdout.write(page(Run(lines)))


if __name__ == "__main__":
    main()
