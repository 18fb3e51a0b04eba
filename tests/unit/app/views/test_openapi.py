"""The OpenAPI document: as the specification wants it, complete, and the file as it is made."""

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from kvmesh.app.views.openapi import PAGES, document
from kvmesh.core.admission.paths import ROWS

FILE = Path(__file__).parents[4] / "docs/reference/openapi.json"
WHOLE: dict[str, Any] = json.loads(document())


def test_the_file_is_what_is_served() -> None:
    assert FILE.read_bytes() == document(), "docs/reference/openapi.json: make config"


def test_it_is_an_openapi_document() -> None:
    validator = pytest.importorskip("openapi_spec_validator", reason="not installed")

    validator.validate(WHOLE)


def test_its_schemas_are_schemas() -> None:
    for name, schema in WHOLE["components"]["schemas"].items():
        jsonschema.Draft202012Validator.check_schema(schema)
        assert "title" in schema, name


def test_what_the_router_answers_itself_is_in_it() -> None:
    own = {row.path.replace("{}", "…"): row for row in ROWS if row.owner in {"router", "prefix"}}
    described = {
        "/".join("…" if part.startswith("{") else part for part in path.split("/")): methods
        for path, methods in WHOLE["paths"].items()
    }
    for path, row in own.items():
        assert {one.lower() for one in row.methods} - {"head"} == described[path].keys(), path


def test_operations_have_names_of_their_own_and_parameters_of_their_path() -> None:
    names = [one["operationId"] for methods in WHOLE["paths"].values() for one in methods.values()]
    assert len({*names}) == len(names)
    for page in PAGES:
        in_path = {part[1:-1] for part in page.path.split("/") if part.startswith("{")}
        assert in_path <= {one.name for one in page.asked}, page.path
    login = WHOLE["paths"]["/login"]["post"]
    assert login["requestBody"]["content"].keys() == {
        "application/json",
        "application/x-www-form-urlencoded",
    }
    assert WHOLE["paths"]["/health"]["get"]["security"] == []
    assert WHOLE["paths"]["/workers"]["post"]["x-kvmesh-role"] == "operate"
