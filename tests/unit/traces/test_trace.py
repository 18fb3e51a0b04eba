from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest

from kvmesh.errors import ConfigError
from kvmesh_lab.traces.trace import (
    TraceRequest,
    block_size_in_name,
    check_block_size,
    clip_lengths,
    infer_block_size,
    infinite_cache_hit_rate,
    parse_trace,
    prefix_families,
    scale_times,
    slice_requests,
    smooth_timestamps,
    split_sessions,
)

TRACES = Path(__file__).parents[2] / "fixtures" / "traces"
MOONCAKE = TRACES / "mooncake_conversation_80_b512.jsonl"
SESSIONS = TRACES / "sessions_b64.jsonl"
LINE = b'{"timestamp": 5, "input_length": 100, "output_length": 3, "hash_ids": [1, 2]}'


def load(path: Path) -> list[TraceRequest]:
    return parse_trace(path.read_bytes().splitlines(), path.name)


def request(
    index: int, *, at: float = 0, tokens: int = 64, ids: Sequence[int] = (), session: str = ""
) -> TraceRequest:
    return TraceRequest(
        index=index,
        timestamp_ms=at,
        input_tokens=tokens,
        output_tokens=4,
        block_ids=tuple(ids),
        session=session,
    )


def test_a_line_becomes_a_request_and_blank_lines_are_skipped() -> None:
    requests = parse_trace([LINE, b"", b"  \n"], "t.jsonl")

    assert requests == [TraceRequest(0, 5.0, 100, 3, (1, 2))]


def test_requests_come_in_order_of_time() -> None:
    early = LINE.replace(b"5", b"1", 1)

    requests = parse_trace([LINE, early], "t.jsonl")

    assert [found.timestamp_ms for found in requests] == [1, 5]
    assert [found.index for found in requests] == [1, 0]


@pytest.mark.parametrize(
    ("line", "part"),
    [
        (b"not json", "malformed"),
        (b'{"timestamp": 1}', "input_length"),
        (LINE.replace(b"100", b"0"), ">= 1"),
        (LINE.replace(b"3", b"-3", 1), ">= 0"),
        (LINE.replace(b"100", b"1" + b"0" * 400), "input_length"),
        (LINE.replace(b"100", b"2147483648"), "input_length"),
        (LINE.replace(b'"timestamp": 5', b'"timestamp": 1e308'), "timestamp"),
        (LINE.replace(b"[1, 2]", b'["x"]'), "hash_ids"),
        (b"\xff" + LINE, "t.jsonl:2"),
        (LINE.replace(b'"timestamp": 5, ', b""), "no timestamp"),
        (LINE.replace(b'"timestamp": 5', b'"delay": 5'), "no timestamp"),
    ],
)
def test_a_bad_line_is_named_with_file_and_number(line: bytes, part: str) -> None:
    with pytest.raises(ConfigError) as caught:
        parse_trace([LINE, line], "t.jsonl")

    assert "t.jsonl:2" in str(caught.value)
    assert part in str(caught.value)


def test_an_empty_trace_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"t\.jsonl: no request"):
        parse_trace([b""], "t.jsonl")


def test_an_answer_of_no_tokens_becomes_one_token() -> None:
    requests = parse_trace([LINE.replace(b": 3", b": 0")], "t.jsonl")

    assert requests[0].output_tokens == 1


def test_later_turns_of_a_session_need_no_timestamp() -> None:
    requests = load(SESSIONS)

    chains = split_sessions(requests)
    assert [[turn.index for turn in chain] for chain in chains] == [[0, 2, 5], [1, 4], [3]]
    assert [turn.delay_ms for turn in chains[0]] == [None, 30, 30]


@pytest.mark.parametrize(
    ("name", "size"),
    [
        ("mooncake_conversation_b512.jsonl.gz", 512),
        ("zipf_b64", 64),
        ("conversation_trace.jsonl", None),
        ("b512.jsonl", None),
        ("x_b0.jsonl", None),
        ("x_b16k.jsonl", None),
    ],
)
def test_the_file_name_tells_the_block_size(name: str, size: int | None) -> None:
    assert block_size_in_name(name) == size


def test_the_block_size_is_inferred_from_lengths_and_ids() -> None:
    assert infer_block_size(load(MOONCAKE), "m") == 512
    assert infer_block_size(load(SESSIONS), "s") == 64


