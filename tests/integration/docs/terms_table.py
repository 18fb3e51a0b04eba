"""What is made of the table of terms, for C and for people.

`python -m tests.integration.docs.terms_table` writes it; a test says when it is behind.
"""

from pathlib import Path
from typing import Final

from kvmesh.core.cost.terms import TERMS, CandidateTerms

ROOT: Final = Path(__file__).parents[3]
HEADER: Final = ROOT / "kvmesh/native/insight/terms_table.h"
PAGE: Final = ROOT / "docs/operate/tuning.md"
TOP: Final = "| term of `candidate` | unit | is |\n|---|---|---|\n"
_FIELDS: Final = {"int": "COUNT", "float": "NUMBER", "str": "TEXT"}


def header() -> str:
    """Return the C header: the terms of workers and requests, and the fields of a candidate."""
    parts = [
        "/* Made of kvmesh/core/cost/terms.py by `make config`: not to be edited. */",
        "#pragma once",
    ]
    kinds = {"WORKER_TERMS": "worker", "REQUEST_TERMS": "request", "SEEN_TERMS": "seen"}
    for macro, kind in kinds.items():
        rows = [f"TERM({name}, {one.c})" for name, one in TERMS.items() if one.kind == kind]
        parts += ["", _macro(f"{macro}(TERM)", rows)]
    types = CandidateTerms.__annotations__
    fields = [f"{_FIELDS[_name(types[name])]}({name})" for name in (*TERMS,)[1:]]
    parts += ["", _macro("CANDIDATE_FIELDS(COUNT, NUMBER, TEXT)", fields)]
    parts += ["", "/* Of a candidate: these, and its worker's name before. */"]
    parts += [f"enum {{ CANDIDATE_ARGUMENTS = {len(TERMS)} }};", ""]
    return "\n".join(parts)


def _name(kind: object) -> str:
    return kind.__name__ if isinstance(kind, type) else str(kind)


def _macro(name: str, rows: list[str]) -> str:
    return " \\\n    ".join([f"#define {name}", *rows])


def page() -> str:
    """Return the documentation's page with the table of terms in it."""
    text = PAGE.read_text()
    first = text.index(TOP) + len(TOP)
    end = text.index("\n\n", first) + 1
    rows = [f"| `{name}` | {one.unit} | {one.meaning} |\n" for name, one in TERMS.items()]
    return text[:first] + "".join(rows) + text[end:]


if __name__ == "__main__":
    HEADER.write_text(header())
    PAGE.write_text(page())
