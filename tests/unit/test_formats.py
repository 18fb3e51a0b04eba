"""Formats: what a process reads and writes, and the highest that all read."""

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.formats import (
    FIRST,
    KINDS,
    MAX_FORMAT,
    OWN,
    FormatRange,
    Formats,
    unread_by,
    writable,
)

RANGES = st.tuples(st.integers(1, 6), st.integers(0, 3)).map(
    lambda pair: FormatRange(pair[0], pair[0] + pair[1])
)
READERS = st.lists(RANGES.map(lambda one: Formats(journal=one)), max_size=4)


@given(RANGES, READERS)
def test_the_highest_format_that_all_read_is_written_or_else_the_oldest(
    mine: FormatRange, readers: list[Formats]
) -> None:
    common = [
        number
        for number in range(mine.oldest, mine.newest + 1)
        if all(number in one.journal for one in readers)
    ]

    chosen = writable("journal", readers, Formats(journal=mine))

    assert chosen == (max(common) if common else mine.oldest)
    assert all(unread_by("journal", chosen, one) == "" for one in readers) is bool(
        common or not readers
    )


def test_each_kind_has_its_own_range() -> None:
    reported = Formats(
        FormatRange(1, 2),
        FormatRange(2, 3),
        FormatRange(3, 4),
        FormatRange(4, 5),
        FormatRange(5, 6),
    )

    assert [reported.of(kind).oldest for kind in KINDS] == [1, 2, 3, 4, 5]
    assert writable("bookings", [FIRST]) == 1
    assert writable("manifest", [reported, reported], reported) == 5


def test_what_is_not_read_is_named_with_what_is() -> None:
    assert unread_by("snapshot", 1, OWN) == ""
    assert unread_by("snapshot", 3, Formats(snapshot=FormatRange(1, 2))) == (
        "snapshot format 3 is not among those read, 1 to 2"
    )
    assert unread_by("journal", 9, FIRST) == "journal format 9 is not among those read, 1"


def test_formats_of_an_unknown_version_decode_and_what_they_leave_out_is_the_first() -> None:
    newer = msgspec.msgpack.encode({"journal": [2, 3, "more"], "colour": 7})

    reported = msgspec.msgpack.decode(newer, type=Formats)

    assert reported == Formats(journal=FormatRange(2, 3))


@pytest.mark.parametrize(
    "reported", [[0, 1], [2, 1], [1, MAX_FORMAT + 1], [1, 10**15], ["1", 1], 1, [-1, 1]]
)
def test_a_range_out_of_bounds_does_not_decode(reported: object) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.msgpack.decode(msgspec.msgpack.encode({"journal": reported}), type=Formats)
