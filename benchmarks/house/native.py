"""Reads the compiled core: its files, and who names what of whom.

A name counts as used wherever it stands outside comments and texts, but where it is the file's own.
"""

import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Final

from benchmarks.house.imports import Graph

NO_CODE: Final = re.compile(r'/\*.*?\*/|"(?:\\.|[^"\\\n])*"', re.DOTALL)
COMMENT: Final = re.compile(r"/\*.*?\*/|//[^\n]*", re.DOTALL)
INCLUDE: Final = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
NAMED: Final = r"[ *](\w+)(?:\[\w*\])* ?[=;(]"
SHARED: Final = re.compile(
    r"^(?!(?:static|typedef|extern|struct|enum|union)\b)[A-Za-z_][\w *]*" + NAMED, re.MULTILINE
)
OWN: Final = re.compile(r"^static [\w *]*?" + NAMED, re.MULTILINE)
LOCAL: Final = re.compile(r"\b(?!return\b)[A-Za-z_]\w*(?: +\**| *\*+)(\w+)(?= ?[,;=)\[])")
USED: Final = re.compile(r"(?<![\w.>])[a-zA-Z_]\w*\b")
FUNCTION: Final = re.compile(
    r"^[A-Za-z_][\w *]*[ *](\w+)\(([^;{}]*)\)\s*\{\n(.*?)^\}", re.MULTILINE | re.DOTALL
)


class NativeTree:
    """The files below a folder of C, by their path below it, and what they share."""

    def __init__(self, root: Path) -> None:
        self.files: Mapping[str, str] = {
            path.relative_to(root).as_posix(): path.read_text()
            for path in sorted(root.rglob("*.[ch]"))
        }
        self.shared: Mapping[str, str] = {
            name: file
            for file, text in self.files.items()
            if file.endswith(".c")
            for name in SHARED.findall(NO_CODE.sub("", text))
        }

    def uses(self, file: str) -> Iterator[str]:
        """Yield the names of other files that a file uses."""
        code = NO_CODE.sub("", self.files[file])
        code = re.sub(r"^extern [^;]*;|^#.*$", "", code, flags=re.MULTILINE)
        if file.endswith(".h"):  # declarations use nothing, functions in place do
            code = "".join(re.findall(r"^static inline .*?^}", code, re.MULTILINE | re.DOTALL))
        own = {*OWN.findall(code), *LOCAL.findall(code)}
        for name in sorted({*USED.findall(code)} - own):
            if self.shared.get(name, file) != file:
                yield name

    def calls(self) -> Graph:
        """Return which file names what of which. Types do not count: whoever checks for one names
        the file whose methods call it.
        """
        return {
            file: {self.shared[name] for name in self.uses(file) if not name.endswith("_type")}
            for file in self.files
            if file.endswith(".c")
        }

    def functions(self) -> Iterator[tuple[int, int]]:
        """Yield the lines and the parameters of each function."""
        for file, text in self.files.items():
            if file.endswith(".c"):
                for _, arguments, body in FUNCTION.findall(text):
                    names = [one for one in arguments.split(",") if one.strip() not in ("", "void")]
                    yield body.count("\n") + 2, len(names)
