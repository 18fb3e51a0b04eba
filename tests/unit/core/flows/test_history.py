"""A day in rings, against a naive sum over everything that was added."""

import math
from collections import defaultdict

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.flows.flow import ERRORS, Flow
from kvmesh.core.flows.history import (
    COLUMNS,
    MOST_SPAN_S,
    SERIES,
    SHARED,
    TIERS,
    History,
    Past,
    Tier,
    counted,
    fold,
    series_of,
    tier_for,
)
from tests.unit.core.flows.ended import WHOLE, ended

DAY_S = 86400.0
SMALL = (Tier(10.0, 6), Tier(60.0, 5))


def second(requests: float = 1.0, **more: float) -> dict[str, float]:
    return {"seconds": 1.0, "looks": 1.0, "requests": requests, **more}


def test_an_hour_is_fine_and_a_day_is_coarse() -> None:
    assert tier_for(60.0) == tier_for(3600.0) == Tier(10.0, 360)
    assert tier_for(3601.0) == tier_for(DAY_S) == tier_for(math.inf) == Tier(120.0, 720)
    assert MOST_SPAN_S == DAY_S


def test_a_day_takes_bounded_memory() -> None:
    history = History()
    for minute in range(3 * 24 * 60):
        history.add(second(60.0, seconds=60.0), minute * 60.0)

    day = history.past("chat", DAY_S, 3 * DAY_S - 1)

    assert len(day.slots) == 720
    assert all(slot is not None and slot[COLUMNS.index("requests")] == 120.0 for slot in day.slots)
    assert sum(one.slots for one in TIERS) * len(COLUMNS) * 8 < 250_000


@given(
    st.lists(st.tuples(st.floats(0.1, 90.0), st.integers(0, 50)), max_size=60),
    st.floats(0.0, 200.0),
    st.sampled_from([10.0, 35.0, 60.0, 61.0, 300.0, 1000.0]),
)
def test_slots_are_what_came_in_them(
    steps: list[tuple[float, int]], wait_s: float, span_s: float
) -> None:
    history, now = History(SMALL), 1000.0
    tier = tier_for(span_s, SMALL)
    naive: dict[int, float] = defaultdict(float)
    for pause, requests in steps:
        now += pause
        history.add(second(float(requests)), now)
        naive[int(now // tier.step_s)] += requests
    now += wait_s

    past = history.past("chat", span_s, now)

    count = min(tier.slots, max(1, int(span_s // tier.step_s)))
    last = int(now // tier.step_s)
    expected = [naive.get(number) for number in range(last - count + 1, last + 1)]
    found = [None if slot is None else slot[COLUMNS.index("requests")] for slot in past.slots]
    assert found == expected
    assert past.start == (last - count + 1) * tier.step_s


def test_series_are_rates_means_and_shares() -> None:
    flow = Flow()
    flow.add(WHOLE)
    flow.add(ended("429"))
    values = counted(flow) | {"seconds": 4.0, "looks": 2.0, "queued": 6.0, "workers": 4.0}
    slot = [values.get(name, 0.0) for name in COLUMNS]

    series = series_of([None, slot, second_slot()])

    assert set(series) == set(SERIES)
    assert series["requests_per_s"] == [None, 0.5, 0.0]
    assert series["errors_per_s.429"] == [None, 0.25, 0.0]
    assert series["prompt_tokens_per_s"] == [None, 25.0, 0.0]
    assert series["output_tokens_per_s"] == [None, 2.75, 0.0]
    assert (series["ttft_ms"], series["tpot_ms"]) == ([None, 50.0, None], [None, 40.0, None])
    assert series["cached_share"] == [None, 0.6, None]
    assert (series["queued"], series["workers"]) == ([None, 3.0, 0.0], [None, 2.0, 0.0])


def second_slot(**more: float) -> list[float]:
    values = second(0.0) | more
    return [values.get(name, 0.0) for name in COLUMNS]


def part(bucket: str, *slots: list[float] | None, start: float = 100.0, step: float = 10.0) -> Past:
    return Past(bucket, step, start, list(COLUMNS), list(slots))


def at(slot: list[float] | None, name: str) -> float:
    assert slot is not None
    return slot[COLUMNS.index(name)]


def test_replicas_add_up_and_see_the_same_workers() -> None:
    one = second_slot(requests=3.0, workers=8.0, looks=2.0, held=2.0)
    other = second_slot(requests=4.0, workers=2.0, held=5.0, seconds=7.0)
    code = second_slot(requests=1.0, workers=1.0)

    (slot, gone) = fold(
        [part("chat", one), part("chat", other), part("code", code)], 100.0, 10.0, 2
    )

    assert gone is None
    assert at(slot, "requests") == 8.0
    assert at(slot, "held") == 6.0
    assert at(slot, "workers") == 5.0
    assert (at(slot, "seconds"), at(slot, "looks")) == (7.0, 1.0)


def test_other_grids_columns_and_lies_count_nothing() -> None:
    good = second_slot(requests=2.0)
    odd = Past("chat", 10.0, 100.0, ["looks", "hats", "requests"], [[1.0, 9.0, 5.0], [1.0]])
    parts = [
        part("chat", good, start=90.0),
        part("chat", good, step=120.0),
        part("chat", good, start=103.0),
        part("chat", good, start=math.inf),
        part("chat", second_slot(looks=0.0, requests=9.0)),
        part("chat", None, good),
        part("chat", second_slot(requests=math.nan, prompt_tokens=-5.0)),
        odd,
    ]

    slots = fold(parts, 100.0, 10.0, 2)

    assert [at(slot, "requests") for slot in slots] == [5.0, 2.0]
    assert at(slots[0], "prompt_tokens") == 0.0


def test_what_one_process_tells_another_is_read_as_it_was() -> None:
    history = History(SMALL)
    history.add(second(4.0, workers=2.0), 105.0)
    past = history.past("chat", 60.0, 105.0)

    read = msgspec.json.decode(msgspec.json.encode(past), type=Past)

    assert read == past
    (slot,) = [one for one in fold([read], past.start, 10.0, 6) if one is not None]
    assert at(slot, "requests") == 4.0


@pytest.mark.parametrize("name", [*SHARED, *ERRORS])
def test_each_name_is_a_column(name: str) -> None:
    assert name in COLUMNS