def test_without_a_power_of_two_the_smallest_block_size_is_taken() -> None:
    assert infer_block_size([request(0, tokens=20, ids=(1, 2)), request(1, ids=[])], "t") == 16
    assert infer_block_size([request(0, tokens=19, ids=(1, 2))], "t") == 16
    assert infer_block_size([request(0, tokens=28, ids=(1, 2, 3))], "t") == 10


@pytest.mark.parametrize(
    "requests",
    [
        [request(0, tokens=64)],
        [request(0, tokens=64, ids=(1,)), request(1, tokens=64, ids=(1, 2, 3))],
    ],
)
def test_lengths_that_no_block_size_explains_are_refused(requests: list[TraceRequest]) -> None:
    with pytest.raises(ConfigError, match="--trace-block-size"):
        infer_block_size(requests, "t")


def test_more_ids_than_the_prompt_has_blocks_are_refused() -> None:
    with pytest.raises(ConfigError, match="request 1 has 2 hash ids but its 64 tokens are 1 block"):
        check_block_size([request(0, tokens=64, ids=(1, 2))], 512, "t")


def test_a_block_size_far_too_small_is_refused() -> None:
    with pytest.raises(ConfigError, match="have no hash id"):
        check_block_size(load(MOONCAKE), 16, "t")


def test_an_unhashed_tail_is_accepted() -> None:
    check_block_size([request(0, tokens=100, ids=(1,))], 64, "t")


def test_a_slice_starts_at_time_zero() -> None:
    requests = [request(index, at=100 * index) for index in range(5)]

    chosen = slice_requests(requests, 2, 2, "t")

    assert [(found.index, found.timestamp_ms) for found in chosen] == [(2, 0), (3, 100)]
    assert len(slice_requests(requests, 0, None, "t")) == 5


def test_a_slice_behind_the_end_is_refused() -> None:
    with pytest.raises(ConfigError, match="has 1 request, none after --skip 3"):
        slice_requests([request(0)], 3, None, "t")


def test_rounded_times_are_spread_over_the_rounding_interval() -> None:
    requests = load(MOONCAKE)

    smooth = smooth_timestamps(requests)

    assert [found.index for found in smooth] == [found.index for found in requests]
    times = [found.timestamp_ms for found in smooth]
    assert times == sorted(times)
    assert len(set(times)) == len(times)
    moves = [new.timestamp_ms - old.timestamp_ms for new, old in zip(smooth, requests, strict=True)]
    assert min(moves) >= 0
    assert 2000 < max(moves) <= 3000
    assert max(later - earlier for earlier, later in pairwise(times)) < 4000


def test_speedup_divides_times_and_keeps_think_times() -> None:
    requests = scale_times(load(SESSIONS), 2)

    assert [found.timestamp_ms for found in requests] == [0, 10, 10, 20, 20, 20]
    assert [found.delay_ms for found in requests if found.delay_ms] == [30, 10, 30]


def test_a_time_scale_multiplies_times_and_think_times() -> None:
    requests = scale_times(load(SESSIONS), 2, 0.5)

    assert [found.timestamp_ms for found in requests] == [0, 5, 5, 10, 10, 10]
    assert [found.delay_ms for found in requests if found.delay_ms] == [15, 5, 15]


def test_clipping_cuts_prompts_and_their_ids() -> None:
    long = request(0, tokens=200, ids=(1, 2, 3, 4))

    (clipped,) = clip_lengths([long], 64, 100, 2)

    assert (clipped.input_tokens, clipped.block_ids, clipped.output_tokens) == (100, (1, 2), 2)
    assert clip_lengths([long], 64, None, None) == [long]


def test_the_infinite_cache_counts_shared_leading_blocks() -> None:
    requests = [
        request(0, tokens=128, ids=(1, 2)),
        request(1, tokens=100, ids=(1, 2)),
        request(2, tokens=128, ids=(1, 9)),
        request(3, tokens=128, ids=(8, 2)),
    ]

    assert infinite_cache_hit_rate(requests, 64) == (100 + 64) / (128 + 100 + 128 + 128)


def test_a_family_is_the_first_block_that_is_not_everybodys() -> None:
    requests = [
        request(0, ids=(0, 1, 5)),
        request(1, ids=(0, 1, 6)),
        request(2, ids=(0, 2, 7)),
        request(3, ids=(0, 3)),
        request(4, ids=(0, 3)),
        request(5, ids=(0,)),
        request(6),
    ]

    assert prefix_families(requests) == [1, 1, 2, 3, 3, 0, -1]
