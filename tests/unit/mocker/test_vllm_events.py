"""What the simulated engine writes, against bytes a real vLLM 0.32 wrote."""

import json
from array import array
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvmesh.core.engines.engine_events import EngineCleared, EngineRemoved, EngineStored
from kvmesh.core.engines.kv_events.dialect import decode_engine_batch
from kvmesh.core.prompts.media_tokens import Span
from kvmesh_lab.mocker.model.request import (
    BlocksRemoved,
    BlocksStored,
    CacheCleared,
    EngineEvent,
    EngineRequest,
    Labels,
)
from kvmesh_lab.mocker.vllm_events import encode_events, engine_hash

FIXTURES = Path(__file__).parents[2] / "fixtures" / "engines"
BLOCK = 32


def live_batches() -> list[bytes]:
    lines = (FIXTURES / "vllm_0.32.0_live.jsonl").read_text().splitlines()
    return [bytes.fromhex(json.loads(line)["hex"]) for line in lines]


class Tokens:
    """The tokens of one stored run, wherever it begins."""

    def __init__(self, tokens: list[int]) -> None:
        self._tokens = array("I", tokens)

    def block_hash(self, index: int, parent: int) -> int:
        raise AssertionError((index, parent))

    def block_tokens(self, first: int, count: int) -> "array[int]":
        del first
        assert count * BLOCK == len(self._tokens)
        return self._tokens


def rewritten(event: dict[str, Any], index: int) -> BlocksStored | BlocksRemoved | CacheCleared:
    """The engine's event that should give this wire event, hashes aside."""
    if event["type"] == "AllBlocksCleared":
        return CacheCleared()
    hashes = [1000 * index + n for n in range(1, 1 + len(event["block_hashes"]))]
    if event["type"] == "BlockRemoved":
        return BlocksRemoved(hashes)
    keys = event["extra_keys"][0]
    labels = Labels(cache_salt=keys and keys[0], session_id=event.get("session_id"))
    request = EngineRequest("r", [], 1, 1, Tokens(event["token_ids"]), labels)
    parent = event["parent_block_hash"]
    return BlocksStored(request, 0 if parent is None else 3, 0 if parent is None else 7, hashes)


@pytest.mark.parametrize("number", range(11))
def test_batches_have_exactly_the_shape_of_vllms(number: int) -> None:
    real = live_batches()[number]
    timestamp, events, rank = msgspec.msgpack.decode(real)

    ours = encode_events(
        [rewritten(event, index) for index, event in enumerate(events)], timestamp, rank, BLOCK
    )

    assert without_hashes(ours) == without_hashes(real)
    assert list(map(list, msgspec.msgpack.decode(ours)[1])) == [list(event) for event in events]


def without_hashes(payload: bytes) -> bytes:
    """The payload with every hash the same number, of the same wire width as a u64."""
    timestamp, events, rank = msgspec.msgpack.decode(payload)
    for event in events:
        for field in ("block_hashes", "parent_block_hash"):
            match event.get(field):
                case list(hashes):
                    event[field] = [2**64 - 1] * len(hashes)
                case int():
                    event[field] = 2**64 - 1
                case _:
                    pass
    return msgspec.msgpack.encode([timestamp, events, rank])


def test_the_smallest_batches_are_the_published_ones_byte_by_byte() -> None:
    fixtures = json.loads((FIXTURES / "wire_fixtures.json").read_text())["vllm-0.30.0"]
    removed, cleared = (bytes.fromhex(fixtures[name]) for name in ("removed", "cleared"))
    digest = msgspec.msgpack.decode(removed)[1][0]["block_hashes"][0]
    inverse = pow(0x9E3779B97F4A7C15, -1, 2**64)

    ours = encode_events([BlocksRemoved([(digest - 1) * inverse % 2**64])], 1.5, 0, 16)

    assert ours == removed
    assert encode_events([CacheCleared()], 1.5, 0, 16) == cleared


def test_lora_and_salt_are_told_as_extra_keys() -> None:
    labels = Labels(lora_name="adapter", lora_id=7, cache_salt="tenant", session_id="s")
    request = EngineRequest("r", [1, 2], 2 * BLOCK, 1, Tokens([5] * (2 * BLOCK)), labels)

    payload = encode_events([BlocksStored(request, 0, 0, [1, 2])], 1.0, 3, BLOCK)

    timestamp, (event,), rank = msgspec.msgpack.decode(payload)
    assert (timestamp, rank) == (1.0, 3)
    assert event["extra_keys"] == [["adapter", "tenant"], ["adapter"]]
    assert (event["lora_id"], event["lora_name"], event["session_id"]) == (7, "adapter", "s")


def test_kvmesh_reads_back_what_was_written() -> None:
    request = EngineRequest("r", [1, 2], 2 * BLOCK, 1, Tokens(list(range(2 * BLOCK))))
    events: list[EngineEvent] = [
        BlocksStored(request, 2, 9, [1, 2]),
        BlocksRemoved([3, 4]),
        CacheCleared(),
    ]

    batch = decode_engine_batch(encode_events(events, 1.0, 0, BLOCK))

    stored, first, second, cleared = batch.events
    assert isinstance(stored, EngineStored)
    assert stored.hashes == (engine_hash(1), engine_hash(2))
    assert stored.parent == engine_hash(9)
    assert stored.tokens == array("I", range(2 * BLOCK)).tobytes()
    assert first == EngineRemoved((engine_hash(3),))
    assert second == EngineRemoved((engine_hash(4),))
    assert cleared == EngineCleared()
    assert batch.unknown_fields == batch.unknown_tags == 0


def test_blocks_with_media_have_their_names_between_adapter_and_salt() -> None:
    spans = (Span("a", 30, 40), Span("b", 70, 5))
    labels = Labels(lora_name="poet", lora_id=1, cache_salt="s", media=spans)
    request = EngineRequest("r", [], 1, 1, Tokens([7] * 3 * BLOCK), labels)

    payload = encode_events([BlocksStored(request, 0, 0, [1, 2, 3])], 0.0, 0, BLOCK)

    [event] = msgspec.msgpack.decode(payload)[1]
    assert event["extra_keys"] == [
        ["poet", ["a", 30], "s"],
        ["poet", ["a", -2]],
        ["poet", ["a", -34], ["b", 6]],
    ]
