from pathlib import Path

import msgspec

from benchmarks.programs.small_trace import choose
from kvmesh_lab.report.outcome import RequestOutcome

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


def outcome(session: str, sent_ms: float, latency_ms: float) -> RequestOutcome:
    return RequestOutcome(0, session, sent_ms, 0.0, latency_ms)
