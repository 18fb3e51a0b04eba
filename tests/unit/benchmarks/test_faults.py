from math import inf

import pytest

from benchmarks.faults.cells import (
    EIGHT,
    HEALTHY,
    ONE,
    Answer,
    Cell,
    judge,
    make_cell,
    ratio_of,
    summary,
    verdict_table,
)
from benchmarks.faults.engine import TinyEngine
from benchmarks.faults.load import problem_of_stream
from benchmarks.faults.scenes import (
    time_out,
)

CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{}}\n\n'
DONE = b"data: [DONE]\n\n"


def cell(door: str, fault: str, *ms: float, failed: int = 0, load: str = ONE.name) -> Cell:
    answers = [Answer(one) for one in ms] + [Answer(1.0, "500")] * failed
    return make_cell(door, fault, load, answers, failed)


def test_a_cell_counts_problems_and_measures_only_what_was_served() -> None:
    answers = [Answer(100.0), Answer(15_000.0, "timeout"), Answer(1.0, "500"), Answer(1.0, "500")]

    found = make_cell("d", "500", "one", answers, attempts=5)

    assert (found.requests, found.failed, found.attempts) == (4, 3, 5)
    assert found.problems == {"timeout": 1, "500": 2}
    assert (found.p50_ms, found.p90_ms) == (100.0, 100.0)


def test_a_cell_is_compared_with_all_of_its_own_doors_healthy_requests() -> None:
    cells = [
        cell("a", HEALTHY, 100.0),
        cell("a", HEALTHY, 50.0),
        cell("a", HEALTHY, 900.0, load=EIGHT.name),
        cell("b", HEALTHY, 700.0),
    ]

    assert ratio_of(cell("a", "500", 150.0), cells) == 1.5
    assert ratio_of(cell("a", "500", failed=2), cells) == inf
    assert ratio_of(cell("c", "500", 150.0), cells) is None


def test_our_doors_are_judged_by_the_best_peer_of_the_same_cell() -> None:
    cells = [
        cell("ours", HEALTHY, 100.0),
        cell("ours", "500", 100.0, failed=1),
        cell("also ours", "500", 100.0, failed=0),
        cell("peer", "500", 100.0, failed=3),
        cell("better peer", "500", 100.0, failed=1),
        cell("better peer", "500", 100.0, failed=0, load=EIGHT.name),
        cell("peer", "hang", 100.0, failed=0),
    ]

    first, second = judge(cells, ["ours", "also ours"])

    assert (first.failed, first.best_peer_failed, first.ratio) == (1, 1, 1.0)
    assert first.fails_no_more
    assert first.is_quick
    assert second.ratio is None
    assert second.is_quick is None


def test_a_door_that_fails_more_or_serves_late_or_nothing_misses() -> None:
    cells = [
        cell("ours", HEALTHY, 100.0),
        cell("ours", "500", 121.0, failed=1),
        cell("ours", "429", failed=1),
        cell("peer", "500", 100.0),
    ]

    late, nothing = judge(cells, ["ours"])

    assert late.fails_no_more is False
    assert late.is_quick is False
    assert nothing.fails_no_more is None
    assert nothing.is_quick is False
    assert verdict_table([late, nothing]).splitlines()[2:] == [
        "| 500 | one at a time | 0 | 1 failed **MISSED**, x1.21 **MISSED** |",
        "| 429 | one at a time | - | 1 failed (?), none served **MISSED** |",
    ]
    assert summary([late, nothing]).splitlines() == [
        "failed requests at most the best peer's: 0 of 1 cells",
        "p90 of the served at most 1.2 x healthy: 0 of 2 cells",
    ]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (CHUNK + LAST + USAGE + DONE, ""),
        (CHUNK + LAST, "not whole"),
        (LAST + DONE, "no text"),
        (CHUNK + DONE, "not whole"),
        (b"", "not whole"),
        (CHUNK + b'data: {"error":{"message":"gone"}}\n\n' + DONE, "error in stream"),
        (CHUNK + b'data: {"choices\n\n' + DONE, "garbage"),
    ],
)
def test_a_whole_stream_finishes_its_choices_and_says_that_it_is_done(
    body: bytes, problem: str
) -> None:
    assert problem_of_stream(body) == problem


def test_an_engine_is_out_from_its_last_fault_to_its_next_request() -> None:
    engine = TinyEngine()
    engine.came_s = [1.0, 2.0]
    engine.failed_s = [2.1]
    assert time_out(engine, 1) is None

    engine.came_s += [5.0, 9.0]
    assert time_out(engine, 1) == pytest.approx(2.9)
    assert time_out(engine, 2) is None

    engine.failed_s += [5.5]
    assert time_out(engine, 2) == pytest.approx(3.5)
