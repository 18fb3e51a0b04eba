"""The faults of `faults.toml`, a table a room.

`under` is the folder of the room's files, `tests` what a developer runs after a change there. A
fault is a file, its text before and after, and tests of its own where the room's are not those.
"""

import tomllib
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parents[2]
TABLE: Final = Path(__file__).with_name("faults.toml")


@dataclass(frozen=True)
class Fault:
    """One fault; `file` and `tests` are paths below the tree."""

    room: str
    file: str
    before: str
    after: str
    tests: tuple[str, ...]

    def __str__(self) -> str:
        return f"{self.file}: {self.before!r} -> {self.after!r}"

    def plant(self, tree: Path) -> None:
        """Write the fault into a tree. Raises `ValueError`: its text is not there, or not once."""
        path = tree / self.file
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if (found := text.count(self.before)) != 1:
            raise ValueError(f"{self}: the text before is there {found} times, not once")
        path.write_text(text.replace(self.before, self.after), encoding="utf-8")


def read_faults(text: str | None = None) -> list[Fault]:
    """Return the faults of the table, or of a text like it."""
    rooms = tomllib.loads(TABLE.read_text(encoding="utf-8") if text is None else text)
    return [
        Fault(room, f"{table['under']}/{file}", before, after, tuple(*tests or [table["tests"]]))
        for room, table in rooms.items()
        for file, before, after, *tests in table["faults"]
    ]
