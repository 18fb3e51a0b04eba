"""Tests of counting what a JSON text holds."""

import pytest

from kvmesh._native import scan_json
from kvmesh.core.prompts.json_size import BETWEEN, JsonSize
from tests.reference.prompts.json_size import ESCAPED, NUMBER, STRING


@pytest.mark.parametrize(
    ("text", "counted"),
    [
        (b"", (0, 0, 0, BETWEEN, 0)),
        (b'{"a": [1, -2.5e+3, true, false, null, "x"]}', (7, 2, 2, BETWEEN, 0)),
        (b"[[[]]]", (3, 0, 3, BETWEEN, 0)),
        (rb'["\"[{", "\\"]', (3, 0, 1, BETWEEN, 0)),
        (b'["ab', (2, 0, 1, STRING, 1)),
        (b'["ab\\', (2, 0, 1, ESCAPED, 1)),
        (b"[12", (1, 1, 1, NUMBER, 1)),
        (b"]]]", (0, 0, 0, BETWEEN, 0)),
    ],
)
def test_values_numbers_and_depth_are_counted_outside_of_strings(
    text: bytes, counted: tuple[int, ...]
) -> None:
    assert scan_json(text, BETWEEN, 0) == counted


@pytest.mark.parametrize("body", [b"", b" \n", b"[[[1]]]", b"RIFF{[\x00", b"\x00{{{{"])
def test_what_is_no_object_is_not_counted(body: bytes) -> None:
    size = JsonSize()

    size.feed(body)
    size.feed(b"" if body.strip() else b"\t")

    assert (size.items, size.deepest) == (0, 0)
