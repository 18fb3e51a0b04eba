from math import inf, nan

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kvmesh import bounds
from kvmesh.bounds import clamped, counted, is_name, real_number, shown, whole_number

NUMBERS = [
    bounds.Tokens,
    bounds.Count,
    bounds.Priority,
    bounds.Weight,
    bounds.Temperature,
    bounds.Seconds,
    bounds.Figure,
    bounds.Share,
    bounds.Epoch,
    bounds.Sequence,
]


@pytest.mark.parametrize("kind", NUMBERS, ids=str)
def test_no_type_takes_a_number_that_overflows(kind: object) -> None:
    for value in (2**64, -(2**63) - 1, 1e30, 1e308, nan, inf, -inf, True, "1"):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(value, kind)
    for text in (b"9" * 20, b"9" * 400, b"9" * 5000, b"1e400", b"-1e400"):
        with pytest.raises(msgspec.ValidationError):
            msgspec.json.decode(text, type=kind)


@pytest.mark.parametrize(
    ("kind", "least", "most"),
    [
        (bounds.Tokens, 0, 2**31 - 1),
        (bounds.Priority, -(2**15), 2**15),
        (bounds.Epoch, 0, 2**62),
        (bounds.Sequence, 0, 2**62),
    ],
)
def test_both_ends_of_a_range_travel_and_their_neighbours_do_not(
    kind: object, least: int, most: int
) -> None:
    for value in (least, most):
        assert msgspec.msgpack.decode(msgspec.msgpack.encode(value), type=kind) == value
    for value in (least - 1, most + 1):
        with pytest.raises(msgspec.ValidationError):
            msgspec.convert(value, kind)


@pytest.mark.parametrize(("text", "value"), [("0", 0), ("-7", -7), ("+7", 7), ("007", 7)])
def test_whole_numbers_are_read(text: str, value: int) -> None:
    assert whole_number(text, -10, 10) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        " 1",
        "1_0",
        "\u0661",
        "0x1",
        "1.0",
        "1e1",
        "nan",
        "11",
        "-11",
        "9" * 20,
        "9" * 10_000,
        "1\n",
    ],
)
def test_nothing_else_is_a_whole_number(text: str) -> None:
    assert whole_number(text, -10, 10) is None


@pytest.mark.parametrize(
    ("text", "value"), [("0", 0.0), ("1.5", 1.5), (".5", 0.5), ("5.", 5.0), ("1e1", 10.0)]
)
def test_real_numbers_are_read(text: str, value: float) -> None:
    assert real_number(text, 0.0, 10.0) == value


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "1_0",
        "\u0661",
        "nan",
        "inf",
        "-1",
        "1e2",
        "1e400",
        "1.7e308",
        "0" * 41,
        "1 ",
        "1e",
        "1\n",
    ],
)
def test_nothing_else_is_a_real_number(text: str) -> None:
    assert real_number(text, 0.0, 10.0) is None


@given(st.floats() | st.integers())
@example(2**31 + 1)
def test_what_is_clamped_is_within_the_bounds_and_else_unchanged(value: float) -> None:
    kept = clamped(value, -5, 2**31)

    assert -5 <= kept <= 2**31
    if -5 <= value <= 2**31:
        assert kept == int(value)


@pytest.mark.parametrize("text", ["a", "/models/Qwen 3", "é😀", "x" * 512])
def test_names_are_printable_and_short(text: str) -> None:
    assert is_name(text)


@pytest.mark.parametrize(
    "text", ["", "x" * 513, "a\x00", "a\nb", "\x7f", "\x85", "\ud800", "\u2028"]
)
def test_nothing_else_is_a_name(text: str) -> None:
    assert not is_name(text)


@pytest.mark.parametrize("value", ["x" * 10**6, 10**5000, -(10**5000)], ids=["text", "+", "-"])
def test_what_is_shown_is_short(value: str | float) -> None:
    assert len(shown(value)) < 100


def test_short_values_are_shown_whole() -> None:
    assert (shown("a\n"), shown(7), shown(1.5)) == ("'a\\n'", "7", "1.5")


def test_a_number_agrees_with_its_noun() -> None:
    said = [counted(number, "worker") for number in (0, 1, 2, 12_000)]

    assert said == ["0 workers", "1 worker", "2 workers", "12,000 workers"]
    assert [counted(number, "batch", "batches") for number in (1, 2)] == ["1 batch", "2 batches"]
