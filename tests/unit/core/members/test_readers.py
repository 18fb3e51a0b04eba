"""Readers: the format that all who read understand, held while somebody may be unheard."""

from kvmesh.core.members.readers import MOST_TELLERS, TOLD_S, Readers, RequestedFormats
from kvmesh.formats import FIRST, FormatRange, Formats

NEW = Formats(journal=FormatRange(1, 2))


def test_the_oldest_is_written_until_all_must_have_been_heard() -> None:
    readers = Readers(NEW, hold_s=1.2)
    readers.begin(10.0)
    readers.receive("r1", NEW, 0.0)

    assert [readers.format_of("journal", now) for now in (10.0, 11.19, 11.2)] == [1, 1, 2]


def test_a_reader_that_says_now_this_and_now_that_is_an_older_one() -> None:
    readers = Readers(NEW, hold_s=1.2)

    updates = [
        readers.receive("r1", said, now) for now, said in enumerate((FIRST, NEW, NEW, FIRST, NEW))
    ]
    written = [readers.format_of("journal", now) for now in (4.0, 5.1, 5.2)]

    assert (updates, written) == ([True, True, False, True, True], [1, 1, 2])


def test_who_keeps_a_format_from_being_written_is_named() -> None:
    readers = Readers(NEW, hold_s=1.2)
    readers.receive("r1", NEW, 0.0)
    nobody = readers.oldest("journal", 0.0)
    readers.receive("r2", FIRST, 0.0)
    live = readers.oldest("journal", 0.0)
    readers.forget("r2", 0.0)

    assert (nobody, live) == ("", "r2")
    assert [readers.oldest("journal", now) for now in (1.1, 1.2)] == ["r2", ""]
    assert Readers(NEW).oldest("journal", 0.0) == ""


def test_the_lowest_told_lately_counts() -> None:
    reported = RequestedFormats(1, 3)

    first = reported.take("r1", 3, 0.0), reported.take("r2", 2, 1.0), reported.take("r1", 3, 2.0)
    assert (first, reported.take("r1", 3, 1.0 + TOLD_S)) == ((3, 2, 2), 3)


def test_names_in_commands_cannot_fill_the_memory() -> None:
    reported = RequestedFormats(1, 2)
    reported.take("first", 1, 0.0)

    assert [reported.take(f"r{number}", 2, 1.0) for number in range(MOST_TELLERS)][-2:] == [1, 2]
