"""Reads the Python files of a tree and measures their functions and their reaches."""

import ast
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Final

import msgspec

_ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = (_ROOT / "kvmesh", _ROOT / "benchmarks/lab/kvmesh_lab")
"""The packages that are installed: the router, the laboratory."""

MOST_DOTS: Final = 2
MOST_ARGUMENTS: Final = 6
INIT: Final = "__init__.py"

_Function = ast.FunctionDef | ast.AsyncFunctionDef


class SourceFile(msgspec.Struct, frozen=True):
    """One Python file: `module` is its dotted name, `path` where it is below the tree's parent."""

    path: Path
    module: str
    text: str
    syntax: ast.Module

    @property
    def is_package(self) -> bool:
        return self.path.name == INIT


class Sizes(msgspec.Struct, frozen=True):
    """Sizes of a tree. A function's lines are all of it, its signature and docstring too.

    A reach is a chain of attributes of more than `MOST_DOTS` dots that begins in a variable.
    """

    files: int
    lines: int
    function_median: float
    function_p90: int
    function_max: int
    many_arguments: int
    most_files: int
    folders: int
    reaches: int


def find_files(root: Path) -> list[Path]:
    """Return the Python files below `root`, a package or a folder of them, sorted."""
    return [path for path in sorted(root.rglob("*.py")) if "__pycache__" not in path.parts]


def read_tree(root: Path) -> list[SourceFile]:
    """Return the Python files below `root`, read and parsed."""
    return [*each_file(root)]


def each_file(root: Path) -> Iterator[SourceFile]:
    """Yield the same one by one: the collector looks at the syntax of all that is kept."""
    return (_read(path, root.parent) for path in find_files(root))


def _read(path: Path, above: Path) -> SourceFile:
    text = path.read_text(encoding="utf-8")
    below = path.relative_to(above)
    parts = below.parent.parts if path.name == INIT else below.with_suffix("").parts
    return SourceFile(below, ".".join(parts), text, ast.parse(text, str(path)))


def files_by_folder(root: Path) -> dict[Path, int]:
    """Return how many Python files each folder below `root` has that has any."""
    return Counter(path.parent.relative_to(root.parent) for path in find_files(root))


def find_statements(syntax: ast.Module) -> Iterator[ast.AST]:
    """Yield the module, its statements and those within them, but none of their expressions."""
    found: list[ast.AST] = [syntax]
    for node in found:
        yield node
        for name in ("body", "orelse", "finalbody", "handlers", "cases"):
            found += getattr(node, name, ())


def find_functions(file: SourceFile) -> Iterator[_Function]:
    """Yield every function and method, those within others too."""
    for node in find_statements(file.syntax):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            yield node


def function_lines(function: _Function) -> int:
    """Return how many lines a function has, with its signature and docstring."""
    last = function.end_lineno
    assert last is not None
    return last - function.lineno + 1


def argument_count(function: _Function) -> int:
    """Return how many arguments a caller may give: without `self` and `cls`."""
    arguments = function.args
    names = [one.arg for one in (*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs)]
    return len(names) - (names[:1] in (["self"], ["cls"]))


def find_reaches(file: SourceFile) -> list[str]:
    """Return each chain of more than `MOST_DOTS` dots as `path:line a.b.c.d`.

    A chain that begins in an imported module reaches into no object, so it does not count.
    """
    modules = set(_imported_modules(file.syntax))
    inner = {id(node.value) for node in ast.walk(file.syntax) if isinstance(node, ast.Attribute)}
    found: list[str] = []
    for node in ast.walk(file.syntax):
        if isinstance(node, ast.Attribute) and id(node) not in inner:
            names = _chain(node)
            if len(names) > MOST_DOTS + 1 and names[0] not in modules:
                found.append(f"{file.path}:{node.lineno} {'.'.join(names)}")
    return found


def _chain(node: ast.expr) -> list[str]:
    """Return the names of `a.b.c`, none where it begins in something else than a name."""
    names: list[str] = []
    while isinstance(node, ast.Attribute):
        names.append(node.attr)
        node = node.value
    return [node.id, *reversed(names)] if isinstance(node, ast.Name) else []


def _imported_modules(syntax: ast.Module) -> Iterator[str]:
    for node in find_statements(syntax):
        if isinstance(node, ast.Import):
            for alias in node.names:
                yield alias.asname or alias.name.partition(".")[0]


def measure(root: Path, files: list[SourceFile]) -> Sizes:
    """Return the sizes of the tree at `root`, whose `files` have at least one function."""
    functions = [function for file in files for function in find_functions(file)]
    lengths = sorted(function_lines(function) for function in functions)
    by_folder = files_by_folder(root)
    return Sizes(
        files=len(files),
        lines=sum(len(file.text.splitlines()) for file in files),
        function_median=median(lengths),
        function_p90=lengths[len(lengths) * 9 // 10],
        function_max=lengths[-1],
        many_arguments=sum(argument_count(one) > MOST_ARGUMENTS for one in functions),
        most_files=max(by_folder.values()),
        folders=len(by_folder),
        reaches=sum(len(find_reaches(file)) for file in files),
    )
