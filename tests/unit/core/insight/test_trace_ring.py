from array import array

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.blocks.events import HASH_BYTES, WorkerId
from kvmesh.core.blocks.hashing import as_key
from kvmesh.core.insight.trace_ring import (
    ROW_BYTES,
    Traced,
    TraceRing,
    TraceRow,
    mooncake_lines,
)
from kvmesh.core.insight.weight_search import LoggedFleet, SimulatedFleetFacts
from kvmesh_lab.traces.trace import (
    check_block_size,
    infer_block_size,
    infinite_cache_hit_rate,
    parse_trace,
)

W = WorkerId("w0")


def ring(max_bytes: int = 1 << 20, *, window_s: float = 600.0, block_size: int = 16) -> TraceRing:
    return TraceRing(block_size, window_s=window_s, max_bytes=max_bytes)


def row(at_s: float, traced: Traced, tokens: int = 1000, output: int = 10) -> TraceRow:
    return TraceRow(at_s, at_s, tokens, output, W, traced)


def traced(family: int, *keys: int) -> Traced:
    return Traced(family, array("Q", keys).tobytes())


def test_a_hash_is_kept_for_every_128_tokens() -> None:
    held = ring(block_size=16)

    kept = held.take(range(100, 120))

    assert held.block_tokens == 128
    assert kept is not None
    assert row(0.0, kept).beginnings() == [as_key(107), as_key(115)]


def test_engines_of_another_block_size_begin_a_new_trace() -> None:
    held = ring(block_size=16)
    held.add(row(0.0, traced(1, 2)), 0.0)

    held.resize(512)

    assert (held.stride, held.block_tokens) == (1, 512)
    assert (held.sample(0.0, 1.0)[0], held.statistics().bytes) == ([], 0)
    kept = held.take(range(4))
    assert kept is not None
    assert row(0.0, kept).beginnings() == [as_key(number) for number in range(4)]


def test_rows_are_forgotten_after_the_window() -> None:
    held = ring(window_s=10.0)
    for second in range(100):
        held.add(row(float(second), traced(second)), float(second))

    statistics = held.statistics()

    assert (statistics.rows, statistics.seen, statistics.bytes) == (11, 12, 11 * ROW_BYTES)
    assert [one.at_s for one in held.sample(0.0, 105.0)[0]] == [95.0, 96.0, 97.0, 98.0, 99.0]


@given(
    st.lists(st.tuples(st.integers(0, 40), st.integers(0, 20), st.integers(1, 5000)), max_size=200),
    st.integers(2_000, 20_000),
)
def test_it_never_takes_more_memory_than_it_may_and_keeps_families_whole(
    requests: list[tuple[int, int, int]], max_bytes: int
) -> None:
    """Naive model: every row that could be there; of each family all newest or none."""
    held, ended = ring(max_bytes), list[TraceRow]()
    for number, (family, blocks, tokens) in enumerate(requests):
        # Spread over all u64s, as hashes are.
        name = family * 0x9E3779B97F4A7C15 % 2**64
        one = row(float(number), traced(name, *range(name, name + blocks)), tokens)
        held.add(one, float(number))
        ended.append(one)
        assert held.statistics().bytes <= max_bytes

    rows, share = held.sample(0.0, float(len(requests)))

    if rows:
        begin = rows[0].at_s
        names = {one.traced.family for one in rows}
        assert rows == [one for one in ended if one.traced.family in names and one.at_s >= begin]
    assert 0.0 < share <= 1.0
    assert held.statistics().seen == len(requests)


def test_half_of_the_families_is_left_out_when_memory_is_short() -> None:
    held = ring(100 * ROW_BYTES)
    families = [number * 0x9E3779B97F4A7C15 % 2**64 for number in range(150)]
    for number, family in enumerate(families):
        held.add(row(float(number), traced(family)), float(number))

    rows, share = held.sample(0.0, 150.0)

    assert held.statistics().level == 1
    assert all(one.traced.family < 2**63 for one in rows)
    assert share == pytest.approx(len(rows) / 150)


