"""How the source tree must be built: what holds it together is checked here, not remembered."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from benchmarks.house.imports import find_cycles, import_graph
from benchmarks.house.tree import (
    MOST_ARGUMENTS,
    PACKAGES,
    SourceFile,
    argument_count,
    files_by_folder,
    find_files,
    find_functions,
    find_statements,
    read_tree,
)

REPOSITORY = Path(__file__).parents[2]
MOST_FILES = 50
MOST_LINES = 400
LEAST_LINES = 30
SHORT = {
    "__main__.py": "the entry of `python -m kvmesh`",
    "app/mesh/plane.py": "the one place that knows the transport",
    "app/router/picker_command.py": "the entry of a role",
    "app/views/process_figures.py": "a sidecar loads no other figures",
    "core/dispatch/phases.py": "no other file of its room is loaded with it",
    "core/insight/histogram.py": "a table that five rooms share",
    "core/routing/overdue.py": "a bound that five rooms share",
    "core/routing/program_fleet.py": "a view for the governor, which knows no scheduler",
    "lab.py": "whether another distribution is installed",
    "settings/types.py": "types that every settings file shares",
    "up.py": "`kvmesh up` where the laboratory is installed",
    "transport/zmq/statistics.py": "shown where no ZMQ is loaded",
    "version.py": "setup.py reads it",
    "entries.py": "the entries of the laboratory",
}
"""Files of fewer than `LEAST_LINES`, and why."""
TREES = ("kvmesh", "tests", "benchmarks", "examples", "deploy")
OF_THE_WHOLE = {
    "test_constants",
    "test_house",
    "test_native_rooms",
    "test_public_face",
    "test_reruns",
}
"""Unit tests of the repository rather than of one module."""


@cache
def files_installed() -> list[SourceFile]:
    return [file for package in PACKAGES for file in read_tree(package)]


def room_of(file: SourceFile) -> Path:
    """Return the folder of a file below its package."""
    return Path(*file.path.parent.parts[1:])


@pytest.mark.parametrize("tree", TREES)
def test_a_folder_has_no_more_files_than_a_story(tree: str) -> None:
    crowded = {
        str(folder): count
        for folder, count in files_by_folder(REPOSITORY / tree).items()
        if count > MOST_FILES
    }

    assert not crowded


def test_a_file_is_no_longer_and_no_shorter_than_a_reader_wants() -> None:
    wrong: list[str] = []
    for file in files_installed():
        name, lines = file.path.relative_to(file.path.parts[0]).as_posix(), file.text.count("\n")
        if lines > MOST_LINES:
            wrong.append(f"{name}: {lines} lines, more than {MOST_LINES}")
        if lines < LEAST_LINES and not file.is_package and name not in SHORT:
            wrong.append(f"{name}: {lines} lines, fewer than {LEAST_LINES}")

    assert not wrong


def test_each_package_says_in_a_sentence_what_it_is() -> None:
    silent = [
        str(file.path)
        for file in files_installed()
        if file.is_package and not (ast.get_docstring(file.syntax) or "").strip().endswith(".")
    ]

    assert not silent


def test_each_folder_is_a_package() -> None:
    files = files_installed()
    packages = {file.path.parent for file in files if file.is_package}

    assert {file.path.parent for file in files} <= packages


def test_no_modules_import_each_other_not_even_late() -> None:
    for files in (files_installed(), read_tree(REPOSITORY / "benchmarks")):
        assert find_cycles(import_graph(files)) == []


def test_what_is_shipped_knows_no_test_and_the_simulator_of_actors_no_real_input() -> None:
    shipped = {file.path: imported(file.syntax) for file in files_installed()}
    doubles = REPOSITORY / "tests/doubles"
    simulated = {
        path: imported(ast.parse(path.read_text()))
        for path in find_files(doubles / "sim")
        if not path.name.startswith("test_")
    }

    assert not [path for path, names in shipped.items() if any(map(OF_TESTS.match, names))]
    assert len(simulated) >= len(find_files(doubles / "sim")) // 2
    assert not [path for path, names in simulated.items() if any(map(REAL.match, names))]


OF_TESTS = re.compile(r"(tests|benchmarks)(\.|$)")
REAL = re.compile(r"(asyncio|socket|kvmesh\.transport)(\.|$)")


def imported(syntax: ast.Module) -> list[str]:
    """Return the modules that are imported, late or not."""
    nodes = list(ast.walk(syntax))
    names = [one.name for node in nodes if isinstance(node, ast.Import) for one in node.names]
    return names + [node.module or "" for node in nodes if isinstance(node, ast.ImportFrom)]


def test_only_the_command_line_imports_modules_by_name() -> None:
    """What is loaded late is imported in a function, where the contracts see it.

    `kvmesh._native` is no module of ours to a type checker: it is built from C, or missing.
    """
    hidden = [
        f"{file.path}:{line} {name}"
        for file in files_installed()
        if file.module != "kvmesh.cli"
        for line, name in named_imports(file)
        if name.startswith("kvmesh") and name != "kvmesh._native"
    ]

    assert not hidden


def named_imports(file: SourceFile) -> Iterator[tuple[int, str]]:
    """Yield where a string is that names a module, in a file that uses `import_module`."""
    if "import_module" not in file.text:
        return
    for node in ast.walk(file.syntax):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            if called.endswith("import_module") or "import_module" in map(ast.unparse, node.args):
                for argument in node.args:
                    if isinstance(argument, ast.Constant | ast.JoinedStr):
                        yield node.lineno, ast.unparse(argument).strip("f'\"")


def test_a_unit_test_lies_in_the_room_of_its_module() -> None:
    """A test called like a module lies where that module does; others lie in a room that exists."""
    rooms = {room_of(file) for file in files_installed()}
    homes: dict[str, set[Path]] = {}
    for file in files_installed():
        homes.setdefault(file.path.stem, set()).add(room_of(file))
    strays: list[str] = []
    unit = REPOSITORY / "tests/unit"
    for path in find_files(unit):
        room, name = path.parent.relative_to(unit), path.stem
        if (
            not name.startswith("test_")
            or name in OF_THE_WHOLE
            or room.parts[:1] == ("benchmarks",)
        ):
            continue
        home = homes.get(name.removeprefix("test_"))
        if room not in (rooms if home is None else home):
            strays.append(f"{path}: its module is in {sorted(map(str, home or rooms))}")

    assert not strays


def test_a_function_takes_no_more_arguments_than_a_reader_keeps_in_mind() -> None:
    many = [
        f"{file.path}:{function.lineno} {function.name}"
        for file in files_installed()
        for function in find_functions(file)
        if argument_count(function) > MOST_ARGUMENTS
    ]

    assert not many


def test_tests_and_sources_that_tools_are_told_of_exist() -> None:
    named = re.compile(r"(?<![\w/.])(?:tests|kvmesh|benchmarks)/[\w/.*-]*[\w*]")
    tools = ("Makefile", ".ci/run", "pyproject.toml", "kvmesh/native/check.sh")
    missing = [
        f"{tool}: {path}"
        for tool in tools
        for path in named.findall((REPOSITORY / tool).read_text())
        if not path.startswith("kvmesh/_native") and not any(REPOSITORY.glob(path))  # built
    ]

    assert not missing


WHOLE = {"UNREADABLE", "UnicodeDecodeError", "UnicodeError", "ValueError", "Exception"}
"""What a decoder raises for text that is no UTF-8 is among these; `msgspec.MsgspecError` is not."""


def test_bytes_that_cannot_be_decoded_are_caught_whatever_is_wrong_with_them() -> None:
    half = [
        f"{file.path}:{block.lineno}"
        for file in files_installed()
        for block in find_statements(file.syntax)
        if isinstance(block, ast.Try) and catches_half(block)
    ]

    assert not half


def catches_half(block: ast.Try) -> bool:
    """Return whether a `try` decodes by msgspec and lets bad UTF-8 through."""
    caught = " ".join(ast.unparse(one.type) for one in block.handlers if one.type is not None)
    tried = " ".join(map(ast.unparse, block.body))
    names = set(re.findall(r"\w+", caught))
    return "msgspec." in caught and "decode(" in tried and not names & WHOLE
