"""Values, their schema and their page say the same."""

import json
from collections.abc import Iterator
from typing import Any

import yaml

from tests.integration.chart.rendering import CHART
from tests.integration.chart.values_page import FOREIGN, PAGE, VALUES, above, page

SCHEMA: dict[str, Any] = json.loads((CHART / "values.schema.json").read_text())


def resolved(schema: dict[str, Any]) -> dict[str, Any]:
    name = schema.get("$ref", "").rpartition("/")[2]
    return dict(SCHEMA["$defs"][name]) if name else schema


def unlike(values: Any, schema: dict[str, Any], place: str) -> Iterator[str]:
    """Yield the places where values and schema have other keys."""
    found = resolved(schema)
    properties = found.get("properties")
    if place == FOREIGN or values == {} or not isinstance(values, dict) or properties is None:
        return
    if found.get("additionalProperties", True) is not False and place:
        yield f"{place}: the schema takes any key"
    for key in {*values} ^ {*properties} - {"global"}:
        yield f"{place}.{key}: in one of both only"
    for key in {*values} & {*properties}:
        yield from unlike(values[key], properties[key], f"{place}.{key}".removeprefix("."))


def test_the_schema_has_every_value_and_no_other() -> None:
    assert sorted(unlike(yaml.safe_load(VALUES.read_text()), SCHEMA, "")) == []


def test_every_value_of_the_first_levels_says_what_it_is() -> None:
    text = VALUES.read_text()
    silent = [key.value for key, _ in yaml.compose(text).value if not above(text, key)]

    # The first one has the file's head above its own comment.
    assert silent == []


def test_the_page_of_values_is_made_from_them() -> None:
    assert PAGE.read_text() == page(), "python -m tests.integration.chart.values_page"