def test_what_is_left_out_is_counted_and_not_kept() -> None:
    held = ring(10 * ROW_BYTES)
    for number in range(12):
        held.add(row(0.0, traced((number % 2) << 63)), 0.0)

    refused = held.take([2**64 - 1] * 8)
    held.count_request(500, 0.0, 0.0)

    assert refused is None
    assert held.statistics().seen == 13


def test_all_families_are_kept_again_when_there_is_room_but_compared_by_equal_right() -> None:
    held = ring(10 * ROW_BYTES, window_s=100.0)
    for number in range(12):
        held.add(row(0.0, traced((number % 2) << 63)), 0.0)
    held.add(row(150.0, traced(0)), 150.0)
    assert held.statistics().level == 0

    held.add(row(151.0, traced(1 << 63)), 151.0)

    assert [one.at_s for one in held.sample(60.0, 160.0)[0]] == [150.0]
    assert [one.at_s for one in held.sample(150.5, 160.0)[0]] == [151.0]


def test_rows_of_one_family_alone_go_oldest_first() -> None:
    held = ring(10 * (ROW_BYTES + HASH_BYTES))
    for number in range(400):
        held.add(row(float(number), traced(0, 1)), float(number))

    rows, _ = held.sample(0.0, 400.0)

    assert [one.at_s for one in rows] == [float(number) for number in range(390, 400)]


def test_the_trace_is_one_that_all_tools_read() -> None:
    rows = [
        row(10.0, traced(1, 2**63, 2**64 - 1), 300),
        row(10.5, traced(1, 2**63, 2**64 - 1, 5), 384, output=7),
        row(11.0, traced(9), 40),
    ]

    lines = list(mooncake_lines(rows, 128))
    parsed = parse_trace(lines, "test")

    assert msgspec.json.decode(lines[0]) == {
        "timestamp": 0.0,
        "input_length": 300,
        "output_length": 10,
        "hash_ids": [1, 2, -1],
        "cached_tokens": 0,
        "latency_ms": 0.0,
    }
    assert [one.timestamp_ms for one in parsed] == [0.0, 500.0, 1000.0]
    assert (parsed[1].block_ids, infer_block_size(parsed, "test")) == ((1, 2, 3), 128)
    check_block_size(parsed, 128, "test")
    assert infinite_cache_hit_rate(parsed, 128) == pytest.approx(256 / 724)


def test_a_line_tells_how_its_request_went_and_the_first_one_of_the_fleet() -> None:
    facts = SimulatedFleetFacts((1.0, 0.5), 16, 16.0, 0.02)
    fleet = LoggedFleet("kv:predicted-time", 0.5, facts)
    rows = [
        TraceRow(10.0, 12.5, 300, 10, W, traced(1), 500.0004, 222.2222, 256),
        TraceRow(11.0, 12.0, 300, 1, W, traced(1), 250.0),
    ]

    first, second = map(msgspec.json.decode, mooncake_lines(rows, 128, fleet))

    assert msgspec.convert(first["kvmesh"], LoggedFleet) == fleet
    went = ("cached_tokens", "latency_ms", "ttft_ms", "tpot_ms")
    assert [first[name] for name in went] == [256, 2500.0, 500.0, 222.222]
    assert [second.get(name) for name in went] == [0, 1000.0, 250.0, None]
    assert "kvmesh" not in second


def test_the_share_is_of_requests_that_began_since_not_of_those_that_ended() -> None:
    """Long answers of the load before end under the new one."""
    held = ring()
    for number in range(100):
        held.add(TraceRow(float(number), 100.0 + number, 1000, 10, W, traced(number)), 200.0)

    rows, share = held.sample(50.0, 200.0)

    assert (len(rows), share) == (50, 1.0)


def test_seconds_are_counted_for_no_longer_than_needed() -> None:
    held = ring(window_s=10.0)
    for second in range(500):
        held.count_request(1, float(second), float(second))
    held.count_request(1, 3.0, 500.0)

    assert held.statistics().seen <= 21
    assert len(held._seconds) <= 21
