"""Whatever an engine says becomes figures, names and events within their bounds, or nothing."""

import time
from typing import Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.actors.messages import WorkerHeartbeat, WorkerLoad
from kvmesh.actors.wire import decode, encode
from kvmesh.app.members.engine_load import load_of, load_of_figures, parse_gauges
from kvmesh.bounds import MAX_COUNT, MAX_NAMES, MAX_TOKENS
from kvmesh.core.blocks.events import WorkerId
from kvmesh.core.engines.engine import Engine
from kvmesh.core.engines.kv_events import residency
from kvmesh.core.engines.kv_events.cache import EngineCache
from kvmesh.core.engines.kv_events.dialect import decode_engine_batch
from kvmesh.core.engines.load import MAX_RANKS
from kvmesh.core.engines.registry import ENGINES
from kvmesh.core.engines.sglang.load import decode_load_stat, decode_loads
from kvmesh.core.engines.sse import find_usage
from kvmesh.errors import CodecError
from tests.unit.core.engines.interviews import conduct

U64: Final = 2**64 - 1
NUMBERS: Final = ("NaN", "+Inf", "-Inf", "1e999", "7e300", "-1", "1e25", "9" * 400, "3", "0.5")
LABELS: Final = ("0", "1", "-1", "²", "9" * 5000, "1e3", "", "1000000", "None")
NAMES: Final = tuple(name for engine in ENGINES.values() for name in engine.gauges)

anything = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), U64) | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=9), inner),
    max_leaves=8,
)


def fits_a_heartbeat(load: WorkerLoad) -> bool:
    """Return whether routers take the heartbeat that carries the load."""
    beat = WorkerHeartbeat(WorkerId("w"), "b", 1, 0, "http://w", (), 16, load)
    return decode(encode(beat), WorkerHeartbeat) == beat


@given(
    st.lists(
        st.tuples(st.sampled_from(NAMES), st.sampled_from(LABELS), st.sampled_from(NUMBERS)),
        max_size=12,
    )
)
def test_any_metrics_page_gives_figures_that_a_heartbeat_carries(
    samples: list[tuple[str, str, str]],
) -> None:
    page = "".join(
        f'{name}{{engine="{label}",block_size="{label}",num_gpu_blocks="{label}"}} {number}\n'
        for name, label, number in samples
    )

    for rank, gauges in parse_gauges(page).items():
        assert 0 <= rank < MAX_RANKS
        assert 0 <= gauges.block_size <= MAX_TOKENS
        load = load_of(gauges)
        assert fits_a_heartbeat(load)
        numbers = msgspec.to_builtins(load)
        assert 0 <= len(numbers.pop("adapters", ())) <= MAX_NAMES
        assert all(value is None or 0 <= value <= MAX_COUNT for value in numbers.values())


def test_a_page_of_many_ranks_series_and_long_lines_is_read_in_part() -> None:
    many = "".join(f'vllm:num_requests_running{{engine="{n}"}} 1\n' for n in range(100_000))
    long = 'vllm:num_requests_running{engine="' + "1" * 10_000_000 + '"} 1\n'
    began_s = time.process_time()

    ranks = parse_gauges(long + many)

    assert len(ranks) == MAX_RANKS
    assert time.process_time() - began_s < 5.0, "8,192 lines take 0.3 s"


@given(st.lists(anything, max_size=10).map(lambda fields: ["LoadStat", *fields]))
def test_any_message_of_a_load_stream_is_a_load_or_refused(stat: list[object]) -> None:
    try:
        figures = decode_load_stat(msgspec.msgpack.encode(stat))
    except CodecError:
        return
    assert fits_a_heartbeat(load_of_figures(figures, 0))


@pytest.mark.parametrize("number", ["1e25", "9" * 25, "9" * 5000, "-5", "NaN", '"x"', "1e999"])
def test_numbers_beyond_all_bounds_on_a_loads_page_are_refused_or_brought_in(number: str) -> None:
    page = f'{{"loads":[{{"num_running_reqs":{number},"num_used_tokens":{number}}}]}}'
    try:
        figures = decode_loads(page.encode())
    except CodecError:
        return
    for one in figures.values():
        load = load_of_figures(one, 16)
        assert fits_a_heartbeat(load)
        assert 0 <= load.running_requests <= MAX_COUNT


def test_a_loads_page_of_too_many_ranks_is_refused() -> None:
    page = msgspec.json.encode({"loads": [{"dp_rank": 0}] * (MAX_RANKS + 1)})
    with pytest.raises(CodecError):
        decode_loads(page)
    with pytest.raises(CodecError):
        decode_loads(b'{"loads":[{"dp_rank":1000000}]}')


