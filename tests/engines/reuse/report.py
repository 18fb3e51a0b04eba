"""What was measured of real engines, as tables: printed, and kept in a file of the docs."""

import os
from pathlib import Path
from typing import Final, Literal

Table = Literal["runs", "in flight", "forms"]

HEADERS: Final[dict[Table, tuple[str, str]]] = {
    "runs": (
        "One at a time",
        """\
| engine | run | requests | exact | too much | too little | tokens reused | with reuse |
|---|---|---|---|---|---|---|---|""",
    ),
    "in flight": (
        "Many in flight",
        """\
| engine | in flight | requests | exact | within a block | mean error, tokens \
| tokens reused | of those reused one at a time |
|---|---|---|---|---|---|---|---|""",
    ),
    "forms": (
        "By form of request",
        """\
| form | engine | requests | exact | tokens reused | not foretold |
|---|---|---|---|---|---|""",
    ),
}
KEPT_IN: Final = "KVMESH_ENGINES_REPORT"
"""Names the file, in the environment. Rows of engines that did not run stay as they are."""

INTRODUCTION: Final = """\
# Reuse of real engines
Predicted against reused tokens, written by `make test-engines`. Engines run on the CPU with tiny
models of random weights and caches so small that they must evict, but for "ample cache". Requests
go through two router replicas, sidecars and NATS ("mesh"), or through one router without NATS
("alone"), with many in flight through a meta-router over the mesh; all at default settings. A
request is exact if the tokens that the router foretold are the `cached_tokens` of the answer. "Too
much" and "too little" count the others; "tokens reused" are of all prompts. The goal with many
in flight is 95 % within a block at 16 with an ample cache. Rows of Gemma 3, LFM2
and two ranks, and of vLLM's forms, are of 2026-11-23, when routers believed events alone.
"""


class Report:
    """Rows of the tables; those with the same first two cells replace each other. What stands in a
    file behind them stays there.
    """

    def __init__(self) -> None:
        self._behind = ""
        self._rows: dict[Table, dict[str, str]] = {name: {} for name in HEADERS}

    def add(self, table: Table, row: str) -> None:
        """Take a row of Markdown."""
        self._rows[table][_key(row)] = row

    def text(self) -> str:
        """Return the tables that have rows."""
        parts = [INTRODUCTION]
        for name, (title, header) in HEADERS.items():
            if rows := self._rows[name]:
                parts.append("\n".join([f"## {title}", header, *rows.values(), ""]))
        return "\n".join(parts) + self._behind

    def read(self, text: str) -> None:
        """Take the rows of what `text` once returned."""
        titles: dict[str, Table] = {title: name for name, (title, _) in HEADERS.items()}
        table: Table | None = None
        lines = text.splitlines(keepends=True)
        for number, line in enumerate(lines):
            if line.startswith("## "):
                table = titles.get(line.removeprefix("## ").strip())
                if table is None:
                    self._behind = "\n" + "".join(lines[number:])
                    return
            elif table and line.startswith("| ") and line.strip() not in HEADERS[table][1]:
                self.add(table, line.strip())

    def keep(self) -> None:
        """Put the rows among those of the file that is named, if any."""
        named = os.environ.get(KEPT_IN)
        if not named:
            return
        path = Path(named)
        kept = Report()
        if path.exists():
            kept.read(path.read_text(encoding="utf-8"))
        for table, rows in self._rows.items():
            for row in rows.values():
                kept.add(table, row)
        path.write_text(kept.text(), encoding="utf-8")


def _key(row: str) -> str:
    return "|".join(row.split("|")[1:3])
