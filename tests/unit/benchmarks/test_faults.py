from math import inf

import pytest

from benchmarks.faults.cells import (
    EIGHT,
    FAULTS,
    HEALTHY,
    NO_FAULT,
    ONE,
    STREAMS,
    Answer,
    Cell,
    fault_table,
    head_start_s,
    judge,
    loads_for,
    make_cell,
    quantile,
    ratio_of,
    summary,
    verdict_table,
)
from benchmarks.faults.engine import TinyEngine
from benchmarks.faults.load import problem_of_stream, problem_of_whole
from benchmarks.faults.scenes import (
    Back,
    Poisoned,
    longest_pause,
    once_table,
    poison_table,
    time_out,
    too_few,
)

NAMED = {fault.name: fault for fault in FAULTS}
WHOLE = b'{"choices":[{"index":0,"message":{"content":"a"},"finish_reason":"length"}]}'
CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"a"},"finish_reason":null}]}\n\n'
LAST = b'data: {"choices":[{"index":0,"delta":{},"finish_reason":"stop"}]}\n\n'
USAGE = b'data: {"choices":[],"usage":{}}\n\n'
DONE = b"data: [DONE]\n\n"


def cell(door: str, fault: str, *ms: float, failed: int = 0, load: str = ONE.name) -> Cell:
    answers = [Answer(one) for one in ms] + [Answer(1.0, "500")] * failed
    return make_cell(door, fault, load, answers, failed)


def test_where_engines_hang_there_are_fewer_requests_with_a_shorter_patience() -> None:
    hang = loads_for(NAMED["hang"], quick=False)
    quick = loads_for(NAMED["hang"], quick=True)

    assert loads_for(NAMED["500"], quick=False) == [ONE, EIGHT, STREAMS]
    assert [one.requests for one in hang] == [6, 24, 12]
    assert {one.timeout_s for one in hang} == {10.0}
    assert [one.requests for one in quick] == [3, 12]
    assert {one.timeout_s for one in quick} == {5.0}


def test_a_load_on_a_flapping_engine_lasts_two_cycles() -> None:
    for load in loads_for(NAMED["flapping 500"], quick=False):
        assert load.requests / load.in_flight * load.pause_s == pytest.approx(8.0)


def test_doors_side_by_side_begin_one_after_another() -> None:
    paced = loads_for(NAMED["flapping 500"], quick=False)[0]

    assert [head_start_s(place, 4, ONE) for place in range(3)] == [0.0, 0.5, 1.0]
    assert head_start_s(4, 4, paced) == paced.pause_s


def test_a_quantile_is_a_value_that_was_seen() -> None:
    assert quantile([], 0.9) is None
    assert quantile([7.0], 0.9) == 7.0
    assert quantile(map(float, range(20, 0, -1)), 0.9) == 18.0
    assert quantile([3.0, 1.0, 2.0], 0.5) == 2.0


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


def test_the_table_of_a_fault_has_a_row_a_door_and_columns_a_load() -> None:
    cells = [
        cell("a", HEALTHY, 100.0),
        cell("a", "500", 110.0, failed=2),
        cell("a", "500", 130.0, load=EIGHT.name),
        cell("b", "500", failed=1),
    ]

    head, _, *rows = fault_table("500", cells).splitlines()

    assert head.count("failed") == 2
    assert rows == [
        "| a | **2** of 3 (2 x 500) | 2 | 110 / 110 | x1.10 | 0 | 0 | 130 / 130 | - |",
        "| b | **1** of 1 (1 x 500) | 1 | - | - | - | - | - | - |",
    ]


@pytest.mark.parametrize(
    ("body", "problem"),
    [
        (WHOLE, ""),
        (WHOLE[:-9], "garbage"),
        (b"\xff", "garbage"),
        (b'{"choices":[]}', "no text"),
        (b'{"choices":[{"message":{},"finish_reason":"stop"}]}', "no text"),
        (WHOLE[:-1] + b',"model":"another"}', "another model"),
        (b'{"choices":[{"finish_reason":null}]}', "not whole"),
        (b'{"error":{"message":"CUDA error"}}', "not whole"),
    ],
)
def test_a_whole_answer_has_finished_choices(body: bytes, problem: str) -> None:
    assert problem_of_whole(body) == problem


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


def test_the_longest_pause_is_between_two_requests() -> None:
    assert longest_pause([1.0, 1.5, 4.0]) == 2.5
    assert longest_pause([1.0]) == 0.0


def test_the_table_of_poison_marks_doors_that_let_others_suffer() -> None:
    bad = Poisoned("a", "distinct", 200, 60, 210.4, {"503": 60}, 50, 75, {"502": 49, "503": 1})
    good = Poisoned("b", "distinct", 200, 2, None, {}, 50, 50, {})

    rows = poison_table([bad, good]).splitlines()[2:]

    assert rows == [
        "| a | **60 of 200, 30.0 %** | 210 | 1.5 | 49 x 502, 1 x 503 |",
        "| b | 2 of 200, 1.0 % | - | 1.0 | answers |",
    ]


def test_a_machine_that_sent_too_little_is_no_measurement() -> None:
    some = Poisoned("a", "distinct", 100, 0, 210.4, {}, 50, 75, {})

    assert too_few([some], 10.0) == ""
    assert too_few([some], 15.0).startswith("The machine stalled: only 100 of 150")


def test_the_table_of_one_failure_marks_engines_that_are_out_for_long() -> None:
    results = [
        Back("a", "500", True, 0.52, 0.3, 1, 100),
        Back("a", "reset", True, 2.1, 0.4, 0, 100),
        Back("b", "500", True, None, 0.2, 0, 100),
        Back("b", "reset", False, None, 0.2, 0, 100),
    ]

    rows = once_table(results, 10.0).splitlines()[2:]

    assert rows == [
        "| a | 0.4 | 0.5 (1) | **2.1** (0) |",
        "| b | 0.2 | **over 10** (0) | not asked again before its last fault in 10 |",
    ]


def test_the_healthy_fleet_is_told_no_fault() -> None:
    assert NO_FAULT.fail == ()
    assert NO_FAULT.name == HEALTHY
    assert HEALTHY not in NAMED


def test_long_answers_have_each_length_from_one_token_on_and_the_same_each_time() -> None:
    [load] = loads_for(NAMED["long answers, 20 x"], quick=False)
    tokens = [load.tokens(number) or 0 for number in range(load.requests)]

    assert load.requests == 1000
    assert (min(tokens), max(tokens) > 4000, max(tokens) <= 4096) == (1, True, True)
    assert sum(one > 64 for one in tokens) == pytest.approx(500, abs=15)
    assert tokens == [load.tokens(number) for number in range(load.requests)]
    assert NAMED["long answers, 20 x"].slowdown == 20.0
    assert EIGHT.tokens(3) is None


def test_a_first_call_may_pause_for_as_long_as_it_likes() -> None:
    [load] = loads_for(NAMED["first call pauses 60 s"], quick=True)

    assert load.in_flight == 8
    assert load.timeout_s > 60.0
