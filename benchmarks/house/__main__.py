"""`python -m benchmarks.house [FOLDER ...]`: how big the parts of source trees are.

Without a folder the table is of kvmesh and kvmesh_lab, and what a warm chat passes in a router is
traced, too. Before it stand the house's figures, beside those recorded: a unit test fails where one
has grown by more than 2 %. `--write` records those of now.
"""

import argparse
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Final, Protocol, cast

from benchmarks.house.figures import (
    LAB,
    ROOT,
    Record,
    as_rows,
    find_dead,
    grown,
    measure_house,
    read_record,
    write_record,
)
from benchmarks.house.imports import find_cycles, find_longest_chain, import_graph
from benchmarks.house.native import NativeTree
from benchmarks.house.tree import (
    MOST_ARGUMENTS,
    MOST_DOTS,
    PACKAGES,
    find_reaches,
    measure,
    read_tree,
)
from kvmesh.observe import configure_logging

TRACE: Final = "benchmarks.trace.chat"
HEAD: Final = (
    "",
    "files",
    "lines",
    "function median / p90 / max",
    f"> {MOST_ARGUMENTS} args",
    "most files in one folder",
    "folders",
    "import cycles",
    "longest import chain",
    f"reaches of > {MOST_DOTS} dots",
)


class Traced(Protocol):
    """What `trace_chat` of `benchmarks.trace.chat` returns: what one request passes."""

    calls: int
    functions: int
    files: int


class Trace(Protocol):
    """The module `benchmarks.trace.chat`."""

    def trace_chat(self) -> Traced: ...


def describe(root: Path) -> list[str]:
    """Return a tree's row of the table."""
    files = read_tree(root)
    sizes, graph = measure(root, files), import_graph(files)
    return [
        root.name,
        str(sizes.files),
        f"{sizes.lines / 1000:.1f}k",
        f"{sizes.function_median:g} / {sizes.function_p90} / {sizes.function_max}",
        str(sizes.many_arguments),
        str(sizes.most_files),
        str(sizes.folders),
        str(len(find_cycles(graph))),
        str(len(find_longest_chain(graph))),
        str(sizes.reaches),
    ]


def as_table(rows: list[list[str]]) -> str:
    """Return rows, the first of them the head, as a table of Markdown."""
    head, *others = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join((head, "|---" * len(rows[0]) + "|", *others))


def trace_line() -> str:
    """Return what a warm chat passes, or that nothing here can trace it."""
    if find_spec("benchmarks.trace") is None:
        return f"a warm chat: not traced, there is no {TRACE}"
    configure_logging("error", "console")
    found = cast("Trace", import_module(TRACE)).trace_chat()
    return f"a warm chat: {found.calls} calls, {found.functions} functions, {found.files} files"


def show_figures(*, write: bool) -> None:
    """Print the house's figures, and record them with `write`."""
    record, now = read_record(), measure_house()
    if write:
        record = Record(record.commit, record.before, now)
        write_record(record)
    print(as_table(as_rows(record, now)), "", sep="\n")
    for line in grown(record.now, now):
        print(f"grown: {line}")


def list_dead() -> None:
    """Print each name in a comment that nothing has."""
    files = [*read_tree(ROOT / "kvmesh"), *read_tree(ROOT / LAB)]
    for place, name in find_dead(ROOT, files, NativeTree(ROOT / "kvmesh/native")):
        print(f"{place}: {name}")


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.house", description=__doc__)
    parser.add_argument(
        "folders", nargs="*", type=Path, help="packages; default: kvmesh, kvmesh_lab"
    )
    parser.add_argument("--reaches", action="store_true", help="list every reach, too")
    parser.add_argument("--chain", action="store_true", help="print the longest chain, too")
    parser.add_argument("--no-trace", action="store_true", help="trace no chat")
    parser.add_argument("--write", action="store_true", help="record the figures of now")
    parser.add_argument("--dead", action="store_true", help="list names of what is not there, too")
    options = parser.parse_args()
    if not options.folders:
        show_figures(write=options.write)
    if options.dead:
        list_dead()
    folders: list[Path] = [path.resolve() for path in options.folders] or [*PACKAGES]
    print(as_table([[*HEAD], *map(describe, folders)]))
    for root in folders:
        files = read_tree(root)
        if options.reaches:
            print("", *(line for file in files for line in find_reaches(file)), sep="\n")
        if options.chain:
            print("", *find_longest_chain(import_graph(files)), sep="\n")
    if not options.folders and not options.no_trace:
        print("", trace_line(), sep="\n")


if __name__ == "__main__":
    main()
