"""The figures of the house: how large it is, by what a reader or a change has to pass.

Smaller is better in each. `benchmarks/house/record.json` keeps those of the commit that the turn
began with, and those of now.
"""

import ast
import re
from collections.abc import Collection, Iterator, Mapping
from pathlib import Path
from typing import Final

import msgspec

from benchmarks.house.imports import find_cycles, import_graph
from benchmarks.house.native import COMMENT, NativeTree
from benchmarks.house.tree import (
    MOST_ARGUMENTS,
    SourceFile,
    argument_count,
    each_file,
    find_files,
    find_functions,
    find_statements,
    function_lines,
    read_tree,
)

ROOT: Final = Path(__file__).parents[2]
LAB: Final = "benchmarks/lab/kvmesh_lab"
RECORD: Final = ROOT / "benchmarks/house/record.json"
GROWTH: Final = 0.02
MOST_LINES, FEW_LINES, FUNCTION_LINES = 400, 30, 40
ROOMS: Final = ("kvmesh/app", "kvmesh/core")
SETTING: Final = re.compile(r"^#?\s?([a-z][a-z0-9-]*) = ", re.MULTILINE)
NAMED_FILE: Final = re.compile(r"(?<![\w./-])(?:\w+/)+\w+\.(?:py|c|h)\b")
NAMED_MODULE: Final = re.compile(r"(?<![\w./])[a-z_]+(?:\.[A-Za-z_]+){2,}\b(?![(/])")
JS_COMMENT: Final = re.compile(r"/\*.*?\*/|(?<!:)//[^\n]*", re.DOTALL)

Figures = dict[str, int]


class Record(msgspec.Struct):
    """Figures of `commit`, with which the turn began, and of the last `--write`."""

    commit: str
    before: Figures
    now: Figures


def measure_house(root: Path = ROOT) -> Figures:
    """Return the figures of the repository at `root`."""
    kvmesh, lab = read_tree(root / "kvmesh"), read_tree(root / LAB)
    native = NativeTree(root / "kvmesh/native")
    scripts = [path.read_text() for path in sorted((root / "kvmesh").rglob("*.js"))]
    every = [*kvmesh, *lab]
    texts = [file.text for file in every if not file.is_package] + [*native.files.values()]
    lines = [len(text.splitlines()) for text in texts]
    functions = [one for file in every for one in find_functions(file)]
    in_c = list(native.functions())
    return {
        "lines of code, kvmesh, Python": sum(map(count_python, kvmesh)),
        "lines of code, kvmesh, C": sum(map(count_c, native.files.values())),
        "lines of code, kvmesh, JavaScript": sum(map(count_js, scripts)),
        "lines of code, kvmesh-lab": sum(map(count_python, lab)),
        "lines of code, tests": sum(map(count_python, each_file(root / "tests"))),
        "files, kvmesh": len(kvmesh) + len(native.files) + len(scripts),
        "files, kvmesh-lab": len(lab),
        "files, tests": len(find_files(root / "tests")),
        "packages": sum(file.is_package for file in every),
        **{f"rooms of {room}": count_rooms(root / room) for room in ROOMS},
        f"files above {MOST_LINES} lines": sum(one > MOST_LINES for one in lines),
        f"files under {FEW_LINES} lines": sum(one < FEW_LINES for one in lines),
        "Python functions above a limit": sum(
            function_lines(one) > FUNCTION_LINES or argument_count(one) > MOST_ARGUMENTS
            for one in functions
        ),
        "C functions above a limit": sum(
            long > FUNCTION_LINES or many > MOST_ARGUMENTS for long, many in in_c
        ),
        "import circles, Python": len(find_cycles(import_graph(every))),
        "import circles, C": len(find_cycles(native.calls())),
        "names in comments of what is not there": len(list(find_dead(root, every, native))),
        **count_settings(root),
        "chart values": count_values(root / "docs/reference/chart-values.md"),
    }


def count_python(file: SourceFile) -> int:
    """Return the lines that have code: no comments, docstrings or blank lines."""
    lines = {
        number
        for number, line in enumerate(file.text.splitlines(), start=1)
        if line.strip() and not line.lstrip().startswith("#")
    }
    for node in find_statements(file.syntax):
        if isinstance(node, _WITH_DOCSTRING) and ast.get_docstring(node, clean=False) is not None:
            text = node.body[0]
            lines.difference_update(range(text.lineno, (text.end_lineno or 0) + 1))
    return len(lines)


_WITH_DOCSTRING: Final = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)


def count_c(text: str) -> int:
    """Return the lines of C that have code."""
    return _count(COMMENT.sub("", text))


