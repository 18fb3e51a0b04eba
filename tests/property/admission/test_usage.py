"""Tables of usage against a naive sum: bounded, and nothing of what was used is lost."""

from collections import Counter
from typing import Final

from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.admission.usage import (
    BY,
    By,
    Consumer,
    UsageRow,
    UsageSums,
    UsageTable,
    UsageWindow,
    grouped,
)
from kvmesh.core.admission.usage_book import UsageBook, summed

MOST: Final = 5
NOW: Final = 1_764_000_000.0
NAMES: Final = st.sampled_from(("", "a", "b", "c", "d", "e", "f", "g"))
SUMS: Final = st.builds(
    UsageSums, *(st.integers(0, 50) for _ in range(len(UsageSums.__struct_fields__)))
)
ROWS: Final = st.lists(
    st.builds(UsageRow, st.builds(Consumer, NAMES, NAMES, NAMES, NAMES, NAMES), SUMS), max_size=60
)


def naive(rows: list[UsageRow]) -> Counter[str]:
    found: Counter[str] = Counter()
    for row in rows:
        for name in UsageSums.__struct_fields__:
            found[name] += getattr(row.usage, name)
    return found


def as_counter(*all_: UsageSums) -> Counter[str]:
    return naive([UsageRow(Consumer(), one) for one in all_])


@given(rows=ROWS, by=st.sampled_from(BY))
def test_a_table_is_bounded_and_its_rows_and_others_are_all(rows: list[UsageRow], by: By) -> None:
    table = UsageTable(MOST)
    for row in rows:
        table.add(row.who.tenant, getattr(row.who, by), row.usage)

        assert len(table) <= MOST
        assert len(table) == len(list(table.rows()))

    kept = [sums for _, _, sums in table.rows()]
    assert as_counter(*kept, table.others) == naive(rows)


@given(rows=ROWS)
def test_whoever_makes_up_names_pushes_out_its_own(rows: list[UsageRow]) -> None:
    table = UsageTable(MOST)
    table.add("quiet", "kept", UsageSums(requests=1))
    for number, row in enumerate(rows):
        table.add("loud", f"{number}", row.usage)

    assert ("quiet", "kept", UsageSums(requests=1)) in list(table.rows())


@given(batches=st.lists(ROWS, max_size=4), by=st.sampled_from(BY))
def test_windows_have_what_was_used_of_each_name(batches: list[list[UsageRow]], by: By) -> None:
    window = UsageWindow(0, MOST)
    for rows in batches:
        window.add(grouped(rows))

    rows = [row for batch in batches for row in batch]
    assert as_counter(window.total) == naive(rows)
    named = [row for row in rows if by == "tenant" or getattr(row.who, by)]
    found = summed([window], by, None, NOW)
    assert found.others is not None
    assert as_counter(*(sums for _, _, sums in found.rows), found.others) == naive(named)


@given(rows=ROWS, flushes=st.lists(st.booleans(), min_size=60, max_size=60))
def test_a_sibling_that_reads_the_record_knows_as_much(
    rows: list[UsageRow], flushes: list[bool]
) -> None:
    one, other = UsageBook("b", "r0", 1), UsageBook("b", "r1", 1)
    one.keep_unsent()
    for row, flush in zip(rows, flushes, strict=False):
        one.count(row.who, row.usage)
        if flush:
            one.flush(NOW)
    one.flush(NOW)

    for batch in one.unsent.values():
        assert other.receive("r0", batch.data, NOW) == ""
        assert one.receive("r0", batch.data, NOW) == ""  # what it has counted itself

    for by in BY:
        mine, theirs = (
            summed(book.windows.since(NOW, NOW), by, None, NOW) for book in (one, other)
        )
        assert (mine.rows, mine.total) == (theirs.rows, theirs.total)
    assert one.statistics().unsent == sum(row.usage.requests for row in rows)
