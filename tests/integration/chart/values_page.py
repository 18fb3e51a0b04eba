"""docs/reference/chart-values.md, made from the comments of the chart's values.yaml.

`python -m tests.integration.chart.values_page` writes it; a test says when it is behind.
"""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parents[3]
VALUES = ROOT / "deploy/helm/kvmesh/values.yaml"
PAGE = ROOT / "docs/reference/chart-values.md"
HEAD = """# Chart values
Made from [deploy/helm/kvmesh/values.yaml](../../deploy/helm/kvmesh/values.yaml) by
`python -m tests.integration.chart.values_page`. How to install: [the chart](../operate/chart.md).
A key that is not here is rejected, and so is a value of the wrong kind (`values.schema.json`).
`buckets.NAME` takes the keys of `bucketDefaults`, `engines.NAME` those of `engineDefaults`.
Keys are below their heading: `replicas` below `nats` is `nats.replicas`.
"""
FOREIGN = "nats-server"
"""The values of a subchart, which has documentation of its own."""


def page() -> str:
    """Return the whole page."""
    text = VALUES.read_text()
    root = yaml.compose(text)
    single: list[str] = []
    sections: list[str] = []
    for key, value in root.value:
        if is_block(value) and key.value != FOREIGN:
            comment = above(text, key)
            rows = [row for pair in value.value for row in rows_of(text, pair, "")]
            sections.append(f"\n## {key.value}\n{comment}\n\n{TABLE}" + "".join(rows))
        else:
            single += rows_of(text, (key, value), "")
    return HEAD + f"\n## Of the whole release\n\n{TABLE}" + "".join(single) + "".join(sections)


TABLE = "| value | default | meaning |\n|---|---|---|\n"


def rows_of(text: str, pair: tuple[Any, Any], place: str) -> Iterator[str]:
    """Yield the rows of a value and of those within it."""
    key, value = pair
    path = f"{place}.{key.value}" if place else str(key.value)
    comment = above(text, key).replace("|", "\\|")
    if is_block(value) and path != FOREIGN:
        if comment:
            yield f"| `{path}` |  | {comment} |\n"
        for inner in value.value:
            yield from rows_of(text, inner, path)
    else:
        default = "its own" if path == FOREIGN else shown(value)
        yield f"| `{path}` | {default} | {comment} |\n"


def is_block(node: Any) -> bool:
    """Return whether a value is a map with a line a key."""
    return isinstance(node, yaml.MappingNode) and not node.flow_style


def shown(node: Any) -> str:
    """Return a default as the table has it."""
    constructor = yaml.SafeLoader("")
    value = constructor.construct_object(node, deep=True)
    if value == "":
        return ""
    word = json.dumps(value, ensure_ascii=False)
    return "`" + word.replace("|", "\\|") + "`"


def above(text: str, key: Any) -> str:
    """Return the comment directly above a key, as one line."""
    lines = text.splitlines()
    number = key.start_mark.line
    found: list[str] = []
    while number and lines[number - 1].strip().startswith("#"):
        number -= 1
        found.insert(0, lines[number].strip().removeprefix("#").strip())
    if number == 0:
        return ""  # the head of the file
    return " ".join(found)


def main() -> None:
    """Write the page anew."""
    PAGE.write_text(page())


if __name__ == "__main__":
    main()
