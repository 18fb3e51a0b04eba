"""`python -m benchmarks.picker.page FILE.jsonl > docs/measured/picker-cost.md`: what `bench_picker`
found. A goal that is met is said to be.
"""

import sys
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from benchmarks.bench_picker import CPU, FOLLOWS, HTTP, RATE, SIZES, title_of
from benchmarks.cost.page import Run, table
from benchmarks.picker.gateway import Follow
from benchmarks.picker.latency import TITLE
from benchmarks.picker.pickers import BASELINE, OURS

GOAL_US: Final = 300
GOAL_RATIO: Final = 0.2
GOAL_RATE: Final = 3_000
GOAL_SIZE: Final = 8_000
CROSSINGS: Final = (
    "Closed loop; Envoy has one thread. On a busy machine each of the four crossings between Envoy"
    " and the picker waits for a processor: compare within the table."
)
ABOUT: Final = Path(__file__).with_name("about.md")
TABLES: Final = "<!-- tables -->\n"


def shown(value: float | None, digits: int = 0) -> str:
    return "\N{EN DASH}" if value is None else f"{value:,.{digits}f}"


def costs(run: Run, follow: Follow) -> Iterable[str]:
    """Yield the lines of the table of one way to follow answers."""
    others = (OURS.name, BASELINE.name, *([HTTP] if follow == "bodies" else []))
    head = ["body", f"{OURS.name}, us", "of grpc.aio's", "picks/s a core", "grpc.aio, us"]
    head += ["our HTTP router, us"] if follow == "bodies" else []
    rows: list[list[str]] = []
    for size, (_, name) in SIZES.items():
        title = title_of(size, follow)
        found = run.find(title, OURS.name, CPU)
        cells = [shown(run.median(title, one, CPU)) for one in others]
        ratio = None if found is None else found.ratio
        rate = run.median(title, OURS.name, RATE)
        rows.append([name, cells[0], shown(ratio, 2), shown(rate), *cells[1:]])
    yield f"\n## Processor time a pick, {FOLLOWS[follow]}"
    yield from table(head, rows)


def goals(run: Run) -> Iterable[str]:
    """Yield what was wanted, and what is."""
    title = title_of(GOAL_SIZE, "bodies")
    found, rate = run.find(title, OURS.name, CPU), run.median(title, OURS.name, RATE)
    if found is None or found.median is None or found.ratio is None or rate is None:
        return
    rows = [
        ["processor time a pick, 2k tokens", f"\N{LESS-THAN OR EQUAL TO} {GOAL_US} us",
         shown(found.median), met(found.median <= GOAL_US)],
        ["of grpc.aio's", f"\N{LESS-THAN OR EQUAL TO} {GOAL_RATIO}", shown(found.ratio, 2),
         met(found.ratio <= GOAL_RATIO)],
        ["picks a second of one core, 2k tokens (llm-d publishes 128 to 388 an endpoint picker)",
         f"\N{GREATER-THAN OR EQUAL TO} {GOAL_RATE:,}", shown(rate), met(rate >= GOAL_RATE)],
    ]  # fmt: skip
    yield ""
    yield from table(["what", "goal", "found", ""], rows)


def met(is_met: bool) -> str:
    return "met" if is_met else "missed"


def latencies(run: Run) -> Iterable[str]:
    """Yield the table of requests through Envoy."""
    figures = run.figures(TITLE)
    if not figures:
        return
    yield f"\n## Latency {TITLE}"
    yield f"{CROSSINGS}\n"
    rows = [
        [name, *(shown(run.median(TITLE, name, figure), 2) for figure in figures[:2])]
        for name in run.candidates(TITLE)
    ]
    yield from table(["way", *figures[:2]], rows)


def page(run: Run) -> str:
    """Return the page."""
    lines = [
        ", ".join(f"{name}: {value}" for name, value in facts.items()) + "."
        for facts in run.facts[-1:]
    ]
    lines += goals(run)
    for follow in FOLLOWS:
        lines += costs(run, follow)
    lines += latencies(run)
    return ABOUT.read_text("utf-8").replace(TABLES, "\n".join(lines) + "\n")


if __name__ == "__main__":
    print(page(Run(Path(sys.argv[1]).read_bytes().splitlines())), end="")