def count_js(text: str) -> int:
    """Return the lines of JavaScript that have code."""
    return _count(JS_COMMENT.sub("", text))


def _count(text: str) -> int:
    return sum(bool(line.strip()) for line in text.splitlines())


def count_rooms(folder: Path) -> int:
    """Return the packages right below a folder."""
    return sum(1 for _ in folder.glob("*/__init__.py"))


def count_settings(root: Path) -> Figures:
    """Return the settings of each role, by its file in config/, and of all together."""
    found = {
        path.stem: set(SETTING.findall(path.read_text()))
        for path in sorted((root / "config").glob("*.toml"))
    }
    counts = {f"settings, {role}": len(names) for role, names in found.items()}
    return {**counts, "settings, all": len(set[str]().union(*found.values()))}


def count_values(page: Path) -> int:
    """Return the rows of the page of the chart's values."""
    return sum(line.startswith("| `") for line in page.read_text().splitlines())


def find_dead(
    root: Path, files: Collection[SourceFile], native: NativeTree
) -> Iterator[tuple[str, str]]:
    """Yield where a comment names a file or module of ours that nobody has, and the name."""
    known = _Known(root, files, native)
    for file in files:
        for text in _comments(file):
            yield from ((file.path.as_posix(), name) for name in known.missing(text))
    for path, code in native.files.items():
        for text in COMMENT.findall(code):
            yield from ((f"kvmesh/native/{path}", name) for name in known.missing(text))


def _comments(file: SourceFile) -> Iterator[str]:
    yield from re.findall(r"#.*$", file.text, re.MULTILINE)
    for node in find_statements(file.syntax):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
            yield str(node.value.value)


class _Known:
    """The files and modules of a tree, by every end of their names."""

    def __init__(self, root: Path, files: Collection[SourceFile], native: NativeTree) -> None:
        self._paths = set[str]()
        for path in (*root.rglob("*.py"), *root.rglob("*.[ch]")):
            parts = path.relative_to(root).parts
            self._paths.update("/".join(parts[at:]) for at in range(len(parts)))
        # Not in a room, or below kvmesh and in one: "core/…", "loads/…", "kvmesh/…".
        below = {file.path.parts[1] for file in files if len(file.path.parts) > 2}
        self._folders = {"kvmesh", "kvmesh_lab", "benchmarks", "tests", *below}
        self._folders |= {name.partition("/")[0] for name in native.files}
        self._texts = {one.module: one.text for one in files if not one.is_package}
        self._packages = {file.module for file in files if file.is_package}

    def missing(self, text: str) -> Iterator[str]:
        """Yield what a comment names and is not there."""
        for path in NAMED_FILE.findall(text):
            if path.partition("/")[0] in self._folders and path not in self._paths:
                yield path
        for name in NAMED_MODULE.findall(text):
            if not self._is_there(name):
                yield name

    def _is_there(self, name: str) -> bool:
        """Return whether it is a package, a module, or a name that stands in a module."""
        for above in ("", "kvmesh.", "kvmesh_lab."):
            whole = f"{above}{name}"
            if whole in self._packages or whole in self._texts:
                return True
            module, _, last = whole.rpartition(".")
            if last in self._texts.get(module, ""):
                return True
            module, _, middle = module.rpartition(".")
            if middle in self._texts.get(module, ""):
                return True
        first = name.removeprefix("kvmesh.").partition(".")[0]
        return first not in self._folders or not {f"kvmesh.{first}"} & self._packages


def grown(recorded: Mapping[str, int], now: Mapping[str, int]) -> list[str]:
    """Return a line for each figure that is more than 2 % larger than recorded, or new."""
    return [
        f"{name}: {recorded.get(name, 0):,} -> {count:,}"
        for name, count in now.items()
        if count > recorded.get(name, 0) * (1 + GROWTH)
    ]


def read_record() -> Record:
    """Return what is recorded."""
    return msgspec.json.decode(RECORD.read_bytes(), type=Record)


def write_record(record: Record) -> None:
    """Keep a record."""
    RECORD.write_bytes(msgspec.json.format(msgspec.json.encode(record), indent=1) + b"\n")


def as_rows(record: Record, now: Mapping[str, int] | None = None) -> list[list[str]]:
    """Return the table: each figure before and as recorded; with `now` what it is."""
    head = ["figure", f"at {record.commit}", "recorded"]
    rows = [
        [name, f"{record.before.get(name, 0):,}", f"{count:,}"]
        for name, count in record.now.items()
    ]
    if now is not None:
        head.append("now")
        for row in rows:
            row.append(f"{now.get(row[0], 0):,}")
    return [head, *rows]
