import json
import struct
from collections.abc import Mapping
from pathlib import Path

import msgspec
import pytest

from kvmesh.core.engines.engine_events import (
    EngineBatch,
    EngineCleared,
    EngineEvent,
    EngineRemoved,
    EngineStored,
)
from kvmesh.core.engines.kv_events.dialect import decode_engine_batch
from kvmesh.core.engines.kv_events.dialect_fields import keys_digest
from kvmesh.core.engines.kv_events.group_placing import path_of
from kvmesh.core.prompts.media_tokens import Span, spanned_hashes
from kvmesh.errors import CodecError

FIXTURES = Path(__file__).parents[4] / "fixtures" / "engines"
WIRE: Mapping[str, Mapping[str, str]] = json.loads((FIXTURES / "wire_fixtures.json").read_text())
LIVE = [json.loads(line) for line in (FIXTURES / "vllm_0.32.0_live.jsonl").read_text().splitlines()]

HASH_A, HASH_B = 0x1122334455667788, 0x8877665544332211
TOKENS = [1, 2, 3, 4, 300, 70000, 7, 8]


def packed(tokens: list[int]) -> bytes:
    return struct.pack(f"<{len(tokens)}I", *tokens)


def decode(schema: str, payload: str) -> EngineBatch:
    batch = decode_engine_batch(bytes.fromhex(WIRE[schema][payload]))
    assert (batch.timestamp_s, batch.unknown_fields, batch.unknown_tags) == (1.5, 0, 0)
    assert batch.dp_rank == (None if schema == "vllm-0.9.0.1" else 0)
    return batch


def event(*events: object) -> bytes:
    return msgspec.msgpack.encode([1.5, list(events), 0])


def only(data: bytes) -> EngineEvent:
    [found] = decode_engine_batch(data).events
    return found


STORED = EngineStored((HASH_A, HASH_B), None, packed(TOKENS), 4)


@pytest.mark.parametrize("schema", WIRE)
def test_every_published_schema_gives_the_same_events(schema: str) -> None:
    removed, cleared = EngineRemoved((HASH_B,)), EngineCleared()

    assert decode(schema, "stored_min").events == (STORED,)
    assert decode(schema, "removed").events == (removed,)
    assert decode(schema, "cleared").events == (cleared,)
    assert decode(schema, "mixed").events == (removed, STORED, cleared)


@pytest.mark.parametrize("schema", WIRE)
def test_every_field_of_a_schema_is_understood(schema: str) -> None:
    [stored] = decode(schema, "stored_full").events
    assert isinstance(stored, EngineStored)

    assert (stored.hashes, stored.parent, stored.block_size) == ((HASH_B,), HASH_A, 4)
    assert (stored.tokens, stored.tier, stored.group) == (packed(TOKENS[4:]), 0, 0)
    vllm = schema.startswith("vllm")
    version = tuple(map(int, schema.split("-")[1].split(".")))
    if schema.startswith("tensorrt_llm"):
        assert (stored.lora, stored.salt, len(stored.extras)) == ("#7", None, 1)
    elif vllm:
        assert stored.lora == ("#7" if version < (0, 14) else "adapter-a")
        assert stored.kind == ("full_attention" if version >= (0, 22) else None)
        assert bool(stored.extras) == (version >= (0, 17))
        assert stored.lookahead == ((packed([9]),) if version >= (0, 33) else ())
    else:
        assert stored.lora == ("adapter-a" if version >= (0, 5, 22) else None)
        assert stored.salt == ("salt" if version >= (0, 5, 20) else None)


def test_a_live_capture_decodes_without_anything_unknown() -> None:
    batches = [decode_engine_batch(bytes.fromhex(line["hex"])) for line in LIVE]

    assert sum(one.unknown_fields + one.unknown_tags for one in batches) == 0
    assert [one.salt for batch in batches for one in batch.events if isinstance(one, EngineStored)][
        3
    ] == "tenantA"
    kinds = {type(one) for batch in batches for one in batch.events}
    assert kinds == {EngineStored, EngineRemoved, EngineCleared}


@pytest.mark.parametrize(
    "wire",
    [-0x778899AABBCCDDEF, 0x8877665544332211, b"\x01" * 24 + bytes.fromhex("8877665544332211")],
)
def test_signed_unsigned_and_byte_hashes_are_the_same_block(wire: object) -> None:
    assert only(event(["BlockRemoved", [wire], "GPU"])) == EngineRemoved((HASH_B,))


@pytest.mark.parametrize(
    ("medium", "tier"),
    [
        (None, 0),
        ("GPU", 0),
        ("CPU", 1),
        ("CPU_PINNED", 1),
        ("STORAGE", 2),
        ("DISK", 2),
        ("EXTERNAL", 2),
        ("hologram", 2),
    ],
)
def test_a_medium_is_a_tier(medium: str | None, tier: int) -> None:
    removed = {"type": "BlockRemoved", "block_hashes": [1], "medium": medium}

    assert only(event(removed)) == EngineRemoved((1,), tier)


