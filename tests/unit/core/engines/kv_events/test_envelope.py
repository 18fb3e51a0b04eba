import msgspec
import pytest

from kvmesh.core.engines.kv_events.envelope import Envelope, open_envelope
from kvmesh.errors import CodecError

CLEARED = {"type": "AllBlocksCleared"}
STORED = {
    "parent_hash": None,
    "start_position": 0,
    "blocks": [{"block_hash": 1, "tokens_hash": 2, "mm_extra_info": None}],
}
BY_NAME = {
    "worker_id": 7,
    "storage_tier": "device",
    "residency_domain": "worker",
    "event": {"event_id": 0, "data": {"stored": STORED}, "dp_rank": 0},
}
BY_PLACE = [7, "host_pinned", "worker", [0, {"stored": [None, 0, [[1, 2, None]]]}, 0]]


@pytest.mark.parametrize(
    ("message", "envelope"),
    [
        ([1.5, [CLEARED]], Envelope(1.5, [CLEARED])),
        ([1, [CLEARED], None], Envelope(1.0, [CLEARED])),
        ([1.5, [], 3, "new", "newer"], Envelope(1.5, [], 3, 2)),
        ({"ts": 1.5, "events": [CLEARED]}, Envelope(1.5, [CLEARED])),
        ({"ts": 1.5, "events": [], "data_parallel_rank": 3}, Envelope(1.5, [], 3)),
        ({"events": [], "attn_dp_rank": 3, "ts": 2, "new": 1}, Envelope(2.0, [], 3, 1)),
    ],
)
def test_a_message_is_taken_apart_by_place_or_by_name(message: object, envelope: Envelope) -> None:
    assert open_envelope(msgspec.msgpack.encode(message)) == envelope


@pytest.mark.parametrize(
    ("message", "words"),
    [
        (7, "is not"),
        ([], "is not"),
        ([1.5], "is not"),
        ({"not": "a batch"}, "does not start"),
        ({"ts": None, "events": []}, "does not start"),
        ([1.5, {}], "does not start"),
        (["now", []], "does not start"),
        ([1.5, [], "rank"], "rank 'rank'"),
        ({"ts": 1.5, "events": [], "data_parallel_rank": 0.5}, "rank 0.5"),
        ([[7]], "is not"),
        ([["a", "device"]], "is not"),
    ],
)
def test_what_is_no_message_is_refused_with_the_place(message: object, words: str) -> None:
    with pytest.raises(CodecError, match=words):
        open_envelope(msgspec.msgpack.encode(message))


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x91" * 900 + b"\x01", b"{", b'{"a": 1}'])
def test_bytes_that_are_no_message_are_refused(payload: bytes) -> None:
    with pytest.raises(CodecError, match="engine batch of"):
        open_envelope(payload)


@pytest.mark.parametrize("message", [BY_NAME, BY_PLACE, [BY_NAME, BY_NAME], [BY_PLACE]])
@pytest.mark.parametrize("codec", [msgspec.msgpack, msgspec.json])
def test_a_router_event_of_dynamo_is_refused_with_what_to_do(
    message: object, codec: object
) -> None:
    encode = getattr(codec, "encode")  # noqa: B009  two modules
    with pytest.raises(CodecError, match=r"RouterEvent of NVIDIA Dynamo.*--kv-events-endpoint"):
        open_envelope(encode(message))