ANSWERS: Final = (
    b"",
    b"\xff",
    b"[" * 100_000,
    b'{"version":"\xff"}',
    b'{"version":"' + b"v" * 1_000_000 + b'"}',
    b'{"kv_events":{"endpoint_port_base":5557,"dp_size":1000000000000}}',
    b'{"kv_events":{"endpoint_port_base":5557,"dp_size":-1}}',
    b'{"kv_events":{"endpoint_port_base":99999999}}',
    b'{"page_size":' + b"9" * 30 + b"}",
    b'{"disaggregation_mode":"prefill","disaggregation_bootstrap_port":1000000}',
    '{"²":{"endpoint":"tcp://*:1"}}'.encode(),
    b'{"' + b"9" * 5000 + b'":{"endpoint":"tcp://*:1"}}',
    msgspec.json.encode({str(n): {"endpoint": "tcp://*:1"} for n in range(5_000)}),
    b'{"0":{"endpoint":"' + b"x" * 100_000 + b'"}}',
)


class Answers(dict[str, bytes]):
    """An engine that answers the same on every path."""

    def __init__(self, answer: bytes) -> None:
        super().__init__()
        self._answer = answer

    def get(self, *_: object) -> bytes:
        return self._answer


@pytest.mark.parametrize("answer", ANSWERS)
@pytest.mark.parametrize("engine", ENGINES.values(), ids=lambda one: one.name)
def test_no_answer_of_an_interview_is_believed_beyond_bounds(engine: Engine, answer: bytes) -> None:
    facts, _ = conduct(engine.recognise("host"), Answers(answer))
    identity, _ = conduct(engine.identify(), Answers(answer))

    if facts is not None:
        assert len(facts.endpoints) <= MAX_RANKS
        assert len(facts.load_streams) <= MAX_RANKS
        assert 0 <= facts.block_size <= MAX_TOKENS
        assert 0 <= facts.bootstrap_port < 1 << 16
        assert all(0 <= one.rank < MAX_RANKS for one in facts.endpoints)
    if identity is not None:
        assert len(identity.version) <= 512


@pytest.mark.parametrize("number", [10**25, -1, 2**31, 10**400, True, 1.5, None, "x", [], {}])
@pytest.mark.parametrize("name", ["prompt_tokens", "completion_tokens", "input_tokens"])
def test_no_count_of_usage_is_believed_beyond_bounds(name: str, number: object) -> None:
    body = msgspec.json.encode({"usage": {name: 0, "prompt_tokens_details": {"cached_tokens": 0}}})
    text = str(number) if isinstance(number, int) else msgspec.json.encode(number).decode()
    for wrong in (b'"%b":0' % name.encode(), b'"cached_tokens":0'):
        usage = find_usage(body.replace(wrong, wrong[:-1] + text.encode()))
        if usage is not None:
            assert 0 <= usage.prompt_tokens <= MAX_TOKENS
            assert 0 <= usage.completion_tokens <= MAX_TOKENS
            assert 0 <= (usage.cached_tokens or 0) <= MAX_TOKENS


def test_no_more_is_cached_than_was_prompted() -> None:
    usage = find_usage(
        b'{"usage":{"prompt_tokens":10,"prompt_tokens_details":{"cached_tokens":4000}}}'
    )
    assert usage is not None
    assert usage.cached_tokens == 10


few_hashes = st.lists(st.sampled_from([1, 2, 3, U64, -1, b"\x01" * 32]), max_size=4)
stored: st.SearchStrategy[object] = st.fixed_dictionaries(
    {
        "type": st.just("BlockStored"),
        "block_hashes": few_hashes,
        "parent_block_hash": st.sampled_from([None, 1, 2, 3, -1, b"\x01" * 32]),
        "token_ids": st.lists(st.integers(0, 2), max_size=8) | st.just([1] * 4),
        "block_size": st.sampled_from([1, 2, 4, 0]),
    },
    optional={
        "medium": st.sampled_from(["GPU", "CPU", "DISK", "?", None]),
        "lora_id": st.sampled_from([0, 1, 2**40, -1]),
        "cache_salt": st.sampled_from(["a", "b", "c" * 5000, None]),
        "extra_keys": st.sampled_from([None, [], [["x"]], [None, ["a", 2]], "x", [[[[]]]]]),
        "group_idx": st.sampled_from([0, 1, 2**31, -1, None]),
        "kv_cache_spec_kind": st.sampled_from([None, "mamba", "mla_attention"]),
        "more": anything,
    },
)
removed = st.fixed_dictionaries(
    {"type": st.just("BlockRemoved"), "block_hashes": few_hashes},
    optional={"medium": st.sampled_from(["GPU", "CPU", "DISK"])},
)
cleared = st.just({"type": "AllBlocksCleared"})
events = st.lists(stored | removed | cleared | anything, max_size=4)


