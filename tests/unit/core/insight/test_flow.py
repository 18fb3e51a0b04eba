"""Rates over a sliding window, against a naive list of what came."""

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.insight.flow import (
    ERRORS,
    Flow,
    FlowTable,
    Rates,
    SlidingFlow,
    error_class,
)
from tests.unit.core.insight.ended import WHOLE, ended

WINDOW_S = 10.0


@pytest.mark.parametrize(
    ("kind", "status", "expected"),
    [
        ("finished", 200, ""),
        ("client_gone", 200, "499"),
        ("client_gone", 0, "499"),
        ("refused", 429, "429"),
        ("refused", 404, "4xx"),
        ("refused", 503, "5xx"),
        ("failed", 502, "5xx"),
        ("failed", 200, "cut"),
        ("cut", 200, "cut"),
        ("crashed", 500, "5xx"),
        ("finished", 400, "4xx"),
        ("finished", 500, "5xx"),
    ],
)
def test_how_a_request_ended(kind: str, status: int, expected: str) -> None:
    assert error_class(kind, status) == expected


def test_rates_are_sums_a_second_and_means() -> None:
    flow = SlidingFlow(WINDOW_S, 0.0)
    flow.add(WHOLE, 1.0)
    flow.add(ended("5xx", ttft_ms=150.0, first_tokens=1), 2.0)

    rates = flow.rates(5.0)

    assert rates == Rates(
        requests_per_s=0.4,
        errors_per_s=dict.fromkeys(ERRORS, 0.0) | {"5xx": 0.2},
        prompt_tokens_per_s=20.0,
        output_tokens_per_s=2.2,
        ttft_ms=100.0,
        tpot_ms=40.0,
    )
    nothing = SlidingFlow(WINDOW_S, 0.0).rates(0.0)
    assert (nothing.requests_per_s, nothing.ttft_ms, nothing.tpot_ms) == (0.0, None, None)


@given(st.lists(st.floats(0.0, 7.0), max_size=60), st.floats(0.0, 40.0))
def test_a_window_holds_what_it_should_and_never_more_than_two_windows(
    pauses: list[float], wait_s: float
) -> None:
    flow, now, came = SlidingFlow(WINDOW_S, 0.0), 0.0, []
    for pause in pauses:
        now += pause
        came.append(now)
        flow.add(ended(), now)
    now += wait_s

    found = flow.sums(now).requests

    slot = int(now // WINDOW_S)
    of_slot = Counter(int(one // WINDOW_S) for one in came)
    assert found == pytest.approx(of_slot[slot] + of_slot[slot - 1] * (1 - (now / WINDOW_S - slot)))
    assert found <= sum(one > now - 2 * WINDOW_S for one in came) + 1e-9


def test_a_sample_counts_for_all_it_stands_for() -> None:
    flow = Flow()
    flow.add(WHOLE, 4.0)
    flow.add(ended("5xx"))

    assert (flow.requests, flow.output_tokens, flow.errors) == (5.0, 44.0, {"5xx": 1.0})


def test_the_busiest_names_are_told() -> None:
    table = FlowTable(WINDOW_S, 2, 0.0)
    for name, count in (("ann", 3), ("ben", 5), ("cay", 1)):
        for _ in range(count):
            table.add(name, ended(), 1.0)
    table.add("", ended(), 1.0)

    assert ([row.name for row in table.rows(2.0)], len(table)) == (["ben", "ann"], 3)
    assert (table.rows(40.0), len(table)) == ([], 0)


def test_a_flood_of_names_puts_out_nobody_who_sends_more() -> None:
    table, most = FlowTable(WINDOW_S, 4, 0.0), 0
    for number in range(1000):
        table.add(f"stranger-{number}", ended(), 1.0)
        if number % 2:
            table.add("ann", ended(), 1.0)
        most = max(most, len(table))

    rows = table.rows(1.0)

    assert most <= 8
    assert (rows[0].name, rows[0].rates.requests_per_s) == ("ann", 500.0)
