import json

import pytest

from kvmesh.errors import ConfigError
from kvmesh_lab.traces.sessions import (
    SESSION_GAP_S,
    SessionTrace,
    SessionTurn,
    choose_programs,
    holds_sessions,
    parse_sessions,
    requests_of,
    stop_of,
)
from kvmesh_lab.traces.trace import TraceRequest, infinite_cache_hit_rate

PARENT = {
    "session": 0,
    "parent": None,
    "start_s": None,
    "common": 200,
    "turns": [
        [0.0, 300, 20, 0, 5.0, "tool_use"],
        [7.0, 500, 0, 290, 3.0, "end_turn"],
        [3600.5, 640, 9, 256, 1.0, ""],
    ],
}
CHILD = {
    "session": "agent",
    "parent": 0,
    "start_s": 6.0,
    "common": 0,
    "turns": [[0.0, 130, 4, 0, 1.0, "max_tokens"], [2.0, 260, 4, 128, 1.0, None]],
}
OTHER = {"session": 2, "common": 200, "turns": [[0.0, 210, 1, 0, 1.0, "other"]]}


def encode(*lines: object) -> list[bytes]:
    return [json.dumps(line).encode() for line in lines]


def load(*lines: object) -> list[SessionTrace]:
    return parse_sessions(encode(*lines), "trace.jsonl")


def of(requests: list[TraceRequest], session: str) -> list[TraceRequest]:
    return [one for one in requests if one.session == session]


def test_sessions_are_read_with_their_turns_and_what_the_stop_reasons_mean() -> None:
    parent, child, other = load(PARENT, CHILD, OTHER)

    assert (parent.name, parent.parent, parent.start_s, parent.common_tokens) == (
        "0",
        "",
        None,
        200,
    )
    assert parent.turns[1] == SessionTurn(7.0, 500, 1, 290, 3.0, "end")
    assert [turn.stop for turn in parent.turns] == ["tool", "end", ""]
    assert (child.parent, child.turns[0].stop, child.turns[1].stop) == ("0", "length", "")
    assert other.turns[0].stop == ""
    assert [stop_of(one) for one in ("tool_calls", "stop", None)] == ["tool", "end", ""]


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"turns": []}, "length >= 1"),
        ({"turns": [[0.0, 0, 1, 0, 1.0, ""]]}, "int` >= 1"),
        ({"turns": [[-1.0, 10, 1, 0, 1.0, ""]]}, ">= 0"),
        ({"turns": [[0.0, 10**25, 1, 0, 1.0, ""]]}, "turns"),
        ({"turns": [[0.0, 10, 1, 0, 1.0]]}, "length 6"),
        ({"turns": [[0.0, 10, 1, 0, 1.0, ""], [1.0, 20, 1, 11, 1.0, ""]]}, "turn 2 shares 11"),
        ({"parent": "nobody"}, "parent 'nobody' is no session of the lines above"),
        ({"session": "0"}, "a second time"),
        ({"common": -1}, ">= 0"),
        ({"session": "x" * 513}, "512"),
    ],
)
def test_what_cannot_be_is_refused_with_its_place(changes: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError, match=r"trace\.jsonl:2: ") as caught:
        load(PARENT, OTHER | changes)

    assert words in str(caught.value)


def test_an_empty_file_and_one_that_is_no_text_are_refused() -> None:
    with pytest.raises(ConfigError, match="no session in it"):
        parse_sessions([b"", b"  "], "trace.jsonl")
    with pytest.raises(ConfigError, match=r"trace\.jsonl:1: "):
        parse_sessions([b"\xff\xfe"], "trace.jsonl")


def test_the_first_line_tells_sessions_from_requests() -> None:
    assert holds_sessions([b"", *encode(PARENT)])
    assert not holds_sessions([b'{"timestamp": 0, "input_length": 3}'])
    assert not holds_sessions([b"[1]"])
    assert not holds_sessions([b"\xff"])
    assert not holds_sessions([])


