import json
from pathlib import Path

import msgspec

from kvmesh.app.ops.doctor_events import SourceWatch
from kvmesh.core.engines.facts import EventEndpoint
from kvmesh.core.engines.kv_events.dialect import decode_engine_batch
from kvmesh.core.engines.seen import GroupSeen

CAPTURE = Path(__file__).parents[3] / "fixtures" / "engines" / "vllm_0.32.0_gemma3.jsonl"


def watch() -> SourceWatch:
    endpoint = EventEndpoint(0, "tcp://127.0.0.1:1")
    return SourceWatch(endpoint, decode_engine_batch, topic="", bind=False)


def test_a_real_hybrid_models_groups_are_seen_and_nothing_is_odd() -> None:
    watching = watch()
    for number, line in enumerate(CAPTURE.read_text().splitlines()):
        watching.on_batch(number, bytes.fromhex(json.loads(line)["hex"]))

    seen = watching.seen()

    assert [group.kind for group in seen.groups].count("sliding_window") == 3
    full = [group for group in seen.groups if group.full]
    assert len(full) == 1
    assert seen.block_sizes == (full[0].block_size,)
    assert {group.window for group in seen.groups if not group.full} == {64}
    assert (seen.batches, seen.undecodable, seen.odd, seen.unknown) == (63, 0, 0, 0)


def test_what_cannot_be_read_is_counted_with_the_reason() -> None:
    watching = watch()
    stored = {"block_hashes": [1], "parent_block_hash": None, "token_ids": [1, 2], "block_size": 2}
    good = {"type": "BlockStored", "group_idx": 1, "kv_cache_spec_kind": "mamba", **stored}
    watching.on_batch(0, msgspec.msgpack.encode([1.5, [{"type": "BlockStored"}, good], 0]))
    watching.on_batch(1, b"\xc1")

    seen = watching.seen()

    assert (seen.batches, seen.odd, seen.undecodable, seen.stored_blocks) == (2, 1, 1, 1)
    assert "engine batch of 1 bytes" in seen.why
    assert seen.groups == (GroupSeen(1, "mamba", 2),)
    assert seen.block_sizes == (2,)
