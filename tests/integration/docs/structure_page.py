"""The tables of docs/contribute/structure.md, made from docstrings, headers and import contracts.

`python -m tests.integration.docs.structure_page` writes them; a test says when they are behind.
"""

import ast
import re
import tomllib
from pathlib import Path

from benchmarks.house.figures import as_rows, read_record
from benchmarks.house.tree import PACKAGES

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs/contribute/structure.md"


def packages() -> list[str]:
    """Return every package with the first line of its docstring."""
    lines = ["| package | in a line |", "|---|---|"]
    for package in PACKAGES:
        for init in sorted(package.glob("*/**/__init__.py")):
            doc = ast.get_docstring(ast.parse(init.read_text())) or ""
            lines.append(f"| `{name_of(package, init.parent)}` | {doc.splitlines()[0]} |")
    return lines


def name_of(package: Path, folder: Path) -> str:
    """Return what the page calls a folder: below kvmesh without its name."""
    below = package if package.name == "kvmesh" else package.parent
    return folder.relative_to(below).as_posix()


def layers() -> list[str]:
    """Return the layers of each contract of lint-imports."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())
    lines = ["| inside | from top to bottom |", "|---|---|"]
    for contract in settings["tool"]["importlinter"]["contracts"]:
        if contract["type"] == "layers":
            order = " → ".join(contract["layers"]).replace(" | ", ", ")
            lines.append(f"| `{contract['containers'][0]}` | {order} |")
    return lines


def rooms() -> list[str]:
    """Return the rooms of the compiled core, from top to bottom, with the first line of each."""
    settings = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["kvmesh"]["native"]
    lines = ["| order | room | in a line |", "|---|---|---|"]
    for number, layer in enumerate(settings["rooms"], start=1):
        for room in layer.split(" | "):
            header = (ROOT / f"kvmesh/native/{room}/{room}.h").read_text()
            lines.append(f"| {number} | `{room}` | {header.splitlines()[0].removeprefix('/* ')} |")
    return lines


def figures() -> list[str]:
    """Return the house's figures as they are recorded, beside those before."""
    rows = as_rows(read_record())
    head, *lines = (f"| {' | '.join(row)} |" for row in rows)
    return [head, "|---|---|---|", *lines]


def render(page: str) -> str:
    """Return the page with its tables as they should be."""
    for table in (packages(), layers(), rooms(), figures()):
        found = re.search(rf"^{re.escape(table[0])}\n(?:\|.*\n)*", page, flags=re.MULTILINE)
        assert found is not None, f"{PAGE}: no table begins with {table[0]}"
        page = page[: found.start()] + "\n".join(table) + "\n" + page[found.end() :]
    return page


if __name__ == "__main__":
    PAGE.write_text(render(PAGE.read_text()))
