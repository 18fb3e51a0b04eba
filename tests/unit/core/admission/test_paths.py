import json
from collections import Counter
from pathlib import Path

import pytest

from kvmesh.core.admission.access import role_for
from kvmesh.core.admission.paths import OWNERS, ROWS, find_row

PAGE = Path(__file__).parents[4] / "docs/reference/paths.md"
ROUTES = Path(__file__).parents[3] / "fixtures/engines/engine_routes.json"
LETTERS = {"vllm": "v", "sglang": "s", "llama.cpp": "l"}
ENGINES = {"v": "vLLM", "s": "SGLang", "l": "llama.cpp", "o": "OpenAI's API"}


def table() -> str:
    """Return the table of the page, made of the rows."""
    lines = ["| path | method | engines | role | who answers |", "|---|---|---|---|---|"]
    for row in sorted(ROWS, key=lambda one: (one.path.replace("{}", "~"), sorted(one.methods))):
        methods = ", ".join(sorted(row.methods - {"HEAD"}))
        engines = ", ".join(ENGINES[one] for one in row.engines)
        answer = f"`{row.status}`: {row.why}" if row.status else f"{row.owner}"
        path = row.path.replace("{}", "{id}")
        lines.append(f"| `{path}` | {methods} | {engines} | `{row.role or 'none'}` | {answer} |")
    return "\n".join(lines)


def owners() -> str:
    """Return the list of owners of the page."""
    return "\n".join(f"- **{name}**: {text}" for name, text in OWNERS.items())


def test_the_page_is_made_of_the_table() -> None:
    text = PAGE.read_text(encoding="utf-8")

    assert table() in text
    assert owners() in text


@pytest.mark.parametrize("engine", json.loads(ROUTES.read_text()), ids=lambda one: one["engine"])
def test_every_route_in_the_sources_of_an_engine_has_a_row(
    engine: dict[str, str | list[str]],
) -> None:
    letter, text = LETTERS[str(engine["engine"])], PAGE.read_text(encoding="utf-8")
    for route in engine["routes"]:
        path, _, method = route.partition(" ")
        row = find_row(method, path.replace("{}", "an-id"))
        assert row is not None, route
        assert letter in row.engines, route
        assert f"| `{path.replace('{}', '{id}')}` |" in text, route


def test_no_request_has_two_rows_and_no_path_two_roles() -> None:
    asked = Counter((method, row.path) for row in ROWS for method in row.methods)
    roles = {(row.path, row.role) for row in ROWS}

    assert [one for one, count in asked.items() if count > 1] == []
    assert len({path for path, _ in roles}) == len(roles)
    assert {row.owner for row in ROWS} <= set(OWNERS)


def test_every_row_has_the_role_of_the_table_in_force() -> None:
    for row in ROWS:
        assert role_for(row.path.replace("{}", "an-id")) == row.role, row


def test_who_refuses_says_why() -> None:
    for row in ROWS:
        assert bool(row.status) == bool(row.why), row
        assert row.status or row.owner != "refused"


@pytest.mark.parametrize(
    ("method", "path", "row"),
    [
        ("POST", "/v1/files", "/v1/files"),
        ("GET", "/v1/files/f-1/content", "/v1/files/{}/content"),
        ("HEAD", "/v1/files/f-1", "/v1/files/{}"),
        ("GET", "/v1/files/", None),
        ("GET", "/v1/files/a/b", None),
        ("PATCH", "/v1/files/a", None),
        ("GET", "/v1/models/org/name", None),
        ("GET", "/v1/of/tomorrow", None),
    ],
)
def test_a_path_with_an_id_is_found_by_what_is_around_it(
    method: str, path: str, row: str | None
) -> None:
    found = find_row(method, path)

    assert (found and found.path) == row