def test_a_remote_block_is_in_the_farthest_tier_whatever_its_medium() -> None:
    removed = {"type": "BlockRemoved", "block_hashes": [1], "medium": "GPU", "locality": "REMOTE"}

    assert only(event(removed)) == EngineRemoved((1,), 2)


def store(**fields: object) -> EngineStored:
    base: dict[str, object] = {
        "type": "BlockStored",
        "block_hashes": [1, 2],
        "parent_block_hash": None,
        "token_ids": [5, 6, 7, 8],
        "block_size": 2,
    }
    found = only(event(base | fields))
    assert isinstance(found, EngineStored)
    return found


def test_the_first_blocks_lone_text_is_the_cache_salt() -> None:
    found = store(lora_name="a", extra_keys=[["a", "salt"], ["a"]])

    assert (found.lora, found.salt, found.extras) == ("a", "salt", ())


def test_a_cache_salt_field_wins_over_a_guessed_one() -> None:
    assert store(cache_salt="named", extra_keys=[["other"], None]).salt == "named"


def test_images_stay_opaque_and_tell_blocks_apart() -> None:
    one = store(extra_keys=[["salt", ["image-1", 0]], [["image-1", 2]]])
    two = store(extra_keys=[["salt", ["image-2", 0]], [["image-2", 2]]])

    assert one.salt == two.salt == "salt"
    assert len(one.extras) == 2
    assert not set(one.extras) & set(two.extras)


def test_extra_keys_that_are_not_one_a_block_tell_all_blocks_apart() -> None:
    assert (len(set(store(extra_keys=["digest"]).extras)), store(extra_keys=[]).extras) == (1, ())


def test_the_places_of_an_image_are_no_token_ids_and_other_images_are_other_contents() -> None:
    """The bytes are those of TensorRT-LLM 1.3's structs, for a block of two images."""
    one = store(token_ids=["ab", 6, 7, "cd"], mm_keys=[[{"hash": "ab"}, {"hash": "cd"}], []])
    two = store(token_ids=["ab", 6, 7, "ef"], mm_keys=[[{"hash": "ab"}, {"hash": "ef"}], []])

    ids = struct.unpack("<4I", one.tokens)
    assert ids[1:3] == (6, 7)
    assert min(ids[0], ids[3]) >= 2**31
    assert ids[0] != ids[3]
    assert one.tokens != two.tokens
    assert one.extras[0] != two.extras[0]
    assert one.extras[1] == two.extras[1] == 0


def test_numbers_of_sglang_in_the_place_of_an_image_are_no_token_ids() -> None:
    """SGLang 0.5.23 puts four numbers of 62 bits in turn there."""
    one, other = (1_000_000 + (number << 60) for number in (2, 3))

    ids, others = (
        struct.unpack("<4I", store(token_ids=[5, place, place + 1, place]).tokens)
        for place in (one, other)
    )

    assert ids[0] == others[0] == 5
    assert min(ids[1:] + others[1:]) >= 2**31
    assert (ids[1], len({*ids, *others})) == (ids[3], 5)


def test_fields_that_sglang_once_sent_in_one_map_are_read() -> None:
    stored = ["BlockStored", [1], None, [5, 6], 2, None, "GPU", {"cache_salt": "s"}]

    assert only(event(stored)) == EngineStored((1,), None, packed([5, 6]), 2, salt="s")


def test_bigram_tokens_count_by_their_first() -> None:
    assert store(token_ids=[[5, 6], [6, 7], [7, 8], [8, 9]]).tokens == packed([5, 6, 7, 8])


def test_unknown_fields_and_tags_are_counted_and_skipped() -> None:
    batch = decode_engine_batch(
        msgspec.msgpack.encode(
            [
                1,
                [
                    {"type": "BlockUpdated", "x": 1},
                    ["BlockPromoted", 1, 2],
                    {"type": "AllBlocksCleared", "origin": "api"},
                    ["BlockRemoved", [1], "GPU", 0, "LOCAL", "new"],
                ],
                None,
                "new",
            ]
        )
    )

    assert batch.events == (EngineCleared(), EngineRemoved((1,)))
    assert (batch.unknown_fields, batch.unknown_tags, batch.dp_rank) == (4, 2, None)


@pytest.mark.parametrize(
    "payload",
    [
        b"",
        b"\xc1",
        b"\x93" * 2000,
        msgspec.msgpack.encode({"not": "a batch"}),
        msgspec.msgpack.encode([1.5]),
        msgspec.msgpack.encode(["now", []]),
        msgspec.msgpack.encode([1.5, "events"]),
        msgspec.msgpack.encode([1.5, [], "rank"]),
        event(["BlockRemoved"]),
        event(["BlockRemoved", "hashes"]),
        event(["BlockRemoved", [None]]),
        event(["BlockRemoved", [b""]]),
        event(["BlockRemoved", [1], 5]),
        event(["BlockRemoved", [1], None, -1]),
    ],
)
def test_what_cannot_be_followed_is_a_codec_error(payload: bytes) -> None:
    with pytest.raises(CodecError):
        decode_engine_batch(payload)


