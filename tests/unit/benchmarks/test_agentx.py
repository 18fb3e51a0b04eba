"""What aiperf is given to play, and what is read of its export."""

from pathlib import Path

import msgspec
import pytest

from benchmarks.programs.bench_agentx import figures
from benchmarks.programs.weka import BLOCK, make_agents, write_weka
from kvmesh_lab.traces.sessions import SessionTrace, SessionTurn


def test_agents_are_the_same_ones_each_time_and_share_what_they_say() -> None:
    agents = make_agents(8, 20, seed=7)

    assert agents == make_agents(8, 20, seed=7)
    assert all(10 <= len(one.turns) <= 20 for one in agents)
    for one in agents:
        for before, turn in zip(one.turns, one.turns[1:], strict=False):
            assert 0 < turn.shared_tokens <= min(before.input_tokens, turn.input_tokens)


def test_a_session_is_written_with_the_blocks_that_its_turns_share(tmp_path: Path) -> None:
    turns = (
        SessionTurn(0.0, 2 * BLOCK + 3, 5, 0, 0.5, "tool"),
        SessionTurn(1.5, 4 * BLOCK, 6, 2 * BLOCK + 3, 0.5, "tool"),
    )

    write_weka([SessionTrace("a", turns)], tmp_path / "weka")
    found = msgspec.json.decode((tmp_path / "weka" / "00000.json").read_bytes())

    assert (found["id"], found["block_size"]) == ("a", BLOCK)
    first, second = found["requests"]
    assert (first["t"], first["hash_ids"]) == (0.0, [1, 2, 3])
    assert (second["t"], second["hash_ids"]) == (2.0, [1, 2, 4, 5])
    assert (second["in"], second["out"], second["stop"]) == (4 * BLOCK, 6, "tool_use")


EXPORT = {
    "overall_usage_prompt_cache_read_pct": {"avg": 81.0},
    "theoretical_prefix_cache_hit": {"avg": 90.0},
    "time_to_first_token": {"avg": 110.0, "p50": 100.0, "p90": 200.0},
    "request_latency": {"avg": 400.0},
    "request_count": {"avg": 500.0},
}


def test_what_was_read_is_compared_with_what_a_cache_without_an_end_would_hold() -> None:
    found = figures(msgspec.json.encode(EXPORT))

    assert found["read / theoretical"] == pytest.approx(0.9)
    assert (found["TTFT mean ms"], found["TTFT p90 ms"], found["requests"]) == (110.0, 200.0, 500.0)


def test_a_run_with_failed_requests_is_no_measurement() -> None:
    with pytest.raises(RuntimeError, match=r"2\.5 %"):
        figures(msgspec.json.encode({**EXPORT, "request_error_rate": {"avg": 2.5}}))
