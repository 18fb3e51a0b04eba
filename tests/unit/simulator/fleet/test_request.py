import pytest

from kvmesh.errors import ConfigError
from kvmesh_lab.simulator.fleet.request import Errand, Passage, make_requests, prompt_hashes
from kvmesh_lab.traces.trace import TraceRequest


def request(tokens: int, *ids: int, index: int = 0) -> TraceRequest:
    return TraceRequest(index, 0.0, tokens, 1, ids)


def test_equal_prefixes_have_equal_hashes_and_nothing_behind_a_difference_has() -> None:
    one = prompt_hashes(request(2048, 1, 2, 3, 4), 512, 512)
    other = prompt_hashes(request(2048, 1, 2, 9, 4), 512, 512)

    assert one[:2] == other[:2]
    assert not set(one[2:]) & set(other[2:])


def test_smaller_engine_blocks_split_a_traces_block_even_the_last() -> None:
    long = prompt_hashes(request(1024, 1, 2), 512, 128)
    short = prompt_hashes(request(700, 1, 2), 512, 128)

    assert len(set(long)) == 8
    assert short == long[:5]


def test_only_full_blocks_have_hashes_and_unnamed_ones_are_unique() -> None:
    one = prompt_hashes(request(1000, 1, index=0), 256, 256)
    other = prompt_hashes(request(1000, 1, index=1), 256, 256)

    assert len(one) == 3
    assert one[0] == other[0]
    assert not set(one[1:]) & set(other[1:])


def test_engine_blocks_must_divide_the_traces() -> None:
    with pytest.raises(ConfigError, match="do not divide"):
        make_requests([request(512, 1)], 512, 100)


def test_a_pause_ends_a_run_of_tokens_if_there_is_one() -> None:
    (one,) = make_requests([request(512, 1)], 512, 512)
    passage = Passage(Errand(one, router=0, sent_s=0.0), engine=0, overlap_blocks=0)

    passage.pause(3)
    passage.open_step = 4
    passage.pause(7)

    assert passage.segments == [(4, 6)]
    assert passage.tokens_before == 3


def test_the_last_turn_of_a_session_is_known_also_where_a_sub_agent_waits_for_it() -> None:
    turns = [
        TraceRequest(0, 0.0, 512, 1, (1,), session="a"),
        TraceRequest(1, 1.0, 512, 1, (1,), session="a"),
        TraceRequest(2, 1.0, 512, 1, (1,), session="b", after=1),
    ]

    made = make_requests(turns, 512, 512)

    assert [one.is_last for one in made] == [False, True, True]
    assert made[1].following == (2,)
