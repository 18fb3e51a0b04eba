from pathlib import Path

import msgspec
import pytest

from benchmarks.measure import Comparison
from benchmarks.programs.bench_live import markdown, session_times
from benchmarks.programs.small_trace import TOKENS, choose, small_profile, write_small
from kvmesh_lab.mocker.model.timing import PROFILES, StepLoad, parse_profile
from kvmesh_lab.report.outcome import RequestOutcome
from kvmesh_lab.traces.sessions import parse_sessions, requests_of

TURNS = [
    [0.0, 80_000, 400, 0, 5.0, "tool_use"],
    [10.0, 96_007, 3, 80_000, 4.0, "end_turn"],
    [500.0, 97_000, 800, 96_000, 4.0, "end_turn"],
]


def trace_of(tmp_path: Path) -> Path:
    lines = [
        {"session": "long", "common": 17_000, "turns": TURNS},
        {"session": "helper", "parent": "long", "start_s": 3.0, "turns": TURNS},
        {"session": "lunch", "turns": [*TURNS[:2], [9000.0, 98_000, 5, 96_000, 1.0, "end_turn"]]},
        {"session": "huge", "turns": [[0.0, 900_000, 9, 0, 5.0, ""], *TURNS[1:]]},
        {"session": "short", "turns": TURNS[:2]},
        {"session": "next", "turns": TURNS},
    ]
    path = tmp_path / "t.jsonl"
    path.write_bytes(b"\n".join(msgspec.json.encode(line) for line in lines))
    return path


def test_only_whole_agents_that_fit_are_chosen(tmp_path: Path) -> None:
    found = choose(trace_of(tmp_path), 5, 3, 600.0, 200_000)

    assert [(one.name, len(one.turns)) for one in found] == [("long", 3), ("next", 3)]
    assert len(choose(trace_of(tmp_path), 1, 2, 600.0, 200_000)) == 1


def test_a_small_trace_has_the_shape_of_the_whole_one(tmp_path: Path) -> None:
    found = choose(trace_of(tmp_path), 5, 3, 600.0, 200_000)

    path = write_small(found, tmp_path / "small.jsonl")

    small = parse_sessions(path.read_bytes().splitlines(), "small")
    assert [one.name for one in small] == ["long", "next"]
    assert [turn.pause_s for turn in small[0].turns] == [0.0, 10.0, 500.0]
    assert [turn.stop for turn in small[0].turns] == ["tool", "end", "end"]
    assert [turn.output_tokens for turn in small[0].turns] == [50, 1, 100]
    whole = [len(one.block_ids) for one in requests_of(found, 512)]
    parts = [len(one.block_ids) for one in requests_of(small, 512 // TOKENS)]
    assert parts == pytest.approx(whole, abs=1)


def test_a_turn_of_small_tokens_takes_as_long_as_one_of_recorded_tokens() -> None:
    whole, small = PROFILES["preble-70b"], parse_profile(small_profile("preble-70b"))
    prompt, context = 8192, 100_000
    chunk = StepLoad(prompt, float(prompt * context), 0, 0, 0)
    small_chunk = StepLoad(prompt // 8, float(prompt * context) / 64, 0, 0, 0)
    decoding = StepLoad(0, 0.0, 4, 4 * context, 0)
    small_decoding = StepLoad(0, 0.0, 4, 4 * context // 8, 0)

    assert small.step_ms(small_chunk) == pytest.approx(whole.step_ms(chunk), rel=1e-4)
    # A step of it is eight steps.
    assert small.step_ms(small_decoding) == pytest.approx(8 * whole.step_ms(decoding), rel=1e-4)


def outcome(session: str, sent_ms: float, latency_ms: float) -> RequestOutcome:
    return RequestOutcome(0, session, sent_ms, 0.0, latency_ms)


def test_a_session_lasts_from_its_first_turn_to_its_last_answer() -> None:
    ends = [outcome("a", 0.0, 1000.0), outcome("b", 500.0, 100.0), outcome("a", 3000.0, 500.0)]

    assert session_times(ends) == [3.5, 0.1]


def test_the_table_has_a_row_for_each_front_door_with_its_ratios() -> None:
    samples = {"a": [{"x s": 2.0}], "b": [{"x s": 3.0}]}

    lines = markdown(Comparison("title", "a", samples)).splitlines()

    assert lines[0].startswith("title; ")
    assert lines[2:] == [
        "| front door | x s |",
        "|---|---|",
        "| a | 2 (1.00) |",
        "| b | 3 (1.50) |",
    ]