def test_turns_share_blocks_as_recorded_and_sessions_what_they_have_in_common() -> None:
    requests = requests_of(load(PARENT, CHILD, OTHER), 64)
    first, second, third = of(requests, "0")
    (other,) = of(requests, "2")
    agent, again = of(requests, "agent")

    assert [len(one.block_ids) for one in (first, second, third)] == [4, 7, 10]
    assert second.block_ids[:4] == first.block_ids
    assert third.block_ids[:4] == second.block_ids[:4]
    assert not set(third.block_ids[4:]) & set(second.block_ids)
    assert other.block_ids == first.block_ids[:3], "200 tokens in common are 3 whole blocks"
    assert again.block_ids[:2] == agent.block_ids
    assert not set(agent.block_ids) & set(first.block_ids)


def test_pauses_are_as_recorded_and_a_sub_agent_follows_the_turn_it_began_behind() -> None:
    requests = requests_of(load(PARENT, CHILD, OTHER), 64)
    turns, agent = of(requests, "0"), of(requests, "agent")

    assert [one.delay_ms for one in turns] == [None, 7_000.0, 3_600_500.0]
    assert agent[0].after == turns[0].index
    assert agent[0].delay_ms == 1_000.0, "6 s after the start, turn 1 ended after 5"
    assert (agent[1].after, agent[1].delay_ms) == (None, 2_000.0)
    assert {one.program for one in (*turns, *agent)} == {"0"}
    assert {one.parent for one in agent} == {"0"}
    assert of(requests, "2")[0].timestamp_ms == SESSION_GAP_S * 1000.0
    assert [one.timestamp_ms for one in turns] == [0.0, 12_000.0, 3_615_500.0]
    assert [one.timestamp_ms for one in agent] == [6_000.0, 9_000.0]
    assert [one.index for one in requests] == list(range(6))


def test_a_sub_agent_that_begins_during_a_turn_follows_its_end_at_once() -> None:
    requests = requests_of(load(PARENT, CHILD | {"start_s": 13.0}), 64)
    agent = of(requests, "agent")[0]

    assert (agent.after, agent.delay_ms) == (1, 0.0)


def test_time_is_scaled_only_if_asked() -> None:
    requests = requests_of(load(PARENT, CHILD, OTHER), 64, time_scale=0.1)

    assert of(requests, "0")[2].delay_ms == pytest.approx(360_050.0)
    assert of(requests, "agent")[0].delay_ms == pytest.approx(100.0)
    assert of(requests, "2")[0].timestamp_ms == pytest.approx(6_000.0)


def test_programs_are_chosen_with_their_sub_agents_and_begin_again_with_fresh_sessions() -> None:
    sessions = load(PARENT, CHILD, OTHER)

    assert [one.name for one in choose_programs(sessions, programs=1)] == ["0", "agent"]
    assert [one.name for one in choose_programs(sessions, skip=1)] == ["2"]
    more = choose_programs(sessions, programs=4)
    assert [one.name for one in more] == ["0", "agent", "2", "0#2", "agent#2", "2#2"]
    assert more[4].parent == "0#2"
    requests = requests_of(more, 64)
    first, again = of(requests, "0")[0], of(requests, "0#2")[0]
    assert first.block_ids[:3] == again.block_ids[:3]
    assert first.block_ids[3] != again.block_ids[3]
    with pytest.raises(ConfigError, match="has 2 programs, none after --skip 2"):
        choose_programs(sessions, skip=2)


def test_a_session_that_shares_all_it_can_hits_what_an_infinite_cache_would() -> None:
    turns = [[1.0, 640 * (turn + 1), 1, 640 * turn, 1.0, ""] for turn in range(9)]
    requests = requests_of(load({"session": 1, "turns": turns}), 64)

    assert infinite_cache_hit_rate(requests, 64) == pytest.approx(36 / 45)
