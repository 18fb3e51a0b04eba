"""Garbage, and what the published structs could send, into the dialect decoder."""

import json
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from kvmesh.core.engines.engine_events import EngineStored
from kvmesh.core.engines.kv_events.cache import EngineCache
from kvmesh.core.engines.kv_events.dialect import decode_engine_batch
from kvmesh.errors import CodecError

FIXTURES = Path(__file__).parents[2] / "fixtures" / "engines" / "wire_fixtures.json"
PAYLOADS = [
    bytes.fromhex(payload)
    for schema in json.loads(FIXTURES.read_text()).values()
    for name, payload in schema.items()
    if name != "versions"
]

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-(2**63), 2**64 - 1)
    | st.text(max_size=8)
    | st.binary(max_size=40)
    | st.floats(allow_nan=False)
)
anything = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4)
    ),
    max_leaves=12,
)
field_names = st.sampled_from(
    [
        "block_hashes",
        "parent_block_hash",
        "token_ids",
        "block_size",
        "lora_id",
        "medium",
        "lora_name",
        "extra_keys",
        "group_idx",
        "kv_cache_spec_kind",
        "cache_salt",
        "mm_keys",
        "odd",
    ]
)
tags = st.sampled_from(["BlockStored", "BlockRemoved", "AllBlocksCleared", "Odd"])
maps = st.builds(
    lambda tag, rest: {"type": tag, **rest}, tags, st.dictionaries(field_names, anything)
)
arrays = st.builds(lambda tag, rest: [tag, *rest], tags, st.lists(anything, max_size=12))


def swallow(payload: bytes) -> None:
    """A decoder has two answers, and what it decodes can be folded."""
    try:
        batch = decode_engine_batch(payload)
    except CodecError:
        return
    EngineCache(4).fold(batch)


@given(st.binary(max_size=200))
def test_random_bytes_never_crash(payload: bytes) -> None:
    swallow(payload)


@given(st.sampled_from(PAYLOADS), st.data())
def test_damaged_payloads_never_crash(payload: bytes, data: st.DataObject) -> None:
    damaged = bytearray(payload)
    for position in data.draw(st.lists(st.integers(0, len(payload) - 1), max_size=4)):
        damaged[position] = data.draw(st.integers(0, 255))

    swallow(bytes(damaged[: data.draw(st.integers(0, len(damaged)))]))
    swallow(bytes(damaged))


@given(st.lists(maps | arrays | anything, max_size=3))
def test_events_of_any_shape_never_crash(events: list[object]) -> None:
    swallow(msgspec.msgpack.encode([1.0, events, 0]))


@given(
    st.lists(st.integers(0, 2**64 - 1), min_size=1, max_size=4),
    st.integers(1, 4),
    st.one_of(st.none(), st.integers(-(2**63), 2**63 - 1)),
    st.integers(0, 2**32 - 1),
)
def test_array_and_map_shapes_of_one_store_decode_alike(
    hashes: list[int], block_size: int, parent: int | None, token: int
) -> None:
    tokens = [token] * (block_size * len(hashes))
    array = ["BlockStored", hashes, parent, tokens, block_size, None, "CPU"]
    named = {
        "type": "BlockStored",
        "block_hashes": hashes,
        "parent_block_hash": parent,
        "token_ids": tokens,
        "block_size": block_size,
        "medium": "CPU",
    }

    [one, two] = decode_engine_batch(msgspec.msgpack.encode([0.0, [array, named]])).events

    assert one == two
    assert isinstance(one, EngineStored)
    assert one.hashes == tuple(hashes)
