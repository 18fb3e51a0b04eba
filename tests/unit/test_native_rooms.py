"""The rooms of the compiled core, `kvmesh/native/ROOM`: what each may include and call.

The order is `[tool.kvmesh.native]` in pyproject.toml: rooms of one line do not know each other.
What a file names is read by `benchmarks.house.native`.
"""

import re
import tomllib
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from benchmarks.house.imports import find_cycles
from benchmarks.house.native import INCLUDE, NativeTree

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "kvmesh/native"
MOST_FILES = 50
COMMENT = re.compile(r"/\*.*?\*/", re.DOTALL)
PYTHON_NAME = re.compile(
    r"\b(?:kvmesh|actors|app|client|core|library|transport)(?:\.[A-Za-z_]\w*)+(?!\.\w)"
)
PYTHON_FILE = re.compile(r"\b(?:kvmesh|tests)/[\w/]+\.pyi?\b")


@cache
def settings() -> dict[str, Any]:
    tools: dict[str, Any] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]
    return tools


@cache
def order() -> dict[str, int]:
    """Return the line of each room, the uppermost first."""
    lines = settings()["kvmesh"]["native"]["rooms"]
    return {room: number for number, line in enumerate(lines) for room in line.split(" | ")}


@cache
def tree() -> NativeTree:
    return NativeTree(NATIVE)


def files() -> Mapping[str, str]:
    """Return the text of each file, by its path below `native/`."""
    return tree().files


def room_of(file: str) -> str:
    return file.rpartition("/")[0]


def may_know(file: str, other: str) -> bool:
    """Return whether a file may know another one; module.c, in no room, knows all."""
    mine, others = room_of(file), room_of(other)
    return not mine or mine == others or order()[mine] < order()[others]


def test_each_room_has_its_place_and_a_header_that_says_its_story() -> None:
    rooms = {room_of(file) for file in files()} - {""}
    story = re.compile(r"/\* [A-Z][^\n]*\.\n \*\n \* [A-Za-z]")
    silent = [room for room in rooms if not story.match(files().get(f"{room}/{room}.h", ""))]

    assert rooms == {*order()}
    assert not silent


def test_a_room_has_no_more_files_than_a_story() -> None:
    names = [room_of(file) for file in files()]

    assert not [room for room in order() if names.count(room) > MOST_FILES]


def test_a_room_includes_headers_only_of_rooms_below_it() -> None:
    included = {file: INCLUDE.findall(text) for file, text in files().items()}
    wrong = [
        f"{file}: {other}"
        for file, others in included.items()
        for other in others
        if other not in files() or not may_know(file, other)
    ]

    assert not wrong
    assert find_cycles({file: {*others} for file, others in included.items()}) == []


def test_a_room_calls_and_names_only_what_rooms_below_it_define() -> None:
    wrong = [
        f"{file}: {name} of {tree().shared[name]}"
        for file in files()
        for name in tree().uses(file)
        if not may_know(file, tree().shared[name])
    ]

    assert not wrong


def test_no_files_of_a_room_call_each_other() -> None:
    assert find_cycles(tree().calls()) == []


def exists(name: str) -> bool:
    """Return whether a dotted name is a package or a module, or what a module has."""
    path, parts = ROOT / "kvmesh", name.removeprefix("kvmesh.").split(".")
    while parts and (path / parts[0]).is_dir():
        path /= parts.pop(0)
    if not parts:
        return True
    modules = [path / f"{parts[0]}{ending}" for ending in (".py", ".pyi")]
    words = {*re.findall(r"\w+", "".join(one.read_text() for one in modules if one.is_file()))}
    return any(one.is_file() for one in modules) and words.issuperset(parts[1:])


def test_comments_name_modules_and_files_that_exist() -> None:
    comments = {file: " ".join(COMMENT.findall(text)) for file, text in files().items()}
    gone = [
        f"{file}: {name}"
        for file, text in comments.items()
        for name in PYTHON_NAME.findall(text)
        if not exists(name)
    ]
    lost = [
        f"{file}: {name}"
        for file, text in comments.items()
        for name in PYTHON_FILE.findall(text)
        if not (ROOT / name).is_file()
    ]

    assert not gone
    assert not lost


def test_each_file_is_compiled_under_a_name_of_its_own() -> None:
    (module,) = settings()["setuptools"]["ext-modules"]
    sources = [f"kvmesh/native/{file}" for file in sorted(files()) if file.endswith(".c")]
    headers = [f"kvmesh/native/{file}" for file in sorted(files()) if file.endswith(".h")]

    assert module["sources"] == sources
    assert module["depends"] == headers
    assert len({Path(source).stem for source in sources}) == len(sources)
