import msgspec
import pytest

from kvmesh_lab.traces.repeats import common_blocks, repeat_requests
from kvmesh_lab.traces.trace import TraceRequest, infinite_cache_hit_rate

SYSTEM = (1, 2)


def trace(count: int = 20) -> list[TraceRequest]:
    """Return requests behind one system prompt; each second one extends the one before."""
    made: list[TraceRequest] = []
    for index in range(count):
        own = (100 + index // 2,) if index % 2 == 0 else (100 + index // 2, 500 + index)
        one = TraceRequest(
            index=index,
            timestamp_ms=10.0 * index,
            input_tokens=64 * (2 + len(own)),
            output_tokens=3,
            block_ids=SYSTEM + own,
            session=f"s{index // 2}",
            program=f"s{index // 2}",
        )
        made.append(one)
    return made


def test_rounds_follow_each_other_at_the_same_pace_with_names_of_their_own() -> None:
    found = repeat_requests(trace(), 50)

    assert [one.index for one in found] == list(range(50))
    assert [one.timestamp_ms for one in found] == pytest.approx([10.0 * one for one in range(50)])
    assert found[20].session == found[20].program == "s0#2"
    assert found[40].session == "s0#3"
    assert len({one.session for one in found}) == 25


def test_a_repeated_trace_hits_as_much_as_the_first_since_only_system_prompts_come_again() -> None:
    first, found = trace(), repeat_requests(trace(), 40)
    later = infinite_cache_hit_rate(found[20:], 64)

    assert common_blocks(first) == frozenset(SYSTEM)
    assert later == pytest.approx(infinite_cache_hit_rate(first, 64))
    own = {block for one in first for block in one.block_ids} - set(SYSTEM)
    assert not own & {block for one in found[20:] for block in one.block_ids}
    assert all(one.block_ids[:2] == SYSTEM for one in found)


def test_what_waits_for_a_request_waits_for_the_one_of_its_round() -> None:
    first = trace(4)
    first[2] = msgspec.structs.replace(first[2], after=0, parent="s0", program="s0")

    found = repeat_requests(first, 8)

    assert (found[6].after, found[6].parent, found[6].program) == (4, "s0#2", "s0#2")
    assert found[4].after is None
