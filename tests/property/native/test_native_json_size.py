"""The compiled count of a JSON text against the naive one, and both against the decoded text."""

import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh import _native
from kvmesh.core.prompts.json_size import BETWEEN, JsonSize
from tests.reference.prompts.json_size import NUMBER, scan_json

SYMBOLS = [
    b'"',
    b"\\",
    b'\\"',
    b"{",
    b"[",
    b"}",
    b"]",
    b"1",
    b"-",
    b".",
    b"e",
    b"t",
    b"n",
    b" ",
    b",",
]
garbage = st.lists(st.sampled_from([*SYMBOLS, b"\xff", b"x"]), max_size=40).map(b"".join)
leaves = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
)
values = st.recursive(
    leaves, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=30
)


def naive(value: Any) -> tuple[int, int, int]:
    """Return values, numbers and depth of decoded JSON."""
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return 1, 0, 0
    if isinstance(value, (int, float)):
        return 0, 1, 0
    inner = [naive(one) for one in (value.values() if isinstance(value, dict) else value)]
    own = 1 + (len(value) if isinstance(value, dict) else 0)
    return (
        own + sum(one[0] for one in inner),
        sum(one[1] for one in inner),
        1 + max((one[2] for one in inner), default=0),
    )


@given(garbage, st.integers(BETWEEN, NUMBER), st.integers(0, 5))
def test_any_bytes_are_counted_alike(data: bytes, state: int, depth: int) -> None:
    assert _native.scan_json(data, state, depth) == scan_json(data, state, depth)


@given(st.dictionaries(st.text(), values), st.booleans(), st.lists(st.integers(0, 400)))
def test_a_text_in_any_pieces_counts_as_what_it_decodes_to(
    value: dict[str, Any], ascii_only: bool, cuts: list[int]
) -> None:
    text = json.dumps(value, ensure_ascii=ascii_only).encode("utf-8", "surrogatepass")
    size = JsonSize()

    places = [0, *sorted(cuts), len(text)]
    for begin, end in itertools.pairwise(places):
        size.feed(text[begin:end])

    assert (size.values, size.numbers, size.deepest) == naive(value)


def test_misuse_is_an_error() -> None:
    scan: Any = _native.scan_json
    for arguments in ((), (b"",), ("text", 0, 0), (b"", "0", 0), (b"", 0, None)):
        with pytest.raises(TypeError):
            scan(*arguments)