@pytest.mark.parametrize(
    "odd",
    [
        7,
        [],
        [7],
        {"type": None},
        ["BlockStored", [1]],
        ["BlockStored", [1], None, [5, 6], -2],
        ["BlockStored", [1], None, [5, 6, 7], 2],
        ["BlockStored", [1], None, "tokens", 2],
        ["BlockStored", [1], None, [5, -6], 2],
        ["BlockStored", [1], None, [5, -1], 2],
        ["BlockStored", [1], None, [5, None], 2],
        ["BlockStored", [1], None, [[5, 6], 7], 2],
        ["BlockStored", [1], None, [[], [5, 6]], 2],
        ["BlockStored", [1], None, [5, 6], 2, "lora"],
        ["BlockStored", [1], None, [5, 6], 2, None, "GPU", 9],
        ["BlockStored", [1], None, [5, 6], 2, None, "GPU", None, "keys"],
        {"type": "BlockStored", "block_hashes": [1], "token_ids": []},
        ["BlockStored", [1, 2], None, [5], 1, None, None, None, None, 0, "mamba"],
        ["BlockStored", [1], None, [5, 6, 7], 2, None, None, None, None, 0, "mamba"],
        ["BlockStored", [1], None, [5, 6], 1, None, None, None, None, 0, "full_attention"],
        ["BlockStored", [1], None, [5], 1, None, None, None, None, 0, "sliding_window", "wide"],
        {"type": "BlockStored", "block_hashes": [1], "token_ids": [5], "block_size": 1}
        | {"lookahead_token_ids": [[1], [2]]},
        {"type": "BlockStored", "block_hashes": [1, 2], "token_ids": [5, 6], "block_size": 1}
        | {"lookahead_token_ids": [[1], [2, 3]]},
        {"type": "BlockStored", "block_hashes": [1], "token_ids": [5], "block_size": 1}
        | {"lookahead_token_ids": [list(range(65))]},
    ],
)
def test_an_odd_event_is_left_out_with_its_reason_and_the_others_are_read(odd: object) -> None:
    stored, removed = ["BlockStored", [1], None, [5, 6], 2], ["BlockRemoved", [1]]

    batch = decode_engine_batch(msgspec.msgpack.encode([0.0, [stored, odd, removed], 0]))

    assert batch.events == (EngineStored((1,), None, packed([5, 6]), 2), EngineRemoved((1,)))
    assert len(batch.odd) == 1
    assert 0 < len(batch.odd[0]) <= 80


@pytest.mark.parametrize("error", [RecursionError, TypeError, ValueError])
def test_whatever_an_event_makes_its_reader_raise_is_an_odd_event(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise error("odd")

    monkeypatch.setattr("kvmesh.core.engines.kv_events.dialect._stored", fail)
    assert decode_engine_batch(msgspec.msgpack.encode([0.0, [["BlockStored"]], 0])).odd == ("odd",)


def test_groups_may_leave_blocks_out_and_tell_of_tokens_behind_them() -> None:
    found = store(
        kv_cache_spec_kind="sliding_window",
        kv_cache_spec_sliding_window=128,
        block_hashes=[2],
        lookahead_token_ids=[[9]],
        extra_keys=[["digest"]],
    )

    assert (found.kind, found.window, found.lookahead) == ("sliding_window", 128, (packed([9]),))
    assert len(found.hashes) * found.block_size * 4 < len(found.tokens)
    assert (found.salt, len(found.extras)) == (None, 1)
    assert store(lookahead_token_ids=[[], []]).lookahead == ()


@pytest.mark.parametrize(("ahead", "told"), [(None, 2), ([[9], [9]], 1)])
def test_an_image_behind_a_block_whose_hash_looks_ahead_is_the_next_ones(
    ahead: list[list[int]] | None, told: int
) -> None:
    keys = [[["image", 2], "salt"], [["image", 0], ["other", "4"], ["third", 5, 0]]]

    found = store(extra_keys=keys, lookahead_token_ids=ahead)

    kept = [["image", 0], ["other", "4"], ["third", 5, 0]]
    assert found.salt == "salt"
    assert sum(one != 0 for one in found.extras) == told
    assert found.extras[1] == keys_digest(kept)


def test_blocks_in_front_of_an_image_have_the_hashes_of_routers() -> None:
    ids = [1, 2, 3, 4, 5, 300, 300, 300, 6, 7]
    span = Span("image", 5, 3)
    keys = [[["image", 5]], [["image", 1]]]
    ahead = [ids[4:6], ids[8:]]
    stored = store(token_ids=ids[:8], block_size=4, extra_keys=keys, lookahead_token_ids=ahead)

    place = path_of(stored, None, [0, 1], 4, b"")

    assert place.contents == list(spanned_hashes([span], packed(ids[:8]), 4, 0).upto(2))
