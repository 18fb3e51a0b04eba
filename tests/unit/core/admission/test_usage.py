"""Windows of usage: where a batch counts, what is kept, which answer a time."""

import pytest

from kvmesh.bounds import MAX_COUNT
from kvmesh.core.admission import usage
from kvmesh.core.admission.usage import (
    DAY_S,
    EVICTED,
    HOUR_S,
    KEPT,
    MINUTE_S,
    Consumer,
    UsageRow,
    UsageSums,
    UsageTable,
    UsageWindow,
    UsageWindows,
    grouped,
)

NOW = 1_764_028_805.0  # 5 s behind a full hour, midnight UTC


def one(requests: int = 1) -> usage.Groups:
    return grouped([UsageRow(Consumer("t"), UsageSums(requests=requests))])


def total(windows: list[UsageWindow]) -> int:
    return sum(window.total.requests for window in windows)


def test_what_is_kept_of_a_minute_an_hour_and_a_day() -> None:
    assert KEPT == {60: 2, 3600: 25, 86_400: 8}
    assert (MINUTE_S, HOUR_S, DAY_S) == (60, 3600, 86_400)


@pytest.mark.parametrize(
    ("ago_s", "length_s"),
    [(0, 60), (60, 60), (130, 3600), (20 * 3600, 3600), (26 * 3600, 86_400), (90 * DAY_S, 86_400)],
)
def test_the_finest_windows_answer_that_reach_back_so_far(ago_s: int, length_s: int) -> None:
    windows = UsageWindows()
    windows.add(one(), NOW, NOW)

    found = windows.since(NOW - ago_s, NOW)

    assert [window.since for window in found] == [int(NOW) // length_s * length_s]
    assert total(found) == 1


def test_batches_count_where_they_ended_and_not_at_all_when_too_old() -> None:
    windows = UsageWindows()
    for ago_s in (0, 70, 3_700, 30 * HOUR_S, 9 * DAY_S):
        windows.add(one(), NOW - ago_s, NOW)

    assert total(windows.since(NOW, NOW)) == 1
    assert total(windows.since(NOW - 60, NOW)) == 1
    assert total(windows.since(NOW - 2 * HOUR_S, NOW)) == 3
    assert total(windows.since(NOW - 24 * HOUR_S, NOW)) == 3
    assert total(windows.since(NOW - 30 * HOUR_S, NOW)) == 4
    assert total(windows.since(0.0, NOW)) == 4


def test_old_windows_go_and_a_clock_that_is_ahead_counts_as_now() -> None:
    windows = UsageWindows()
    windows.add(one(), NOW, NOW)
    later = NOW + 3 * HOUR_S
    windows.add(one(), later + 1e6, later)

    assert total(windows.since(later, later)) == 1
    assert total(windows.since(later - 130, later)) == 1
    assert total(windows.since(NOW, later)) == 2
    windows.add(one(), later + 9 * DAY_S, later + 9 * DAY_S)
    assert total(windows.since(0.0, later + 9 * DAY_S)) == 1


def test_sums_grow_to_a_bound_and_tokens_are_prompt_and_output() -> None:
    sums = UsageSums(1, 1, 5, 4, 2, 1)
    sums.add(UsageSums(*[MAX_COUNT] * 6))

    assert sums == UsageSums(*[MAX_COUNT] * 6)
    assert UsageSums(1, 1, 5, 4, 2, 1).tokens == 7


def test_rows_give_way_some_at_a_time_of_the_tenants_that_have_most() -> None:
    assert EVICTED == 32
    table = UsageTable(100)
    for number in range(100):
        table.add(f"t{number}", "", UsageSums(requests=1))
    table.add("t0", "", UsageSums(requests=1))
    table.add("new", "", UsageSums(requests=1))

    assert len(table) == 100 - EVICTED + 1
    assert table.others.requests == EVICTED
    assert [row[2].requests for row in table.rows("t0")] == [2]
    assert list(table.rows("t1")) == []


def test_a_tenant_gives_way_by_half_of_its_rows_at_most() -> None:
    table = UsageTable(6)
    for number in range(4):
        table.add("loud", f"{number}", UsageSums(requests=1))
    for number in range(2):
        table.add("quiet", f"{number}", UsageSums(requests=1))
    table.add("quiet", "2", UsageSums(requests=1))

    assert [name for _, name, _ in table.rows("loud")] == ["2", "3"]
    assert len(list(table.rows("quiet"))) == 3


def test_names_that_are_not_there_have_no_row_but_no_tenant_has() -> None:
    groups = one()

    assert {by: list(names) for by, names in groups.items()} == {
        "tenant": [("t", "t")],
        "key": [],
        "model": [],
        "session": [],
        "program": [],
    }
    nobody = grouped([UsageRow(Consumer(), UsageSums(requests=1))])
    assert list(nobody["tenant"]) == [("", "")]


def test_rows_of_one_tenant_are_summed_up_and_names_of_two_tenants_are_two() -> None:
    rows = [("a", "m"), ("a", "m"), ("b", "m"), ("a", "n")]

    groups = grouped(
        UsageRow(Consumer(tenant=row[0], model=row[1]), UsageSums(requests=1)) for row in rows
    )

    requests = {place: sums.requests for place, sums in groups["model"].items()}
    assert requests == {("a", "m"): 2, ("b", "m"): 1, ("a", "n"): 1}
    assert {place: sums.requests for place, sums in groups["tenant"].items()} == {
        ("a", "a"): 3,
        ("b", "b"): 1,
    }