@given(st.lists(events, max_size=6))
def test_any_events_are_followed_or_refused_and_never_end_the_sidecar(
    batches: list[list[object]],
) -> None:
    cache = EngineCache(None)
    for batch in batches:
        try:
            cache.take(msgspec.msgpack.encode([0.0, batch, 0]))
        except CodecError:
            cache.lose()
    cache.dump()

    assert 0 <= cache.block_size <= MAX_TOKENS


@pytest.mark.parametrize(
    "payload",
    [
        b"\x91" * 100_000,
        msgspec.msgpack.encode([0.0, [["BlockRemoved", [1], "G" * 5000]], 0]),
        msgspec.msgpack.encode([0.0, [["BlockRemoved", [], None, 2**62]], 0]),
        msgspec.msgpack.encode([0.0, [["BlockRemoved", [[[]]]]], 2**64 - 1]),
    ],
)
def test_what_cannot_be_is_refused_in_a_short_line(payload: bytes) -> None:
    with pytest.raises(CodecError) as refused:
        decode_engine_batch(payload)

    assert len(str(refused.value)) < 300


@pytest.mark.parametrize(
    "odd",
    [
        ["BlockStored", [1], None, [-1], 1],
        ["BlockStored", [1], None, [1], 2**62],
        ["BlockStored", [1], None, [1], 0],
        ["x" * 5000],
        {"type": 7, "y": list(range(100_000))},
        [[[[]]]],
        ["BlockStored", list(range(100_000)), 0, [], "x"],
    ],
)
def test_an_event_that_cannot_be_is_left_out_for_a_short_reason(odd: object) -> None:
    batch = decode_engine_batch(msgspec.msgpack.encode([0.0, [odd], 0]))

    assert not batch.events
    assert [len(reason) <= 80 for reason in batch.odd] == [True]


def test_keys_nested_as_deep_as_can_be_decoded_are_followed_or_refused() -> None:
    refused = 0
    for depth in (*range(700, 1000), 200_000):  # how deep depends on the interpreter
        keys = b"\x91" * depth + b"\x01"
        head = msgspec.msgpack.encode("BlockStored") + b"\x91\x01\xc0\x91\x01\x01"
        try:
            refused += len(decode_engine_batch(b"\x92\x00\x91\x99" + head + b"\xc0" * 3 + keys).odd)
        except CodecError:
            refused += 1
    assert refused > 0


def test_a_batch_of_ten_million_ids_for_one_block_is_refused_in_time() -> None:
    ids = b"\xdd" + (10_000_000).to_bytes(4, "big") + b"\x01" * 10_000_000
    head = msgspec.msgpack.encode("BlockStored") + b"\x91\x01\xc0"
    began_s = time.process_time()

    batch = decode_engine_batch(b"\x93\x00\x91\x95" + head + ids + b"\x10\x00")

    assert batch.odd == ("BlockStored: N blocks of N tokens but N ids",)

    assert time.process_time() - began_s < 3.0, "0.2 s"


def store(hashes: list[int], tokens: list[int], *, salt: str = "") -> bytes:
    event: dict[str, object] = {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": None,
    }
    event |= {"token_ids": tokens, "block_size": 1, "cache_salt": salt or None}
    return msgspec.msgpack.encode([0.0, [event], 0])


def test_blocks_beyond_the_bound_are_not_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(residency, "MOST_BLOCKS", 100)
    cache = EngineCache(1)

    for number in range(10):
        run = [100 * number + block for block in range(100)]
        cache.take(store(run, [number + 1] * 100))

    found = cache.statistics().residency
    assert (found.blocks, found.crowded) == (100, 900)
    cache.take(msgspec.msgpack.encode([0.0, [["BlockRemoved", list(range(1000))]], 0]))
    assert cache.statistics().visible_blocks == 0


def test_contents_of_one_hash_beyond_the_bound_are_not_kept() -> None:
    cache = EngineCache(1)

    for number in range(10 * residency.MOST_TWINS):
        cache.take(store([7], [1], salt=f"salt-{number}"))

    found = cache.statistics()
    assert found.visible_blocks == residency.MOST_TWINS + 1
    assert found.residency.crowded == 9 * residency.MOST_TWINS - 1


def test_a_block_stored_more_often_than_can_be_counted_stays_one_of_its_tier(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(residency, "MOST_REFERENCES", 7)
    cache = EngineCache(1)

    for _ in range(40):
        cache.take(store([7], [1]))
    for _ in range(40):
        cache.take(msgspec.msgpack.encode([0.0, [["BlockRemoved", [7]]], 0]))

    assert cache.statistics().visible_blocks == 0
    assert cache.statistics().residency.blocks == 0
